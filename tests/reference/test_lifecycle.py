"""How requests come and are refused, how a rank pauses, and how its prefix cache is reset."""

import pytest

from onbeat_reference import BlockPool, CountingPool, FinishReason, Scheduler
from onbeat_spec.config import Config
from onbeat_spec.errors import ConfigError, OnbeatError, ProtocolMisuse, RequestRefused
from onbeat_spec.policy import POLICIES, LocalWork
from onbeat_spec.records import Place
from tests.reference.helpers import at_rest, ids, land, parked, refusal, request, scheduler, text, turn, turns

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
