"""vLLM's requests in the words of the policy."""

from types import SimpleNamespace
from typing import Any

import pytest

from onbeat_engine.vllm.turn import NEVER, ScheduleCall, can_run, carries_prefill, chunks_to_hold, count, not_eligible
from onbeat_spec.policy import Policy, local_work, runnable
from tests.engine.vllm.fakes import chunk, decode, request


def test_counts_are_read_by_their_meaning() -> None:
    made = count(request(tokens=9, computed=10, prompt=6, num_output_placeholders=2, max_tokens=5), 64)
    assert (local_work(made), made.limit) == (1, 11)
    assert count(request(tokens=9, prompt=6, max_tokens=80), 64).limit == 64


@pytest.mark.parametrize(
    ("made", "runs"),
    [
        (decode(), True),
        (decode(next_decode_eligible_step=6), False),
        # Its last token is in flight: finished, and not yet acknowledged.
        (request(tokens=8, computed=8, prompt=8, num_output_placeholders=1, max_tokens=1), False),
        # All of it is in flight a pipeline stage ahead, without a placeholder.
        (request(tokens=9, computed=9, prompt=8), False),
    ],
)
def test_who_can_run_in_a_step(made: Any, runs: bool) -> None:
    assert can_run(count(made, 64), 5) is runs


def test_chunks_are_held_for_a_decode_only() -> None:
    policy, held = Policy(), chunk()
    assert chunks_to_hold(policy, [held], 1, 64) is None
    assert chunks_to_hold(policy, [held, decode(next_decode_eligible_step=9)], 1, 64) is None
    assert chunks_to_hold(policy, [held, decode()], 1, 64) == [held]


def test_a_chunk_that_would_not_run_anyway_is_not_held() -> None:
    assert chunks_to_hold(Policy(), [chunk(next_decode_eligible_step=9), decode()], 1, 64) == []


def test_a_chunk_with_one_token_left_is_a_decode() -> None:
    last = request("last", tokens=8, computed=7, is_prefill_chunk=True)
    assert chunks_to_hold(Policy(), [last, chunk()], 1, 64) is not None
    assert last not in (chunks_to_hold(Policy(), [last, chunk()], 1, 64) or [])


def test_eligibility_is_given_back_also_after_an_error() -> None:
    held = chunk(next_decode_eligible_step=3)

    def use() -> None:
        with not_eligible([held]):
            assert not runnable(count(held, 64), NEVER - 1)
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        use()
    assert held.next_decode_eligible_step == 3


def output(new: list[Any] = [], cached: list[tuple[str, int, int]] = []) -> Any:  # noqa: B006 - only read
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=id, num_computed_tokens=computed) for id, computed in new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[id for id, _, _ in cached],
            num_computed_tokens=[computed for _, computed, _ in cached],
            num_output_tokens=[outputs for _, _, outputs in cached],
        ),
    )


def test_a_step_carries_prefill_if_somebody_had_more_than_one_token_of_work() -> None:
    requests = {"a": request("a", tokens=8)}
    assert carries_prefill(output(new=[("a", 4)]), requests)
    assert not carries_prefill(output(new=[("a", 7)]), requests)
    assert carries_prefill(output(cached=[("a", 4, 0)]), requests)
    assert not carries_prefill(output(cached=[("a", 8, 1)]), requests)
    assert not carries_prefill(output(), requests)


def test_a_lifted_hold_does_not_stand() -> None:
    assert ScheduleCall(True, hold=True).holding
    assert not ScheduleCall(True, hold=True, lifted=True).holding
    assert not ScheduleCall(True).holding
