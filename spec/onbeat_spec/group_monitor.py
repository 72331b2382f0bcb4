"""The invariants of a group, watched while its ranks step: live in an engine, or from traces (`onbeat check-trace`).

Each rank hands in its lock steps in their order; a lock step is judged once every rank has handed in that one or a
later one. So ranks may run apart by as much as they like, and what is kept is what the slowest has not reached.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from onbeat_spec.invariants import GROUP_PREDICATES
from onbeat_spec.records import GroupStep, Member


class GroupViolation(NamedTuple):
    """An invariant that one lock step of a group violates."""

    invariant: str
    lock_step: int
    message: str


def judge(step: GroupStep) -> Iterator[GroupViolation]:
    """Evaluate every invariant of a group over one lock step."""
    for entry, check in GROUP_PREDICATES:
        verdict = check(step)
        if verdict is not None:
            yield GroupViolation(entry.id, step.number, verdict)


class GroupMonitor:
    """Puts the lock steps of a group's ranks together.

    Ranks are compared from the first lock step that all of them have: what came before is no fault of theirs.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._waiting: dict[int, deque[Member]] = {rank: deque() for rank in sorted(ranks)}
        self._met: set[int] = set()
        self._gone: set[int] = set()
        self._start: int | None = None

    def lacking(self) -> int | None:
        """Return a rank whose next lock step is needed to go on, or None: then there is no rank left."""
        return next((rank for rank, steps in self._waiting.items() if not steps), None)

    def observe(self, rank: int, member: Member) -> list[GroupStep]:
        """Take a rank's next lock step; return those that are now complete, to be given to `judge`."""
        self._waiting[rank].append(member)
        self._met.add(rank)
        return self._complete()

    def gone(self, rank: int) -> list[GroupStep]:
        """A rank has ended, or was removed, and hands in no more; return the lock steps that waited only for it.

        Raises:
            KeyError: it had gone before.
        """
        self._gone.add(rank)
        if not self._waiting[rank]:
            del self._waiting[rank]
        return self._complete()

    def _complete(self) -> list[GroupStep]:
        complete = []
        while self._waiting and self.lacking() is None:
            heads = {rank: steps[0] for rank, steps in self._waiting.items()}
            if self._start is None:
                self._start = max(member.lock.number for member in heads.values())
            number = min(member.lock.number for member in heads.values())
            here = {rank: member for rank, member in heads.items() if member.lock.number == number}
            for rank in here:
                self._waiting[rank].popleft()
                if rank in self._gone and not self._waiting[rank]:
                    del self._waiting[rank]
            if number >= self._start and len(self._met) > 1:
                # Who has gone has no later lock step; who has one was there before, and missed this.
                complete.append(GroupStep(number, here, tuple(sorted(heads.keys() - here.keys()))))
        return complete
