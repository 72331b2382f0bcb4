"""Partial states: of the requests around a step, those that it did not plainly serve.

They are what a live monitor looks at and what a recorder writes down. A decode batch in which everybody got a token
costs a few sums.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from onbeat_reference.lifecycle import Lifecycle
from onbeat_spec.policy import is_decode, local_work
from onbeat_spec.records import Place, Request, State, Step, View, view

R = TypeVar("R", Request, View)


class Totals(NamedTuple):
    """What a partial state says of all requests; the names are those of `State`."""

    free: int
    promised: int
    num_running: int
    num_loading: int
    num_slots: int
    in_flight: int


class Parts:
    """Looks at one scheduler of the reference's kind after each of its steps.

    Args:
        scheduler: the scheduler, between two steps.
    """

    def __init__(self, scheduler: Lifecycle) -> None:
        self.scheduler = scheduler
        self._saturated = scheduler.saturated

    def around(self, step: Step) -> tuple[State, State]:
        """Return the parts of the states before and after the latest step that it did not treat plainly."""
        scheduler = self.scheduler
        before: dict[str, View] = {}
        after: dict[str, View] = {}
        if len(scheduler.running) != len(step.scheduled):
            for request in scheduler.running:
                if request.id not in step.scheduled:
                    before[request.id] = after[request.id] = view(request)
        for id in (*step.held, *step.admitted, *step.loading, *(eviction.victim for eviction in step.evictions)):
            after[id] = view(scheduler.requests[id])
            before[id] = was(step, after[id])
        holders = scheduler.num_slots - len(scheduler.running) - len(scheduler.parked)
        for left in left_waiting(scheduler.waiting, step.index, holders):
            after[left.id] = view(left)
            before.setdefault(left.id, after[left.id])
        flag, self._saturated = self._saturated, scheduler.saturated
        totals = self.totals()
        now = partial(after, totals, scheduler.saturated)
        # Mostly nothing stands out, and one state is both sides.
        plain = not before and flag == scheduler.saturated
        parts = now if plain else partial(before, totals, flag), now
        for eviction in step.evictions:
            # Not listed: only who it is counts here, and what it held before is not known any more.
            before.setdefault(eviction.cause, view(scheduler.requests[eviction.cause]))
        return parts

    def totals(self) -> Totals:
        """Count everybody."""
        scheduler = self.scheduler
        return Totals(
            free=scheduler.pool.free,
            promised=scheduler.pool.promised,
            num_running=len(scheduler.running),
            num_loading=len(scheduler.parked) + len(scheduler.orphans),
            num_slots=scheduler.num_slots,
            in_flight=len(scheduler.in_flight),
        )


def was(step: Step, now: View) -> View:
    """Reconstruct how a request stood before a step that admitted, loaded, held or preempted it."""
    if now.id in step.scheduled:
        at_hand = now.num_computed - step.scheduled[now.id]
        landed = now.id in step.resumed
        return now._replace(
            place=Place.WAITING,
            num_computed=at_hand if landed else 0,
            num_placeholders=0,
            external=now.external if landed else 0,
            remote_tokens=0 if landed else now.external,
            num_blocks=now.num_blocks if landed else 0,
        )
    if now.place is Place.PARKED:
        return now._replace(place=Place.WAITING, remote_tokens=now.external, external=0, num_blocks=0)
    if now.place is Place.WAITING and now.id not in step.held:
        return now._replace(place=Place.RUNNING)
    return now


def left_waiting(waiting: Iterable[R], now: int, holders: int) -> list[R]:
    """Return the first waiting request that could run, the first fresh prefill, and holders that may not run.

    Args:
        waiting: in their order; only as many as needed are looked at.
        now: number of the step that left them.
        holders: how many of them hold blocks.
    """
    left: list[R] = []
    seen_ready = seen_fresh = False
    for request in waiting:
        if request.eligible_at > now:
            if request.num_blocks > 0:
                left.append(request)
            continue
        fresh = request.num_blocks == 0 and request.remote_tokens == 0 and not is_decode(local_work(request))
        if (fresh and not seen_fresh) or not seen_ready:
            left.append(request)
        seen_ready, seen_fresh = True, seen_fresh or fresh
        if seen_fresh and not holders:
            break
    return left


def partial(requests: Mapping[str, View], totals: Totals, saturated: bool) -> State:
    """Return the state that lists these requests."""
    running, waiting, parked = (
        tuple([id for id, request in requests.items() if request.place is place])
        for place in (Place.RUNNING, Place.WAITING, Place.PARKED)
    )
    return State(
        requests=requests,
        running=running,
        waiting=waiting,
        parked=parked,
        free=totals.free,
        promised=totals.promised,
        saturated=saturated,
        num_running=totals.num_running,
        num_loading=totals.num_loading,
        num_slots=totals.num_slots,
        held=-1,
        in_flight=totals.in_flight,
    )
