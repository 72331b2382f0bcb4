"""How requests get their outputs, and how they end by them."""

from collections.abc import Mapping, Sequence

import pytest

from onbeat_reference import FinishReason
from onbeat_spec.policy import local_work
from onbeat_spec.records import Place
from tests.reference.helpers import at_rest, land, misuse, request, scheduler, turn, turns

# --- Outputs ---------------------------------------------------------------------------------------------------------


def test_outputs_come_back_in_order_and_once() -> None:
    made = scheduler(request("a", 4), async_depth=2)
    first, second = made.schedule(), made.schedule()
    assert misuse(made, second, {"a": [1]}) == (
        "step 1 is not the oldest in flight; update() takes them in order, once"
    )
    made.update(first, {"a": [1]})
    assert misuse(made, first, {"a": [1]}) == "step 0 is not the oldest in flight; update() takes them in order, once"
    made.update(second, {"a": [1]})
    assert misuse(made, second, {"a": [1]}).startswith("step 1 is not the oldest in flight")


def test_the_step_of_another_scheduler_is_not_in_flight() -> None:
    made, other = scheduler(request("a", 4)), scheduler(request("a", 4))
    made.schedule()
    assert misuse(made, other.schedule(), {"a": [1]}).startswith("step 0 is not the oldest in flight")


@pytest.mark.parametrize(
    ("sampled", "lacking"),
    [
        ({}, "a, b"),
        ({"a": [1]}, "b"),
        ({"b": [1], "c": [1]}, "a"),
        ({"a": [1], "b": []}, "b"),
    ],
)
def test_whoever_sampled_has_a_token(sampled: Mapping[str, Sequence[int]], lacking: str) -> None:
    """c is a chunk and samples nothing."""
    made = scheduler(request("a", 4), request("b", 4), request("c", 9), max_num_batched_tokens=12)
    step = made.schedule()
    assert misuse(made, step, sampled) == f"step 0: no sampled token for {lacking}"
    assert made.update(step, {"a": [1], "b": [2], "c": [3]}).tokens == {"a": [1], "b": [2]}


def test_a_step_of_chunks_delivers_nothing() -> None:
    made = scheduler(request("a", 9), max_num_batched_tokens=4)
    outputs = made.update(made.schedule(), {})
    assert (outputs.tokens, outputs.finished) == ({}, [])


def test_an_empty_step_is_updated_too() -> None:
    made = scheduler()
    step = made.schedule()
    assert made.in_flight
    made.update(step, {})
    assert not made.in_flight


def test_tokens_are_appended_as_sampled() -> None:
    a = request("a", 4)
    made = scheduler(a)
    for token in (7, 8, 9):
        made.schedule()
        land(made, token=token)
    assert (a.tokens[4:], a.num_tokens, a.num_computed, local_work(a)) == ([7, 8, 9], 7, 6, 1)


# --- Ends ------------------------------------------------------------------------------------------------------------


def test_a_stop_token_is_delivered_and_ends() -> None:
    a = request("a", 4, stop=(98, 99))
    made = scheduler(a)
    turns(made, 2, token=97)
    made.schedule()
    outputs = land(made, token=99)
    assert (outputs.tokens, outputs.finished) == ({"a": [99]}, [a])
    assert (a.finish_reason, a.place, a.num_tokens) == (FinishReason.STOP, Place.FINISHED, 7)
    assert at_rest(made)


def test_the_last_token_allowed_ends() -> None:
    a = request("a", 4, 3)
    made = scheduler(a)
    assert turns(made, 4) == [{"a": 4}, {"a": 1}, {"a": 1}, {}]
    assert (a.finish_reason, a.num_tokens) == (FinishReason.LENGTH, 7)
    assert at_rest(made)


def test_a_stop_token_in_the_last_place_is_a_stop() -> None:
    a = request("a", 4, 1, stop=(1,))
    turn(scheduler(a))
    assert a.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("tokens", "delivered", "reason"),
    [
        ([5, 6, 7], [5, 6, 7], None),
        ([5, 99, 7], [5, 99], FinishReason.STOP),
        ([99, 99, 99], [99], FinishReason.STOP),
        ([5, 6, 99], [5, 6, 99], FinishReason.STOP),
        ([5, 6, 7, 8], [5, 6, 7, 8], FinishReason.LENGTH),
        ([5, 6, 7, 99], [5, 6, 7, 99], FinishReason.STOP),
    ],
)
def test_what_was_accepted_behind_an_end_is_not_delivered(
    tokens: list[int], delivered: list[int], reason: FinishReason | None
) -> None:
    """Four tokens are left, three of them drafted."""
    a = request("a", 4, 5, stop=(99,))
    made = scheduler(a, num_draft_tokens=3)
    made.schedule()
    land(made, drafts={"a": 3})
    step = made.schedule()
    assert step.scheduled == {"a": 4}
    outputs = made.update(step, {"a": tokens})
    assert (outputs.tokens["a"], a.tokens[5:], a.finish_reason) == (delivered, delivered, reason)
    assert a.num_tokens == len(a.tokens) == 5 + len(delivered)
    assert outputs.finished == ([a] if reason else [])
    assert at_rest(made) == (reason is not None)


def test_what_is_in_flight_behind_an_end_is_dropped() -> None:
    a, b = request("a", 4, stop=(99,)), request("b", 4)
    made = scheduler(a, b, async_depth=2)
    first, second = made.schedule(), made.schedule()
    outputs = made.update(first, {"a": [99], "b": [1]})
    assert outputs.finished == [a]
    assert (made.pool.free, a.num_blocks) == (98, 0)
    assert made.update(second, {"a": [5], "b": [2]}).tokens == {"b": [2]}
    assert (a.tokens[4:], b.tokens[4:]) == ([99], [1, 2])


def test_nobody_has_to_sample_for_who_has_ended() -> None:
    a, b = request("a", 4, stop=(99,)), request("b", 4)
    made = scheduler(a, b, async_depth=2)
    first, second = made.schedule(), made.schedule()
    made.update(first, {"a": [99], "b": [1]})
    assert misuse(made, second, {}) == "step 1: no sampled token for b"
    assert made.update(second, {"b": [2]}).tokens == {"b": [2]}
