"""Public cases that no scenario file can hold: they speak of counts that scenarios do not show, or of an operation that
the scheduler does not have. Each says what of the case applies here. All other cases are in `tests/scenarios`.
"""

from collections.abc import Sequence

import pytest

from onbeat_reference import Outputs, Request, Scheduler
from onbeat_spec.config import Config
from onbeat_spec.errors import ConfigError
from onbeat_spec.policy import is_decode, local_work
from onbeat_spec.records import Step


def request(id: str, prompt: int, max_tokens: int = 16) -> Request:
    return Request(id, [0] * prompt, max_tokens)


def update(scheduler: Scheduler, step: Step, tokens: Sequence[int] = (1,)) -> Outputs:
    """Hand a step's outputs back: one token for each of its requests, as far as it is among those that sampled."""
    sampling = scheduler.in_flight[0].sampling
    return scheduler.update(step, {r.id: tokens for r in sampling})


def append(session: Request, tokens: int) -> None:
    """What a streaming session does to the counts of its request when more of the prompt arrives."""
    session.tokens.extend([0] * tokens)
    session.num_tokens += tokens
    session.limit += tokens


# --- B04: https://github.com/vllm-project/vllm/pull/54627 ------------------------------------------------------------


def test_b04_an_interval_that_cannot_take_effect_is_refused() -> None:
    """The other half of the case: what the scenario shows to work on one rank is never cut short without a word."""
    assert Config(prefill_schedule_interval=65, max_hold_steps=64).data_parallel_size == 1
    with pytest.raises(ConfigError, match="prefill_schedule_interval is 66; it must be at most max_hold_steps"):
        Config(prefill_schedule_interval=66, max_hold_steps=64)


# --- B16: https://github.com/tenstorrent/vllm-tt-plugin/pull/67 ------------------------------------------------------


@pytest.mark.parametrize(("computed", "work", "decode"), [(6, 1, True), (5, 2, False), (4, 3, False), (0, 7, False)])
def test_b16_the_end_of_the_prompt_plays_no_part(computed: int, work: int, decode: bool) -> None:
    """The words themselves: prompt 4, three outputs. The scenario shows what the scheduler makes of them."""
    row = request("row", 4)
    row.num_tokens, row.num_computed = 7, computed
    assert local_work(row) == work
    assert is_decode(local_work(row)) is decode


# --- B18 and B53: how long a newcomer waits beside long prompts -------------------------------------------------------


@pytest.mark.parametrize(("long_prompts", "chunk"), [(0, 5), (1, 5), (2, 5), (3, 2), (4, 0)])
def test_b18_b53_the_bound_on_a_newcomers_wait(long_prompts: int, chunk: int) -> None:
    """Those reports ask for turns taken by class; here a cap per request gives the bound that the scenarios state.

    Two decodes, budget 16, cap 4: a newcomer of 5 tokens has its first chunk in the next open step if
    4 * long_prompts + 2 < 16, and not otherwise.
    """
    cap = 4
    scheduler = Scheduler(Config(max_num_batched_tokens=16, long_prefill_token_threshold=cap))
    for index in range(2):
        scheduler.add_request(request(f"decode{index}", 1))
    update(scheduler, scheduler.schedule())
    for index in range(long_prompts):
        scheduler.add_request(request(f"long{index}", 1000))
        update(scheduler, scheduler.schedule())
    scheduler.add_request(request("newcomer", 5))
    step = scheduler.schedule()
    assert step.scheduled.get("newcomer", 0) == min(chunk, cap)
    assert ("newcomer" in step.scheduled) == (cap * long_prompts + 2 < 16)
    assert step.scheduled["decode0"] == step.scheduled["decode1"] == 1


# --- B40: https://github.com/vllm-project/vllm/pull/48245 ------------------------------------------------------------


def test_b40_a_late_result_takes_no_placeholder() -> None:
    """Beside the scenario: the counts. What is in flight for a preempted request is not awaited any more, but comes."""
    scheduler = Scheduler(Config(block_size=4, num_blocks=3, async_depth=2))
    victor, loser = request("victor", 7), request("loser", 3)
    scheduler.add_request(victor)
    scheduler.add_request(loser)
    first, second = scheduler.schedule(), scheduler.schedule()
    assert (loser.num_placeholders, loser.num_computed) == (2, 4)
    update(scheduler, first)
    third = scheduler.schedule()
    assert [eviction.victim for eviction in third.evictions] == ["loser"]
    assert (loser.num_placeholders, loser.num_computed) == (0, 0)
    assert update(scheduler, second, [77]).tokens["loser"] == [77]
    assert (loser.num_placeholders, loser.num_computed, loser.num_tokens) == (0, 0, 5)
    assert loser.tokens == [0, 0, 0, 1, 77]


# --- B42: https://github.com/vllm-project/vllm/pull/50692 ------------------------------------------------------------


def test_b42_a_chunk_is_told_by_the_tokens_that_will_be_known() -> None:
    """No operation appends to a live request here, so the counts are changed as a streaming session would.

    What applies is the classification: a token in flight is one that will be there when the step runs, so of
    100 + 300 tokens with 100 computed 301 are left, in chunks of 128, 128 and 45, and only the last one samples.
    Where the placeholder is not counted the last chunk seems to end a token early, or samples nothing.
    """
    scheduler = Scheduler(Config(max_num_batched_tokens=128, async_depth=2))
    session = request("session", 100)
    scheduler.add_request(session)
    first = scheduler.schedule()
    assert (first.scheduled, session.num_placeholders) == ({"session": 100}, 1)
    append(session, 300)
    assert local_work(session) == 301

    second = scheduler.schedule()
    assert (second.scheduled, second.prefill, session.num_placeholders) == ({"session": 128}, True, 1)
    assert update(scheduler, first).tokens == {"session": (1,)}
    assert (session.num_placeholders, local_work(session)) == (0, 173)
    third = scheduler.schedule()
    assert (third.scheduled, third.prefill, session.num_placeholders) == ({"session": 128}, True, 0)
    assert update(scheduler, second).tokens == {}
    fourth = scheduler.schedule()
    assert (fourth.scheduled, fourth.prefill, session.num_placeholders) == ({"session": 45}, True, 1)
    assert update(scheduler, third).tokens == {}

    fifth = scheduler.schedule()  # the session goes on, as a decode
    assert (fifth.scheduled, fifth.prefill, session.num_placeholders) == ({"session": 1}, False, 2)
    assert update(scheduler, fourth).tokens == {"session": (1,)}
    assert update(scheduler, fifth).tokens == {"session": (1,)}
    assert (session.num_tokens, session.num_computed, session.num_placeholders) == (403, 402, 0)


def test_b42_a_chunk_with_a_token_in_flight_is_held() -> None:
    """The same word decides a hold: one appended token beside one in flight makes two, which is a chunk."""
    scheduler = Scheduler(Config(async_depth=2))
    decode, session = request("decode", 4), request("session", 4)
    scheduler.add_request(decode)
    scheduler.add_request(session)
    first = scheduler.schedule()
    append(session, 1)
    assert local_work(session) == 2
    second = scheduler.schedule(throttle_prefills=True)
    assert (second.scheduled, second.held) == ({"decode": 1}, ["session"])
    update(scheduler, first)
    assert scheduler.schedule().scheduled == {"decode": 1, "session": 2}


# --- B43: https://github.com/vllm-project/vllm/pull/49860 ------------------------------------------------------------


@pytest.mark.parametrize("reset_at", [None, *range(1, 11)])
def test_b43_at_rest_nothing_is_awaited(reset_at: int | None) -> None:
    """Beside the scenario: the counts after every call, with the cache reset before each step in turn."""
    scheduler = Scheduler(Config(async_depth=2))
    asked = request("asked", 4, max_tokens=10)
    scheduler.add_request(asked)
    delivered = 0
    while scheduler.has_unfinished_requests():
        if scheduler.num_steps == reset_at:
            scheduler.reset_prefix_cache()
        step = scheduler.schedule()
        if len(scheduler.in_flight) == 2:
            delivered += len(update(scheduler, scheduler.in_flight[0].step).tokens.get("asked", ()))
        assert 0 <= asked.num_placeholders <= len(scheduler.in_flight)
    assert (delivered, asked.num_placeholders, step.scheduled) == (10, 0, {})
    # Ten steps that sample, one for the last result to come back; a reset adds the one in which R waits for its result.
    assert scheduler.num_steps == (11 if reset_at in (None, 10) else 12)


# --- B67: https://github.com/vllm-project/vllm/pull/45146 ------------------------------------------------------------


def test_b67_a_failed_load_takes_placeholders_and_drafts_back() -> None:
    """Beside the scenario: the counts, between the failure and the next step."""
    scheduler = Scheduler(Config(async_depth=2, num_draft_tokens=3))
    loaded = Request("loaded", [0] * 64, 8, remote_tokens=64, remote_mode="sync")
    scheduler.add_request(loaded)
    step = scheduler.schedule()
    assert (step.scheduled, loaded.num_computed, loaded.num_placeholders) == ({"loaded": 1}, 64, 1)
    scheduler.load_failed(loaded, from_block=2)
    assert (loaded.num_computed, loaded.num_placeholders, loaded.num_drafts) == (32, 0, 0)
    assert local_work(loaded) == 32
