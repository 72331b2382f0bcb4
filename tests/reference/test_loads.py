"""Remote KV loads: beforehand, within the step, late, and never."""

from collections.abc import Callable
from typing import Literal

import pytest

from onbeat_reference import FinishReason, Request, Scheduler
from onbeat_spec.records import Place
from tests.reference.helpers import (
    at_rest,
    ids,
    land,
    parked,
    photo,
    refusal,
    request,
    scheduler,
    text,
    turn,
    turns,
    unconfirmed,
)

# --- Remote KV: beforehand -------------------------------------------------------------------------------------------


def test_a_load_takes_its_blocks_and_promises_the_rest() -> None:
    made, r = parked()
    assert (r.place, ids(made.parked), r.external, r.remote_tokens) == (Place.PARKED, ["r"], 8, 0)
    assert (r.num_blocks, r.reserved, r.num_computed, made.num_slots) == (2, 2, 0, 1)
    assert turn(made).scheduled == {}


@pytest.mark.parametrize(("prompt", "remote", "computed"), [(12, 8, 8), (12, 12, 11), (12, 5, 5), (1, 1, 0)])
def test_a_load_that_landed_goes_on_behind_it(prompt: int, remote: int, computed: int) -> None:
    """Of a prompt that was loaded altogether the last token is computed again: it is what samples."""
    made, r = parked(prompt, remote)
    made.load_finished(r)
    assert (r.place, r.num_computed, r.external, made.num_slots) == (Place.WAITING, computed, remote, 1)
    step = turn(made)
    assert (step.scheduled, step.admitted, step.resumed) == ({"r": prompt - computed}, ["r"], ["r"])
    assert (r.num_tokens, made.num_slots) == (prompt + 1, 1)


@pytest.mark.parametrize(("from_block", "valid"), [(0, 0), (1, 4), (2, 8), (3, 8), (99, 8), (-1, 0)])
def test_a_load_that_failed_goes_on_from_its_first_bad_block(from_block: int, valid: int) -> None:
    made, r = parked()
    made.load_failed(r, from_block)
    assert (r.place, r.num_computed, r.external, r.num_blocks) == (Place.WAITING, valid, valid, 2)
    assert turn(made).scheduled == {"r": 12 - valid}
    assert r.num_blocks == 3


def test_a_load_that_failed_altogether_waits_for_the_beat() -> None:
    """It has blocks, and is a fresh prefill all the same."""
    made, r = parked()
    made.add_request(request("d", 1))
    turn(made)
    made.load_failed(r)
    assert turn(made, throttle=True).held == ["r"]
    assert turn(made).scheduled == {"r": 12, "d": 1}


def test_a_load_costs_no_tokens_and_no_hold_keeps_it() -> None:
    made = scheduler(request("a", 4), request("r", 12, remote=8), max_num_batched_tokens=4)
    step = turn(made)
    assert (step.scheduled, step.loading, step.budget) == ({"a": 4}, ["r"], 0)
    made.add_request(request("s", 12, remote=8))
    step = turn(made, throttle=True)
    assert (step.hold, step.loading, step.held) == (True, ["s"], [])


def test_a_load_that_landed_has_its_slot() -> None:
    made, r = parked(max_num_seqs=1)
    made.load_finished(r)
    assert turn(made).scheduled == {"r": 4}


def test_a_load_that_landed_has_its_promise() -> None:
    """One block is free, and it is its own."""
    made, r = parked(num_blocks=3)
    assert (made.pool.free, made.pool.promised) == (1, 1)
    made.load_finished(r)
    assert turn(made).scheduled == {"r": 4}


def test_a_load_needs_a_slot() -> None:
    made, _ = parked(max_num_seqs=1)
    made.add_request(request("a", 4))
    step = turn(made)
    assert (step.scheduled, step.scan_over, step.saturated) == ({}, True, True)


@pytest.mark.parametrize(("num_blocks", "loads"), [(4, False), (5, True)])
def test_a_load_needs_room_for_the_whole_request(num_blocks: int, loads: bool) -> None:
    made = scheduler(request("a", 8), request("r", 11, remote=4), num_blocks=num_blocks)
    assert turn(made).loading == (["r"] if loads else [])


@pytest.mark.parametrize(
    ("max_tokens", "drafts", "blocks"),
    [
        (1, 3, 3),  # it ends with its first token, and decodes never
        (2, 0, 4),
        (9, 3, 4),
        (9, 4, 5),  # a token and four drafts
        (5, 4, 4),  # as far as it may go: 16 of 17 tokens have KV
    ],
)
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_load_needs_room_for_its_first_decode_step(
    mode: Literal["async", "sync"], max_tokens: int, drafts: int, blocks: int
) -> None:
    for num_blocks, comes in ((blocks + 1, False), (blocks + 2, True)):
        r = request("r", 12, max_tokens, remote=8, mode=mode)
        made = scheduler(request("a", 8), r, num_blocks=num_blocks, num_draft_tokens=drafts)
        made.schedule()
        assert (r.place is not Place.WAITING) == comes
        assert not comes or r.num_blocks + r.reserved == blocks


def test_drafts_use_the_promise_of_their_own_request() -> None:
    """Three blocks are free and promised: two to the request that drafts, one to a load, which keeps it."""
    r, b = request("r", 8, 9, remote=8), request("b", 4, 2, remote=4)
    made = scheduler(r, b, num_blocks=6, num_draft_tokens=4)
    turn(made)
    made.load_finished(r)
    turn(made, drafts={"r": 4})
    assert (made.pool.free, r.reserved, b.reserved) == (3, 2, 1)
    assert turn(made).drafts == {"r": 4}
    assert (made.pool.free, r.reserved, b.reserved) == (1, 0, 1)


def test_what_is_cached_is_not_loaded() -> None:
    p = text("p", 12)
    for remote, loads in ((8, False), (9, True)):
        made = scheduler(request("a", p, 1), enable_prefix_caching=True)
        turn(made)
        r = request("r", [*p[:8], 1, 2, 3, 4], remote=remote)
        made.add_request(r)
        step = turn(made)
        assert (step.loading, step.scheduled) == ((["r"], {}) if loads else ([], {"r": 4}))
        assert r.remote_tokens == 0


@pytest.mark.parametrize(("remote", "computed", "external"), [(4, 4, 0), (8, 4, 0), (9, 3, 9), (12, 1, 12)])
def test_what_is_cached_is_not_loaded_within_the_step_either(remote: int, computed: int, external: int) -> None:
    p = text("p", 12)
    r = request("r", [*p[:8], 1, 2, 3, 4], remote=remote, mode="sync")
    made = scheduler(request("a", p, 1), enable_prefix_caching=True)
    turn(made)
    made.add_request(r)
    assert made.schedule().scheduled == {"r": computed}
    assert (r.external, unconfirmed(made, r)) == (external, external > 0)


def test_cached_blocks_at_its_head_are_shared_by_a_load() -> None:
    p = text("p", 12)
    a = request("a", p, 9)
    made = scheduler(a, enable_prefix_caching=True)
    turn(made)
    r = request("r", [*p[:8], 1, 2, 3, 4], remote=12)
    made.add_request(r)
    turn(made)
    assert r.blocks[:2] == a.blocks[:2]
    assert (r.num_blocks, made.pool.free) == (3, 95)
    made.load_finished(r)
    assert turn(made).scheduled == {"a": 1, "r": 1}


def test_a_preempted_request_does_not_load_again() -> None:
    made, r = parked()
    made.load_finished(r)
    turn(made)
    made.reset_prefix_cache()
    assert (r.place, r.external, r.remote_tokens, r.num_blocks) == (Place.WAITING, 0, 0, 0)
    assert turn(made).scheduled == {"r": 13}


# --- Remote KV: within the step --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("remote", "scheduled"), [(8, 4), (12, 1), (1, 11)])
def test_a_load_within_the_step_counts_as_computed(remote: int, scheduled: int) -> None:
    r = request("r", 12, remote=remote, mode="sync")
    made = scheduler(r)
    step = made.schedule()
    assert (step.loading, step.admitted, step.resumed, step.scheduled) == ([], ["r"], [], {"r": scheduled})
    assert (r.external, r.remote_tokens, unconfirmed(made, r), r.num_computed) == (remote, 0, True, 12)
    land(made)
    assert (unconfirmed(made, r), r.num_tokens) == (False, 13)


@pytest.mark.parametrize(("from_block", "again"), [(0, 12), (1, 8), (2, 4)])
def test_a_load_within_the_step_that_failed_is_taken_back(from_block: int, again: int) -> None:
    r = request("r", 12, remote=12, mode="sync")
    made = scheduler(r, enable_prefix_caching=True)
    step = made.schedule()
    made.load_failed(r, from_block)
    assert (r.num_computed, r.num_placeholders, r.external, unconfirmed(made, r)) == (12 - again, 0, 12 - again, False)
    assert made.update(step, {"r": [5]}).tokens == {}  # what the step sampled is void
    assert turn(made, token=6).scheduled == {"r": again}
    assert r.tokens[12:] == [6]


def test_bad_blocks_of_a_load_are_not_cached() -> None:
    r = request("r", text("p", 12), remote=12, mode="sync")
    made = scheduler(r, enable_prefix_caching=True)
    made.schedule()
    made.load_failed(r, 1)
    made.abort(r)
    land(made)
    made.add_request(request("s", text("p", 12)))
    assert turn(made).scheduled == {"s": 8}


def test_cached_blocks_that_a_failed_load_was_given_are_forgotten_too() -> None:
    p = text("p", 12)
    r = request("r", [*p, 1, 2, 3, 4], remote=16, mode="sync")
    made = scheduler(request("a", p, 1), enable_prefix_caching=True)
    turn(made)
    made.add_request(r)
    made.schedule()
    assert (r.num_computed, unconfirmed(made, r)) == (16, True)
    made.load_failed(r, 1)
    made.abort(r)
    land(made)
    made.add_request(request("s", [*p, 1]))
    assert turn(made).scheduled == {"s": 9}


def test_what_was_not_confirmed_is_not_cached() -> None:
    r = request("r", text("p", 12), remote=12, mode="sync")
    made = scheduler(r, enable_prefix_caching=True)
    made.schedule()
    made.abort(r)
    land(made)
    made.add_request(request("s", text("p", 12)))
    assert turn(made).scheduled == {"s": 12}


def test_a_load_may_fail_under_a_chunk() -> None:
    r = request("r", 12, remote=8, mode="sync")
    made = scheduler(r, max_num_batched_tokens=3)
    step = made.schedule()
    assert (step.scheduled, r.num_computed, unconfirmed(made, r)) == ({"r": 3}, 11, True)
    made.load_failed(r, 1)
    assert made.update(step, {}).tokens == {}
    assert (r.num_computed, turns(made, 4)) == (4, [{"r": 3}, {"r": 3}, {"r": 2}, {"r": 1}])


def test_a_load_within_the_step_that_brought_everything_valid_has_not_failed() -> None:
    r = request("r", 12, remote=8, mode="sync")
    made = scheduler(r)
    made.schedule()
    before = photo(made)
    made.load_failed(r, 2)
    assert photo(made) == before


def test_two_steps_ahead_both_results_of_a_failed_load_are_void() -> None:
    r = request("r", 12, remote=12, mode="sync")
    made = scheduler(r, async_depth=2)
    first, second = made.schedule(), made.schedule()
    assert second.scheduled == {"r": 1}
    made.load_failed(r)
    assert made.update(first, {"r": [5]}).tokens == {}
    assert made.update(second, {"r": [6]}).tokens == {}
    assert turn(made, token=7).scheduled == {"r": 12}
    assert r.tokens[12:] == [7]


# --- Remote KV: late, and never --------------------------------------------------------------------------------------

NOTICES: list[Callable[[Scheduler, Request], object]] = [
    Scheduler.load_finished,
    Scheduler.load_failed,
    lambda made, r: made.load_failed(r, 1),
]


@pytest.mark.parametrize("notice", NOTICES, ids=["landed", "failed", "failed from block 1"])
@pytest.mark.parametrize(
    "where", ["waiting", "landed", "in flight", "running", "chunk", "never loaded", "preempted", "ended", "unknown"]
)
def test_a_notice_for_anything_but_a_load_in_flight_changes_nothing(
    where: str, notice: Callable[[Scheduler, Request], object]
) -> None:
    if where == "waiting":
        r = request("r", 12, remote=8)
        made = scheduler(r)
    elif where == "unknown":
        made, r = parked()[0], request("r", 12, remote=8)
    elif where in ("chunk", "never loaded"):
        r = request("r", 12)
        made = scheduler(r, max_num_batched_tokens=5)
        turn(made)
        if where == "never loaded":
            made.schedule()
    else:
        made, r = parked()
        made.load_finished(r)
        if where == "in flight":
            made.schedule()
        elif where != "landed":
            turn(made)
        if where == "preempted":
            made.reset_prefix_cache()
        if where == "ended":
            made.abort(r)
    before = photo(made)
    notice(made, r)
    assert photo(made) == before


@pytest.mark.parametrize("timeout", [1, 3])
def test_a_load_is_given_up_at_its_deadline(timeout: int) -> None:
    made, r = parked(remote_load_timeout=timeout)
    assert r.load_deadline == timeout
    for _ in range(timeout - 1):
        assert turn(made).cancelled == []
    step = turn(made)
    assert (step.index, step.cancelled, step.resumed, step.scheduled) == (timeout, ["r"], ["r"], {"r": 12})
    assert (r.external, r.load_deadline) == (0, 0)
    before = photo(made)
    made.load_finished(r)
    assert photo(made) == before


def test_a_load_that_landed_has_no_deadline_any_more() -> None:
    made, r = parked(remote_load_timeout=2, max_num_batched_tokens=2)
    made.load_finished(r)
    assert r.load_deadline == 0
    steps = [turn(made) for _ in range(3)]
    assert [step.scheduled for step in steps] == [{"r": 2}, {"r": 2}, {"r": 1}]
    assert not any(step.cancelled for step in steps)


def test_without_a_timeout_a_load_is_waited_for() -> None:
    made, r = scheduler(), request("r", 12, remote=8)
    turns(made, 3)
    made.add_request(r)
    turns(made, 50)
    assert (r.place, r.load_deadline) == (Place.PARKED, 0)


def test_a_paused_rank_gives_loads_up_as_well() -> None:
    made, r = parked(remote_load_timeout=1)
    made.pause("all")
    step = turn(made)
    assert (step.cancelled, step.scheduled, r.place) == (["r"], {}, Place.WAITING)


def test_blocks_of_an_aborted_load_return_with_its_notice() -> None:
    """B65: until then the store may write into them."""
    for notice in NOTICES:
        made, r = parked()
        assert made.abort(r)
        assert (r.place, r.finish_reason, ids(made.orphans)) == (Place.FINISHED, FinishReason.ABORT, ["r"])
        assert (made.pool.free, made.num_slots, made.has_unfinished_requests()) == (98, 0, True)
        notice(made, r)
        assert at_rest(made)
        before = photo(made)
        notice(made, r)
        assert photo(made) == before


def test_blocks_of_an_aborted_load_return_at_its_deadline() -> None:
    made, r = parked(remote_load_timeout=2)
    made.abort(r)
    assert turn(made).cancelled == []
    step = turn(made)
    assert (step.cancelled, step.scheduled) == (["r"], {})
    assert at_rest(made)


def test_the_id_of_an_aborted_load_is_taken_until_its_blocks_are_back() -> None:
    made, r = parked()
    made.abort(r)
    assert "its remote load is" in refusal(made, request("r", 4))
    made.load_finished(r)
    made.add_request(request("r", 4))
    assert turn(made).scheduled == {"r": 4}
