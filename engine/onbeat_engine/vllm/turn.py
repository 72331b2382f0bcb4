"""One call of `schedule()`, and vLLM's requests in the words of the policy."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from onbeat_engine.vllm.stock import Vllm
from onbeat_spec.policy import Policy, is_decode, local_work, runnable

NEVER = 1 << 62
"""A step that does not come."""


class Count(NamedTuple):
    """The counts of a vLLM request that the policy's words read."""

    num_tokens: int
    num_placeholders: int
    num_computed: int
    limit: int
    eligible_at: int


def count(request: Vllm, max_model_len: int) -> Count:
    """Return a running request's counts."""
    return Count(
        request.num_tokens,
        request.num_output_placeholders,
        request.num_computed_tokens,
        min(request.num_prompt_tokens + request.max_tokens, max_model_len),
        request.next_decode_eligible_step,
    )


def waiting_work(request: Vllm, at_hand: int) -> int:
    """Return a waiting request's local work, given how many of its tokens have their KV at hand."""
    return local_work(Count(request.num_tokens, 0, at_hand, request.num_tokens, 0))


@dataclass(slots=True)
class ScheduleCall:
    """What one step decided on its own; what it left to the stock class is in the scheduler output."""

    throttle: bool
    hold: bool = False
    """The step began by holding prefills."""
    lifted: bool = False
    """The hold was lifted within the step, since it left the step empty."""
    held: list[str] = field(default_factory=list)
    """Requests passed over because of the hold: running ones, then waiting ones, in order."""
    remote: dict[str, int] = field(default_factory=dict)
    """Waiting requests that a held step let pass for what a remote store has of them: tokens."""
    preempted: bool = False
    open: bool = True
    wrote_flag: bool = False

    @property
    def holding(self) -> bool:
        """Whether the hold stands."""
        return self.hold and not self.lifted


def chunks_to_hold(policy: Policy, running: Iterable[Vllm], now: int, max_model_len: int) -> list[Vllm] | None:
    """Return the running requests that a hold passes over in step `now`; None if no decode justifies a hold."""
    counted = [(request, count(request, max_model_len)) for request in running]
    if not any(policy.justifies_hold(work=local_work(each), can_run=can_run(each, now)) for _, each in counted):
        return None
    return [request for request, each in counted if runnable(each, now) and policy.holds_running(local_work(each))]


def can_run(count: Count, now: int) -> bool:
    """Whether vLLM gives a running request tokens in step `now`, memory permitting.

    One without work has it all in flight: a pipeline stage ahead, and no placeholder for what comes back.
    """
    return runnable(count, now) and local_work(count) > 0


@contextmanager
def not_eligible(requests: Iterable[Vllm]) -> Iterator[None]:
    """Have vLLM's running loop pass over requests, which stay in their places, with their blocks, possible victims."""
    eligible = [(request, request.next_decode_eligible_step) for request in requests]
    for request, _ in eligible:
        request.next_decode_eligible_step = NEVER
    try:
        yield
    finally:
        for request, step in eligible:
            request.next_decode_eligible_step = step


def carries_prefill(output: Vllm, requests: dict[str, Vllm]) -> bool:
    """Whether a scheduler output gave tokens to a request with more than one token of local work."""
    for new in output.scheduled_new_reqs:
        if not is_decode(waiting_work(requests[new.req_id], new.num_computed_tokens)):
            return True
    cached = output.scheduled_cached_reqs
    for id, computed, outputs in zip(cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True):
        # The output counts placeholders among the output tokens, as they were before the step.
        if not is_decode(requests[id].num_prompt_tokens + outputs - computed):
            return True
    return False
