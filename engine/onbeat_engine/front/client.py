"""The front end's side of the protocol: it numbers events, places requests, and knows who waits for what.

No socket and no event loop in here either: messages to ranks leave through a function, messages from ranks are handed
in. Ranks that share collectives are one group; ranks that do not are groups of one, and the death of one of them is
nothing to the others (case B80).
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from onbeat_engine.front.group_watch import GroupWatch
from onbeat_engine.front.waits import Done, Waits
from onbeat_engine.wire.config import OnViolation
from onbeat_engine.wire.errors import EngineDead, TryLater
from onbeat_engine.wire.messages import (
    Abort,
    Answer,
    Compile,
    Ended,
    FromRank,
    LogEntry,
    NewRequest,
    Output,
    RankOutputs,
    RankStats,
    ResetPrefixCache,
    ToRank,
)
from onbeat_engine.wire.params import StructuredOutput
from onbeat_spec import balance, protocol
from onbeat_spec.errors import OnbeatError, ProtocolMisuse, RequestRefused
from onbeat_spec.protocol import Front, PauseMode, Sent

Deliver = Callable[[Output, int], None]
"""Takes what came for one request, and the rank it is at; -1: none."""


class Open(NamedTuple):
    """A request that has not ended."""

    rank: int
    deliver: Deliver


class Held(NamedTuple):
    """A request that waits for the end of a pause."""

    request: NewRequest
    deliver: Deliver
    group: int
    """Which group's front end has counted it."""


class Client:
    """All that the front end of a deployment knows.

    Args:
        ranks: how many there are.
        coupled: they share collectives.
        send: sends a message to a rank; messages to one rank keep their order.
        by_tokens: balance the load by prompt tokens instead of requests (case B87).
        on_violation: what follows when a group violates an invariant.
        restarts: groups that die are started again, until one is `given_up`: what is held waits for that.

    Attributes:
        watches: of groups of more than one rank.
        stats: the newest that came, by rank.
        requests: those that have not ended, by id; not those that are held.
        closed: why no request is taken any more; empty: they are.
        recovering: groups that are being started again.
    """

    def __init__(
        self,
        ranks: int,
        coupled: bool,
        send: Callable[[int, ToRank], None],
        *,
        by_tokens: bool = False,
        on_violation: OnViolation = "log",
        restarts: bool = False,
    ) -> None:
        groups = protocol.groups(ranks, coupled)
        self.watches = {
            index: GroupWatch(members, on_violation) for index, members in enumerate(groups) if len(members) > 1
        }
        self.fronts = [Front(members) for members in groups]
        self.fleet = balance.fleet_of(ranks, by_tokens=by_tokens)
        self.stats = [RankStats(rank=rank) for rank in range(ranks)]
        self.requests: dict[str, Open] = {}
        self.closed = ""
        self.recovering: set[int] = set()
        self.gone: dict[int, str] = {}
        """Ranks that have ended, and why."""
        self._send = send
        self._on_violation = on_violation
        self._restarts = restarts
        self._group_of = {rank: index for index, members in enumerate(groups) for rank in members}
        self._held: dict[str, Held] = {}
        self._waits = Waits()

    # --- Requests ----------------------------------------------------------------------------------------------------

    def add(self, request: NewRequest, deliver: Deliver) -> None:
        """Send a request to the rank with the least load; or hold it, while paused with `keep` (case B107).

        Raises:
            TryLater: none is taken now. EngineDead: nor will be. Nothing of it is kept.
        """
        self._not_meanwhile()
        if self.dead:
            raise EngineDead(self.dead)
        if self.closed:
            raise TryLater(self.closed)
        try:
            rank, fleet = balance.place(self.fleet, len(request.prompt))
            group = self._group_of[rank]
            answer = protocol.admission(self.fronts[group], rank)
            front, sent = protocol.request(self.fronts[group], rank)
        except RequestRefused as error:
            raise TryLater(self._refused or str(error)) from None
        if answer == "hold":
            self.fronts[group] = front
            self._held[request.id] = Held(request, deliver, group)
            return
        self.fleet = fleet
        self.requests[request.id] = Open(rank, deliver)
        self._publish(group, front, sent, request)

    @property
    def coming_back(self) -> bool:
        """Whether no rank lives, and some are being started again."""
        return bool(self.dead and self.recovering)

    def _not_meanwhile(self) -> None:
        if self.coming_back:
            raise TryLater(f"the engine is being started again ({self.dead}); send the request again later")

    @property
    def _refused(self) -> str:
        if self.paused is None:
            return ""
        return f"the engine is paused ({self.paused}); send the request again after it was resumed"

    def abort(self, ids: Iterable[str]) -> None:
        """End these requests: their ranks are told, and whoever waits for them at once. Unknown ones are left alone."""
        ranks: dict[int, list[str]] = {}
        for id in ids:
            known = self.requests.pop(id, None)
            if known is not None:
                ranks.setdefault(known.rank, []).append(id)
                known.deliver(Output(id=id, finish_reason="abort"), known.rank)
            else:
                self._unhold(id, Output(id=id, finish_reason="abort"))
        for rank, there in ranks.items():
            self._to(rank, Abort(ids=tuple(there)))

    def _unhold(self, id: str, output: Output) -> None:
        held = self._held.pop(id, None)
        if held is not None:
            self.fronts[held.group] = protocol.withdraw(self.fronts[held.group])
            held.deliver(output, -1)

    @property
    def num_held(self) -> int:
        """Requests that wait here for the end of a pause."""
        return len(self._held)

    # --- Pause, sleep ------------------------------------------------------------------------------------------------
    # They are asked of every group, also of one that has ended: it starts again as the others are then.

    @property
    def paused(self) -> PauseMode | None:
        """How the ranks are paused, or will be once they are there again."""
        return self.fronts[0].paused

    @property
    def sleeping(self) -> bool:
        """Whether they give their memory up, or have, or will."""
        return self.fronts[0].sleeping

    def pause(self, mode: PauseMode) -> None:
        """Pause all ranks; see `stopped`. Requests that come while they are paused with `keep` are held.

        Raises:
            ProtocolMisuse: it sleeps, and the requests that it keeps are to be finished.
            TryLater: all ranks are being started again. Nothing changes.
        """
        self._not_meanwhile()
        for group, front in enumerate(self.fronts):
            self._publish(group, *protocol.pause(front, mode, holds=mode == "keep"))
        if mode == "abort":
            held, self._held = self._held, {}
            for id, request in held.items():
                request.deliver(Output(id=id, finish_reason="abort"), -1)

    def resume(self) -> None:
        """End a pause, and sleep; requests that were held go to their ranks."""
        for group, front in enumerate(self.fronts):
            self._publish(group, *protocol.resume(front))
        self._waits.no_stop(ProtocolMisuse("the engine was resumed before all ranks had stopped"))
        self._hand_in()

    def _hand_in(self) -> None:
        """Send what was held to the ranks, or keep it until there are some again."""
        if self.coming_back:
            return
        held, self._held = self._held, {}
        for id, (request, deliver, group) in held.items():
            if self.fronts[group].ended:
                self.fronts[group] = protocol.withdraw(self.fronts[group])
            try:
                self.add(request, deliver)
            except OnbeatError as error:
                deliver(Output(id=id, finish_reason="error", error=str(error)), -1)

    def sleep(self) -> None:
        """Let all ranks give their memory up, once they have stopped.

        Raises:
            ProtocolMisuse: they are not paused. TryLater: all are being started again. Nothing changes.
        """
        self._not_meanwhile()
        for group, front in enumerate(self.fronts):
            self._publish(group, *protocol.sleep(front))

    def rouse(self) -> None:
        """Let all ranks take their memory back; they stay paused."""
        for group, front in enumerate(self.fronts):
            self._publish(group, *protocol.rouse(front))

    def remove(self, rank: int) -> None:
        """Let a rank leave its paused group once that has stopped; what it still has ends there.

        Raises:
            ProtocolMisuse: the group is not paused, or would be left without ranks.
        """
        group = self._group_of[rank]
        front, sent = protocol.remove(self.fronts[group], rank)
        self.fleet = balance.paused(self.fleet, rank, True)
        self._publish(group, front, sent)

    @property
    def stopped(self) -> bool:
        """Whether every rank that lives has stopped after all that happened."""
        return all(protocol.complete(self.fronts[group]) for group in self._living())

    def when_stopped(self, done: Done) -> None:
        """Call `done` once every rank has stopped: then a pause, or sleep, is complete."""
        self._waits.stop(done)
        self._settle()

    def reset_prefix_cache(self, done: Done) -> None:
        """Let every rank forget its cached blocks; call `done` when all have.

        Raises:
            TryLater: all ranks are being started again; likewise the next.
        """
        self._call(lambda call: ResetPrefixCache(call=call), done)

    def compile(self, structured: StructuredOutput, done: Done) -> None:
        """Let every rank compile a grammar beside its steps; call `done` when all have."""
        self._call(lambda call: Compile(call=call, structured=structured), done)

    def _call(self, message: Callable[[int], ToRank], done: Done) -> None:
        self._not_meanwhile()
        ranks = sorted(self._group_of.keys() - self.gone.keys())
        call = self._waits.call(ranks, done)
        for rank in ranks:
            self._to(rank, message(call))
        self._settle()

    # --- What comes from ranks ---------------------------------------------------------------------------------------

    def received(self, message: FromRank) -> None:
        """Take a message from a rank."""
        match message:
            case RankOutputs():
                for output in message.outputs:
                    self._deliver(output)
                if message.stats is not None:
                    self._reported(message.stats)
                if message.lock_steps:
                    group = self._group_of[message.rank]
                    self._judged(group, self.watches[group].observe(message.rank, message.lock_steps))
            case Answer():
                self._waits.answered(message)
            case Ended():
                if message.expected:
                    self._left(message.rank, message.why)
                else:
                    self.died(message.rank, message.why)
        self._settle()

    def died(self, rank: int, why: str) -> None:
        """A rank is gone, and with it its group: requests there end now, with the reason; the others go on."""
        if rank in self.gone:
            return
        group = self._group_of[rank]
        front, sent = protocol.died(self.fronts[group], rank)
        self._left(rank, why)
        self._publish(group, front, sent)
        for member in front.members:
            self._left(member, f"rank {rank} of its group died: {why}")
        if not self._restarts:
            self._fail_held()
        self._settle()

    def given_up(self, group: int) -> None:
        """A group that had died cannot be started again."""
        self.recovering.discard(group)
        if not self.recovering:
            self._fail_held()

    def _fail_held(self) -> None:
        if self.dead:
            for id in tuple(self._held):
                self._unhold(id, Output(id=id, finish_reason="error", error=self.dead))

    def joined(self, group: int, epoch: int) -> None:
        """A group that had died was started again; it is paused as the others are."""
        front, sent = protocol.restart(self.fronts[group])
        members = front.members
        for rank in members:
            self.gone.pop(rank, None)
            self.fleet = balance.joined(self.fleet, rank, epoch)
            self.stats[rank] = RankStats(rank=rank, epoch=epoch)
        if group in self.watches:
            self.watches[group] = GroupWatch(members, self._on_violation, self.watches[group].counts)
        self.recovering.discard(group)
        self._publish(group, front, sent)
        if front.paused is None:
            self._hand_in()

    def group_of(self, rank: int) -> int:
        """Return the number of a rank's group."""
        return self._group_of[rank]

    @property
    def dead(self) -> str:
        """Why no rank lives any more; empty: one does."""
        return "" if self._living() else "; ".join(f"rank {rank}: {why}" for rank, why in sorted(self.gone.items()))

    def _left(self, rank: int, why: str) -> None:
        """A rank is not there any more; whoever still waits for it is told."""
        if rank in self.gone:
            return
        self.gone[rank] = why
        group = self._group_of[rank]
        if group in self.watches:
            self._judged(group, self.watches[group].gone(rank))
        self.fleet = balance.removed(self.fleet, rank)
        self.stats[rank] = msgspec.structs.replace(self.stats[rank], waiting=0, running=0, tokens=0, kv_cache_usage=0.0)
        for id in [id for id, known in self.requests.items() if known.rank == rank]:
            self._deliver(Output(id=id, finish_reason="error", error=f"rank {rank} has ended: {why}"))

    def _judged(self, group: int, violation: str) -> None:
        """End a group that violates an invariant, if it is to."""
        rank = next((rank for rank in self.fronts[group].members if rank not in self.gone), None)
        if violation and rank is not None:
            self.died(rank, violation)

    def _deliver(self, output: Output) -> None:
        known = self.requests.get(output.id)
        if known is None:
            return
        if output.finish_reason is not None:
            del self.requests[output.id]
        known.deliver(output, known.rank)

    def _reported(self, stats: RankStats) -> None:
        rank = stats.rank
        if rank in self.gone:
            return
        self.stats[rank] = stats
        self.fleet = balance.reported(self.fleet, rank, stats.load)
        group = self._group_of[rank]
        self.fronts[group] = protocol.report(self.fronts[group], rank, stats.stopped)

    # --- Book-keeping ------------------------------------------------------------------------------------------------

    def _living(self) -> list[int]:
        """Groups that have a rank that lives."""
        return [
            group
            for group, front in enumerate(self.fronts)
            if not front.ended and not self.gone.keys() >= {*front.members}
        ]

    def _publish(self, group: int, front: Front, sent: Sent, request: NewRequest | None = None) -> None:
        self.fronts[group] = front
        for rank, event in sent:
            here = request if event.kind == "request" else None
            self._to(rank, LogEntry(number=event.number, kind=event.kind, mode=event.mode, request=here))

    def _to(self, rank: int, message: ToRank) -> None:
        if rank not in self.gone:
            self._send(rank, message)

    def _settle(self) -> None:
        """Tell those who wait for what is complete now."""
        self._waits.settle(lambda: self.stopped, self.gone, self.dead)
