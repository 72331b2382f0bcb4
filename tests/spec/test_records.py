"""The records: what a view copies, and what a step begins with."""

from dataclasses import FrozenInstanceError, fields

import pytest

from onbeat_spec.records import Facts, Place, Request, Step, View, view
from tests.spec.builders import CONFIG, decode, facts, state


def test_a_view_names_fields_of_a_request() -> None:
    assert set(View._fields) <= set(Request.__slots__)


def test_a_view_copies_every_field_that_it_names() -> None:
    """A value of its own in every field: a field left out, copied twice or into its neighbour is seen."""
    request = Request("a", 4, 8)
    for name in Request.__slots__:
        setattr(request, name, f"the value of {name}")
    assert view(request)._asdict() == {name: f"the value of {name}" for name in View._fields}


def test_a_view_stands_still() -> None:
    request = Request("a", 4, 8)
    before = view(request)
    request.num_computed, request.place = 4, Place.RUNNING
    assert (before.num_computed, before.place) == (0, Place.WAITING)
    assert view(request) == before._replace(num_computed=4, place=Place.RUNNING)


def test_a_request_begins_with_nothing_but_its_prompt() -> None:
    request = Request("a", 4, 20, priority=-1, remote_tokens=3)
    assert view(request) == View(
        id="a",
        priority=-1,
        arrival=0,
        limit=20,
        num_prompt=4,
        num_tokens=4,
        num_placeholders=0,
        num_computed=0,
        num_drafts=0,
        external=0,
        remote_tokens=3,
        sync_load=False,
        num_blocks=0,
        reserved=0,
        eligible_at=0,
        place=Place.WAITING,
    )
    assert (request.load_deadline, request.num_preemptions) == (0, 0)


def test_every_field_of_a_request_is_set_from_the_start() -> None:
    request = Request("a", 4, 20)
    assert [name for name in Request.__slots__ if not hasattr(request, name)] == []


def test_a_request_shows_its_counts() -> None:
    request = Request("a", 4, 8)
    request.num_placeholders, request.num_computed, request.num_blocks = 1, 3, 2
    assert repr(request) == "<a waiting tokens=4+1 computed=3 blocks=2>"


def test_steps_share_nothing() -> None:
    one, other = Step(0, False), Step(1, True)
    for field in fields(Step):
        value = getattr(one, field.name)
        assert not isinstance(value, dict | list) or (not value and value is not getattr(other, field.name)), field.name


def test_a_step_begins_open_and_empty() -> None:
    step = Step(3, True)
    assert (step.index, step.throttle, step.open) == (3, True, True)
    assert not any((step.hold, step.lifted, step.scan_over, step.prefill, step.wrote_flag, step.saturated, step.budget))


@pytest.mark.parametrize(
    ("hold", "lifted", "holding"),
    [(False, False, False), (True, False, True), (True, True, False), (False, True, False)],
)
def test_a_lifted_hold_is_none(hold: bool, lifted: bool, holding: bool) -> None:
    assert Step(0, True, hold=hold, lifted=lifted).holding is holding


def test_states_and_facts_do_not_change() -> None:
    before = state(decode("a"))
    seen = facts(before)
    with pytest.raises(FrozenInstanceError):
        before.free = 0  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        seen.after = state()  # type: ignore[misc]
    assert seen == Facts(CONFIG, before, seen.step, before)


def test_the_places() -> None:
    assert [place.value for place in Place] == ["waiting", "parked", "running", "finished"]
