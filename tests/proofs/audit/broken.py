"""Schedulers with one fault each, after the public cases; `test_run.py` has every one of them found out.

Those whose fault is a decision of the policy are in `broken_rules.py`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from onbeat_reference import FinishReason, Outputs, Request, Scheduler
from onbeat_reference.lifecycle import InFlight
from onbeat_spec.config import Config
from onbeat_spec.errors import RequestRefused
from onbeat_spec.policy import Policy
from onbeat_spec.records import Place, Step

# --- The step --------------------------------------------------------------------------------------------------------


class ShiftingIndex(Scheduler):
    """B38: an eviction shifts the list, and the next runnable request is skipped."""

    def _make_room(self, step: Step, request: Request, num_tokens: int) -> bool:
        evicted = len(step.evictions)
        fits = super()._make_room(step, request, num_tokens)
        if fits and len(step.evictions) > evicted:
            for skipped in self.running[self.running.index(request) + 1 :][:1]:
                skipped.eligible_at = step.index + 1
        return fits


class VictimStays(Scheduler):
    """B39: whoever was given tokens already in this pass may be preempted, and stays in the output."""

    def _serve(
        self, flight: InFlight, requests: Sequence[Request], hold: bool, owed: Sequence[int] | None = None
    ) -> tuple[list[Request], list[int]]:
        if owed is None:
            requests = tuple(reversed(requests))
        return super()._serve(flight, requests, hold, owed)


class PlaceholdersKept(Scheduler):
    """B40: a preempted request goes on awaiting what its lost KV would have sampled."""

    def _drop_kv(self, request: Request) -> int:
        awaited = request.num_placeholders
        released = super()._drop_kv(request)
        request.num_placeholders = awaited
        return released


class DraftsKept(Scheduler):
    """B55: draft tokens survive the preemption of their request."""

    def _drop_kv(self, request: Request) -> int:
        drafts = request.num_drafts
        released = super()._drop_kv(request)
        request.num_drafts = drafts
        return released


class EvictsOldest(Scheduler):
    """The oldest request pays for the youngest."""

    def _victim(self, step: Step, request: Request) -> Request:
        return self.running[0]


class EvictsForNothing(Scheduler):
    """B114: a request whose blocks are all shared is preempted, which frees none."""

    def _victim(self, step: Step, request: Request) -> Request:
        return self.running[-1]


class HalfAllocation(Scheduler):
    """B123: a request takes the blocks that are left, finds them too few, and keeps them."""

    def _make_room(self, step: Step, request: Request, num_tokens: int) -> bool:
        missing = self.pool.blocks_for(num_tokens) - request.num_blocks
        if missing > self.pool.free > 0:
            self.pool.grow(request, (request.num_blocks + self.pool.free) * self.config.block_size)
            return False
        return super()._make_room(step, request, num_tokens)


class LosesRequests(Scheduler):
    """B56: a request taken from the list when the budget is used up is never put back."""

    def schedule(self, throttle_prefills: bool = False) -> Step:
        step = super().schedule(throttle_prefills)
        if step.budget == 0 and self.running and self.running[-1].id not in step.scheduled:
            self.running.pop()
        return step


class OverBudget(Scheduler):
    """What is admitted gets all the tokens that it needs."""

    def _admit(self, flight: InFlight, request: Request, at_hand: int, external: int) -> None:
        budget, flight.step.budget = flight.step.budget, request.num_tokens
        super()._admit(flight, request, at_hand, external)
        flight.step.budget = max(0, budget - flight.step.scheduled[request.id])


# --- Admission -------------------------------------------------------------------------------------------------------


class NextChunkAdmission(Scheduler):
    """B46: admitted as soon as the next chunk has room."""

    def _has_room(self, request: Request, needed: int, slots: int, blocks: int) -> bool:
        if request.num_blocks > 0 or self.num_slots >= self.config.max_num_seqs:
            return super()._has_room(request, needed, slots, blocks)
        chunk = min(request.num_tokens, self.config.max_num_batched_tokens)
        return self.pool.need(request, chunk) <= self.pool.free


class OneTooMany(Scheduler):
    """B34: one request more than there are slots."""

    @property
    def num_slots(self) -> int:
        return super().num_slots - 1


class ReversedQueue(Scheduler):
    """B49: what a pass skipped is put back in reverse."""

    def _scan(self, flight: InFlight, requests: Sequence[Request], hold: bool) -> None:
        super()._scan(flight, requests, hold)
        self.waiting.reverse()


class HolderStuck(Scheduler):
    """B62: the scan stops at what does not fit, also for those behind it that hold the blocks."""

    def _scan(self, flight: InFlight, requests: Sequence[Request], hold: bool) -> None:
        for request in requests:
            if not flight.step.scan_over:
                super()._scan(flight, (request,), hold)


class NeverFits(Scheduler):
    """B44: a prompt longer than the pool is accepted, and waits for ever."""

    def add_request(self, request: Request) -> None:
        with suppress(RequestRefused):
            super().add_request(request)
            return
        request.arrival = self._arrivals
        self._arrivals += 1
        self.requests[request.id] = request
        self._enqueue(request)


class TwinIds(Scheduler):
    """B51: an id that is live is accepted again."""

    def add_request(self, request: Request) -> None:
        twin = self.requests.pop(request.id, None)
        super().add_request(request)
        if twin is not None:
            twin.place = Place.FINISHED


class LatchedFlag(Scheduler):
    """B13: once set, the saturation flag stays set."""

    def _write_flag(self, step: Step) -> None:
        before = self.saturated
        super()._write_flag(step)
        self.saturated = self.saturated or before


# --- Ends, loads, outputs --------------------------------------------------------------------------------------------


class AbortsById(Scheduler):
    """B52: a late abort ends whoever bears the id now."""

    def abort(self, request: Request) -> bool:
        return super().abort(self.requests.get(request.id, request))


class FreedTwice(Scheduler):
    """B65: the blocks of an aborted load return at once, and again when its notice comes."""

    def __init__(self, config: Config, policy: Policy | None = None) -> None:
        super().__init__(config, policy)
        self.owed: dict[int, int] = {}

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if request.place is Place.PARKED:
            self.owed[request.arrival] = request.num_blocks
        super()._finish(request, reason)
        if request in self.orphans:
            self.pool.release(request)

    def load_finished(self, request: Request) -> None:
        super().load_finished(request)
        self.pool.free += self.owed.pop(request.arrival, 0)


class LeaksOnAbort(Scheduler):
    """B91: the blocks of an aborted request never return."""

    def abort(self, request: Request) -> bool:
        release, self.pool.release = self.pool.release, lambda request: 0  # type: ignore[method-assign]
        try:
            return super().abort(request)
        finally:
            self.pool.release = release  # type: ignore[method-assign]


class AssertsLoading(Scheduler):
    """B65: a notice for a request that is not loading hits an assertion."""

    def load_finished(self, request: Request) -> None:
        assert request in self.parked, request
        super().load_finished(request)


class NoDeadline(Scheduler):
    """B71: a load whose answer never comes is waited for without end."""

    def _start_load(self, step: Step, request: Request) -> None:
        super()._start_load(step, request)
        request.load_deadline = 0


class NeverPromoted(Scheduler):
    """B29: the helper that says whether a load has landed returns nothing, which is taken for 'not yet'."""

    def load_finished(self, request: Request) -> None:
        if request.place is not Place.PARKED:
            super().load_finished(request)


class LoadsTwice(Scheduler):
    """B64: the store is asked again for what it has delivered."""

    def _start_load(self, step: Step, request: Request) -> None:
        offered = request.remote_tokens
        super()._start_load(step, request)
        request.remote_tokens = offered


class DeliversTwice(Scheduler):
    """B40: what a preempted request sampled is delivered, and sampled and delivered again."""

    def update(
        self, step: Step, sampled: Mapping[str, Sequence[int]], drafts: Mapping[str, int] | None = None
    ) -> Outputs:
        outputs = super().update(step, sampled, drafts)
        for id, tokens in outputs.tokens.items():
            request = self.requests.get(id)
            if request is not None and request.num_preemptions:
                outputs.tokens[id] = [*tokens, *tokens]
        return outputs


# --- The throttle flag -----------------------------------------------------------------------------------------------


class NoFlag(Scheduler):
    """B25: `schedule` does not take the throttle flag."""

    def schedule(self) -> Step:  # type: ignore[override]
        return super().schedule(False)


class FlagInverted(Scheduler):
    """The flag arrives the wrong way round."""

    def schedule(self, throttle_prefills: bool = False) -> Step:
        return super().schedule(not throttle_prefills)


class FlagIgnored(Scheduler):
    """The flag is taken and dropped: nothing is violated, and nothing that speaks of holds is shown either."""

    def schedule(self, *args: Any, **kwargs: Any) -> Step:
        return super().schedule()


class FlagForwarded(Scheduler):
    """Right: whatever comes is handed on."""

    def schedule(self, *args: Any, **kwargs: Any) -> Step:
        return super().schedule(*args, **kwargs)


class OwnClock(Scheduler):
    """B27: the step counter that clocks rely on does not advance."""

    def schedule(self, throttle_prefills: bool = False) -> Step:
        step = super().schedule(throttle_prefills)
        self.num_steps -= step.index > 0
        return step


class RaisesWhenSomebodyWaits(Scheduler):
    """Raises in the first step in which there is something to do."""

    def schedule(self, throttle_prefills: bool = False) -> Step:
        if self.waiting:
            raise ValueError("somebody waits")
        return super().schedule(throttle_prefills)


class RaisesWhenRead(Scheduler):
    """Raises where its state is only looked at."""

    @property
    def num_slots(self) -> int:
        if self.num_steps > 1:
            raise ValueError("two steps were taken")
        return super().num_slots
