"""What invariants see of a scheduler: its state as a value."""

from onbeat_reference.schedulable import Observable
from onbeat_spec.records import State, view


def observe(scheduler: Observable, *, loads_hold_slots: bool = True) -> State:
    """Return the whole state of a scheduler, as a value that later steps do not change.

    Args:
        scheduler: between two calls.
        loads_hold_slots: a request takes its slot when its remote load starts, not when it runs.
    """
    lists = (scheduler.running, scheduler.waiting, scheduler.parked)
    orphans = {f"{r.id}#{r.arrival}": view(r) for r in scheduler.orphans}
    listed = {r.id: view(r) for requests in lists for r in requests}
    # Live, and in no list: nobody would ever see it again (case B56).
    lost = {id: view(r) for id, r in scheduler.requests.items() if id not in listed}
    owners = [r for requests in (*lists, scheduler.orphans) for r in requests]
    return State(
        requests=listed | lost | orphans,
        running=tuple(r.id for r in scheduler.running),
        waiting=tuple(r.id for r in scheduler.waiting),
        parked=tuple(r.id for r in scheduler.parked),
        free=scheduler.pool.free,
        promised=scheduler.pool.promised,
        saturated=scheduler.saturated,
        num_running=len(scheduler.running),
        num_loading=len(scheduler.parked) + len(scheduler.orphans),
        num_slots=len(scheduler.running) + (_loads(scheduler) if loads_hold_slots else 0),
        held=scheduler.pool.held(owners),
        held_by_running=scheduler.pool.held(scheduler.running),
        in_flight=len(scheduler.in_flight),
    )


def _loads(scheduler: Observable) -> int:
    """Count those that wait for a load, or have had one and wait to run."""
    return len(scheduler.parked) + sum(1 for r in scheduler.waiting if r.num_blocks > 0)
