"""Who waits for ranks to stop, or to answer a call."""

from collections.abc import Callable, Collection

from onbeat_engine.wire.errors import EngineDead
from onbeat_engine.wire.messages import Answer
from onbeat_spec.errors import OnbeatError

Done = Callable[[OnbeatError | None], None]
"""Told once that something is complete, or why it never will be."""


class Waits:
    """Those who wait; each is told once."""

    def __init__(self) -> None:
        self._stops: list[Done] = []
        self._calls: dict[int, tuple[set[int], Done]] = {}
        self._last_call = 0

    def stop(self, done: Done) -> None:
        """Somebody waits until all ranks have stopped."""
        self._stops.append(done)

    def no_stop(self, why: OnbeatError) -> None:
        """Those who wait for that wait in vain."""
        stops, self._stops = self._stops, []
        for done in stops:
            done(why)

    def call(self, ranks: Collection[int], done: Done) -> int:
        """Somebody waits until these ranks have answered a call; return its number."""
        self._last_call += 1
        self._calls[self._last_call] = (set(ranks), done)
        return self._last_call

    def answered(self, answer: Answer) -> None:
        """A rank has answered; answers that nobody waits for are let go."""
        if answer.call in self._calls:
            ranks, done = self._calls[answer.call]
            ranks.discard(answer.rank)
            if not answer.ok:
                del self._calls[answer.call]
                done(EngineDead(answer.message))

    def settle(self, stopped: Callable[[], bool], gone: Collection[int], dead: str) -> None:
        """Tell those whose wait is over.

        Args:
            stopped: whether every rank that lives has stopped.
            gone: ranks that live no more, and will not answer.
            dead: why none does; empty: one does.
        """
        error = EngineDead(dead) if dead else None
        if self._stops and stopped():
            stops, self._stops = self._stops, []
            for done in stops:
                done(error)
        for call, (ranks, done) in tuple(self._calls.items()):
            if ranks.issubset(gone):
                del self._calls[call]
                done(error)
