"""An abort, wherever the request is."""

from collections.abc import Callable

import pytest

from onbeat_reference import FinishReason, Request, Scheduler
from onbeat_spec.records import Place
from tests.reference.helpers import at_rest, land, owners, parked, photo, request, scheduler, turn, turns


def waiting() -> tuple[Scheduler, Request]:
    a = request("a", 4)
    return scheduler(a), a


def running() -> tuple[Scheduler, Request]:
    made, a = waiting()
    turns(made, 3)
    return made, a


def chunk() -> tuple[Scheduler, Request]:
    a = request("a", 40)
    made = scheduler(a, max_num_batched_tokens=8)
    turn(made)
    return made, a


def in_flight() -> tuple[Scheduler, Request]:
    made, a = running()
    made.schedule()
    return made, a


def in_flight_twice() -> tuple[Scheduler, Request]:
    a = request("a", 4)
    made = scheduler(a, async_depth=2)
    made.schedule()
    made.schedule()
    return made, a


def drafted() -> tuple[Scheduler, Request]:
    a = request("a", 4)
    made = scheduler(a, num_draft_tokens=3)
    made.schedule()
    land(made, drafts={"a": 3})
    made.schedule()
    return made, a


def preempted() -> tuple[Scheduler, Request]:
    made, a = running()
    made.reset_prefix_cache()
    return made, a


def preempted_in_flight() -> tuple[Scheduler, Request]:
    made, a = in_flight_twice()
    made.reset_prefix_cache()
    return made, a


def landed() -> tuple[Scheduler, Request]:
    made, r = parked()
    made.load_finished(r)
    return made, r


def just_loading() -> tuple[Scheduler, Request]:
    r = request("r", 12, remote=8, mode="sync")
    made = scheduler(r)
    made.schedule()
    return made, r


PLACES = [waiting, running, chunk, in_flight, in_flight_twice, drafted, preempted, preempted_in_flight, landed]


@pytest.mark.parametrize("place", [*PLACES, just_loading, parked])
def test_an_abort_ends_a_request_wherever_it_is(place: Callable[[], tuple[Scheduler, Request]]) -> None:
    made, a = place()
    assert made.abort(a) is True
    assert (a.place, a.finish_reason) == (Place.FINISHED, FinishReason.ABORT)
    assert (made.num_slots, owners(made), made.requests) == (0, made.orphans, {})
    assert a.num_placeholders == a.num_drafts == 0
    before = photo(made)
    assert made.abort(a) is False  # B52: late
    assert photo(made) == before
    known = a.num_tokens
    while made.in_flight:  # what comes back finds nobody
        outputs = land(made)
        assert (outputs.tokens, outputs.finished) == ({}, [])
    assert a.num_tokens == known
    made.load_finished(a)
    assert at_rest(made)
    assert turn(made).scheduled == {}


def test_an_abort_spares_the_next_of_its_name() -> None:
    old, new = request("a", 4, 1), request("a", 4)
    made = scheduler(old)
    turn(made)
    made.add_request(new)
    for stranger in (old, request("a", 4), request("b", 4)):
        before = photo(made)
        assert made.abort(stranger) is False
        assert photo(made) == before
    assert made.requests["a"] is new


def test_an_abort_makes_room() -> None:
    a = request("a", 12)
    made = scheduler(a, request("b", 8), num_blocks=4)
    assert turn(made).scheduled == {"a": 12}
    made.abort(a)
    assert turn(made).scheduled == {"b": 8}
