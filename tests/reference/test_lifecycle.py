"""How requests come, load, get their outputs, and go: everything about them but the step itself."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from onbeat_reference import BlockPool, CountingPool, FinishReason, Request, Scheduler
from onbeat_spec.config import Config
from onbeat_spec.errors import ConfigError, OnbeatError, ProtocolMisuse, RequestRefused
from onbeat_spec.policy import POLICIES, LocalWork, local_work
from onbeat_spec.records import Place
from tests.reference.helpers import conserved, ids, land, photo, request, scheduler, text, turn, turns, unconfirmed


def refusal(made: Scheduler, asked: Request) -> str:
    """Why a request is refused; nothing of it may be kept."""
    before = photo(made)
    with pytest.raises(RequestRefused) as refused:
        made.add_request(asked)
    assert photo(made) == before
    return str(refused.value)


def misuse(made: Scheduler, *arguments: Any) -> str:
    """Why an update is refused; nothing may have changed."""
    before = photo(made)
    with pytest.raises(ProtocolMisuse) as refused:
        made.update(*arguments)
    assert photo(made) == before
    return str(refused.value)


def owners(made: Scheduler) -> list[Request]:
    return [*made.running, *made.waiting, *made.parked, *made.orphans]


def at_rest(made: Scheduler) -> bool:
    """Nobody is there, and every block is back."""
    pool = made.pool
    assert isinstance(pool, BlockPool)
    conserved(pool, owners(made))
    return not made.has_unfinished_requests() and (pool.free, pool.promised) == (pool.num_blocks, 0)


# --- What it is built from -------------------------------------------------------------------------------------------


def test_the_policy_is_found_by_name() -> None:
    for name, kind in POLICIES.items():
        assert type(Scheduler(Config(policy=name)).policy) is kind


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError) as refused:
        Scheduler(Config(policy="off-beat"))
    assert str(refused.value) == "policy is 'off-beat'; it must be one of onbeat, pr44558, local-work"
    assert issubclass(RequestRefused, OnbeatError)
    assert issubclass(ProtocolMisuse, OnbeatError)


def test_policy_and_pool_of_ones_own() -> None:
    policy, pool = LocalWork(), CountingPool(3, 4)
    made = Scheduler(Config(policy="off-beat", block_size=4, num_blocks=3), policy, pool)
    assert made.policy is policy
    assert made.pool is pool
    made.add_request(request("a", 4))
    assert turns(made, 2) == [{"a": 4}, {"a": 1}]
    assert pool.free == 1


def test_the_pool_is_that_of_the_configuration() -> None:
    pool = Scheduler(Config(num_blocks=7, block_size=3, enable_prefix_caching=True)).pool
    assert isinstance(pool, BlockPool)
    assert (pool.num_blocks, pool.block_size, pool.enable_prefix_caching) == (7, 3, True)


# --- Coming ----------------------------------------------------------------------------------------------------------


def test_requests_are_numbered_as_they_come() -> None:
    made = scheduler(request("a", 4), request("b", 4))
    refusal(made, request("a", 4))
    c = request("c", 4)
    made.add_request(c)
    assert [each.arrival for each in made.waiting] == [0, 1, 2]
    assert made.requests["c"] is c


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_id_is_live_once(steps: int) -> None:
    made = scheduler(request("a", 4, 9))
    turns(made, steps)
    assert refusal(made, request("a", 8)) == (
        "request 'a' is live already, or its remote load is; use another id, or wait until both have ended"
    )


def test_an_id_is_free_again_after_its_end() -> None:
    made = scheduler(request("a", 4, 1))
    turn(made)
    made.add_request(request("a", 4, 1))
    assert turn(made).scheduled == {"a": 4}


@pytest.mark.parametrize(("prompt", "max_tokens"), [(0, 4), (4, 0), (0, 0), (4, -1)])
def test_nothing_to_compute_or_nothing_to_sample(prompt: int, max_tokens: int) -> None:
    assert refusal(scheduler(), request("a", prompt, max_tokens)) == (
        f"request 'a' has {prompt} prompt tokens and max_tokens {max_tokens}; both must be at least 1"
    )


@pytest.mark.parametrize("remote", [5, 99, -1])
def test_a_store_offers_tokens_of_the_prompt(remote: int) -> None:
    assert refusal(scheduler(), request("a", 4, remote=remote)) == (
        f"request 'a' offers {remote} remote tokens of a prompt of 4; they must be part of the prompt"
    )
    scheduler(request("b", 4, remote=4), request("c", 4, remote=0))


@pytest.mark.parametrize(
    ("config", "most", "message"),
    [
        ({"num_blocks": 3}, 12, "12 is the most (max_model_len 131072, KV pool 12 tokens)"),
        ({"num_blocks": 3, "max_model_len": 10}, 9, "9 is the most (max_model_len 10, KV pool 12 tokens)"),
        ({"num_blocks": 3, "max_model_len": 13}, 12, "12 is the most (max_model_len 13, KV pool 12 tokens)"),
        ({"num_blocks": 3, "max_model_len": 14}, 12, "12 is the most (max_model_len 14, KV pool 12 tokens)"),
    ],
)
def test_what_can_never_fit_is_refused(config: dict[str, int], most: int, message: str) -> None:
    """The last token sampled needs no KV: a prompt that fills the pool still has its first output."""
    made = scheduler(**config)
    assert refusal(made, request("a", most + 1)) == (
        f"request 'a' has {most + 1} prompt tokens and can never fit: {message}; shorten the prompt or enlarge the pool"
    )
    b = request("b", most, 50)
    made.add_request(b)
    turn(made)
    assert (b.finish_reason, b.num_tokens) == (FinishReason.LENGTH, most + 1)


def test_a_request_ends_where_model_and_pool_end() -> None:
    for config, limit in (({"max_model_len": 9}, 9), ({"num_blocks": 3}, 13), ({}, 104)):
        a = request("a", 4, 100)
        scheduler(a, **config)
        assert a.limit == limit


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


# --- Remote KV: beforehand -------------------------------------------------------------------------------------------


def parked(prompt: int = 12, remote: int = 8, **config: Any) -> tuple[Scheduler, Request]:
    """A scheduler that loads for one request."""
    r = request("r", prompt, remote=remote)
    made = scheduler(r, **config)
    step = turn(made)
    assert (step.loading, step.scheduled, step.admitted) == (["r"], {}, [])
    return made, r


def test_a_load_takes_its_blocks_and_promises_the_rest() -> None:
    made, r = parked()
    assert (r.place, ids(made.parked), r.external, r.remote_tokens) == (Place.PARKED, ["r"], 8, 0)
    assert (r.num_blocks, r.reserved, r.num_computed, made.num_slots) == (2, 1, 0, 1)
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
    made = scheduler(request("a", 8), request("r", 12, remote=4), num_blocks=num_blocks)
    assert turn(made).loading == (["r"] if loads else [])


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


# --- Aborts ----------------------------------------------------------------------------------------------------------


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


# --- Pauses ----------------------------------------------------------------------------------------------------------


def test_a_pause_of_new_ones_lets_the_running_go_on() -> None:
    made = scheduler(request("a", 4))
    turn(made)
    made.add_request(request("b", 4))
    made.pause()
    step = turn(made)
    assert (step.open, step.scheduled, step.wrote_flag, ids(made.waiting)) == (False, {"a": 1}, False, ["b"])
    made.resume()
    step = turn(made)
    assert (step.open, step.scheduled, step.wrote_flag) == (True, {"a": 1, "b": 4}, True)


def test_a_pause_of_new_ones_starts_no_load_and_promotes_none() -> None:
    made, r = parked()
    made.load_finished(r)
    made.add_request(request("s", 12, remote=8))
    made.pause("new")
    step = turn(made)
    assert (step.scheduled, step.loading) == ({}, [])
    made.resume()
    step = turn(made)
    assert (step.scheduled, step.loading) == ({"r": 4}, ["s"])


def test_a_pause_of_everybody_schedules_nothing() -> None:
    a = request("a", 4)
    made = scheduler(a)
    turn(made)
    made.add_request(request("b", 4))
    made.pause("all")
    for throttle in (False, True):
        step = turn(made, throttle)
        assert (step.open, step.hold, step.scheduled, step.wrote_flag) == (False, False, {}, False)
    assert (a.num_computed, made.num_steps, made.held_steps) == (4, 3, 0)
    made.resume()
    assert turn(made).scheduled == {"a": 1, "b": 4}


def test_a_pause_leaves_the_flag_as_it_is() -> None:
    made = scheduler(request("a", 4), request("b", 4), max_num_seqs=1)
    turn(made)
    assert made.saturated
    made.abort(made.waiting[0])
    for mode in ("new", "all"):
        made.pause(mode)
        assert turn(made).saturated
    made.resume()
    assert not turn(made).saturated


def test_pausing_and_resuming_twice_is_once() -> None:
    made = scheduler(request("a", 4))
    made.resume()
    made.pause("all")
    made.pause("all")
    assert turn(made).scheduled == {}
    made.pause("new")
    assert made.paused == "new"
    made.resume()
    made.resume()
    assert turn(made).scheduled == {"a": 4}


def test_an_unknown_pause_is_refused() -> None:
    made = scheduler()
    with pytest.raises(ProtocolMisuse, match="pause mode is 'some'; it must be 'new' or 'all'"):
        made.pause("some")  # type: ignore[arg-type]
    assert made.paused is None


# --- The prefix cache is reset ---------------------------------------------------------------------------------------


def test_a_reset_preempts_whoever_runs_and_forgets_the_cache() -> None:
    p = text("p", 12)
    a, b = request("a", p, 9), request("b", p, 9)
    made = scheduler(a, enable_prefix_caching=True)
    turn(made)
    made.reset_prefix_cache()
    assert (a.place, a.num_computed, a.num_preemptions, made.pool.free) == (Place.WAITING, 0, 1, 100)
    made.add_request(b)
    assert turn(made).scheduled == {"a": 13, "b": 12}
    assert (a.tokens[12:], b.tokens[12:]) == ([1, 1], [1])


def test_with_nothing_in_flight_a_reset_costs_no_step() -> None:
    a = request("a", 4)
    made = scheduler(a)
    turns(made, 2)
    made.reset_prefix_cache()
    assert a.eligible_at == 0
    assert turn(made).scheduled == {"a": 6}


@pytest.mark.parametrize("depth", [1, 2])
def test_results_in_flight_outlive_a_reset(depth: int) -> None:
    """Each is delivered once, and nobody is computed again before the last of them is known."""
    a = request("a", 4, 6)
    made = scheduler(a, async_depth=depth)
    for _ in range(depth):
        made.schedule()
    made.reset_prefix_cache()
    assert (a.num_placeholders, a.num_computed, a.eligible_at) == (0, 0, 2 * depth - 1)
    for token in range(depth):
        assert land(made, token=70 + token).tokens == {"a": [70 + token]}
    assert (a.tokens[4:], a.num_placeholders, a.num_computed) == ([70, 71][:depth], 0, 0)
    empty = made.num_steps
    while not (step := turn(made)).scheduled:
        pass
    assert step.scheduled == {"a": 4 + depth}
    assert step.index - empty == depth - 1
    while made.has_unfinished_requests():
        turn(made)
    assert (a.num_tokens, at_rest(made)) == (10, True)


def test_a_reset_takes_nothing_from_a_load() -> None:
    made, r = parked(enable_prefix_caching=True)
    made.reset_prefix_cache()
    assert (r.place, r.num_blocks) == (Place.PARKED, 2)
    made.load_finished(r)
    made.reset_prefix_cache()
    assert (r.place, r.num_computed) == (Place.WAITING, 8)
    assert turn(made).scheduled == {"r": 4}
