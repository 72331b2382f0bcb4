"""What one rank tells the front end: outputs of requests, and the rank's own state in numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence

from onbeat_engine.runner.executor import BatchRow, EngineRequest, StepOutputs
from onbeat_engine.wire.lane_steps import LaneStep
from onbeat_engine.wire.messages import NewRequest, Output, RankOutputs, RankStats, TokenLogprobs
from onbeat_reference import lifecycle
from onbeat_reference.lifecycle import Lifecycle
from onbeat_reference.request import FinishReason, Request
from onbeat_spec.balance import publishes
from onbeat_spec.protocol import Rank
from onbeat_spec.records import Member, Step

MOST_UNTOLD = 16
"""Turns that wait for a message to ride along with."""


class Reporter:
    """Collects outputs until they are fetched, and counts.

    Args:
        first: what the rank has to tell at its beginning.
        scheduler: the rank's scheduler.
        violations: how many there were so far, by invariant; somebody else counts them.

    Attributes:
        dummies: forwards without any token of the rank's own.
        lock_steps: turns of the group that were not told yet.
        lane_steps: likewise steps that have ended, for the lanes.
    """

    def __init__(self, first: RankStats, scheduler: Lifecycle, violations: Mapping[str, int]) -> None:
        self.rank = first.rank
        self.scheduler = scheduler
        self.violations = violations
        self.dummies = 0
        self.lock_steps: list[Member] = []
        self.lane_steps: list[LaneStep] = []
        self._outputs: list[Output] = []
        self._last = first
        self._prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        self._cached: dict[str, int] = {}
        """Cached tokens of requests that had no output yet."""
        self._counts: Counter[str] = Counter()

    # --- Requests ----------------------------------------------------------------------------------------------------

    def accepted(self, request: EngineRequest) -> None:
        """A request was read, and accepted."""
        self._read(request.num_prompt)
        self._counts["tokens"] += request.num_prompt
        self._counts["prompts"] += request.num_prompt

    def refused(self, new: NewRequest, error: str, *, later: bool = False) -> None:
        """A request was read, and refused: nothing of it is kept (case B97)."""
        self._read(len(new.prompt))
        self._outputs.append(Output(id=new.id, finish_reason="error", error=error, refused=not later))

    def ended(self, request: EngineRequest, reason: FinishReason, error: str | None = None) -> None:
        """A request ended outside of a step."""
        self._over(request)
        self._outputs.append(Output(id=request.id, finish_reason=reason.value, error=error))

    def _read(self, tokens: int) -> None:
        self._counts["read"] += 1
        self._counts["read_tokens"] += tokens

    def _over(self, request: Request) -> None:
        self._counts["tokens"] -= request.num_prompt
        self._prompt_logprobs.pop(request.id, None)
        self._cached.pop(request.id, None)

    # --- Steps -------------------------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        """A step was scheduled."""
        counts = self._counts
        counts["held"] += step.holding
        counts["preemptions"] += len(step.evictions)
        for id in step.admitted:
            request = self.scheduler.requests[id]
            at_hand = request.num_computed - step.scheduled[id]
            counts["queries"] += request.num_tokens
            counts["hits"] += at_hand
            if request.num_tokens == request.num_prompt:
                self._cached.setdefault(id, at_hand)

    def delivered(self, rows: Sequence[BatchRow], outputs: StepOutputs, done: lifecycle.Outputs) -> None:
        """The outputs of a step: to each request what it brought."""
        finished = {request.id: request for request in done.finished}
        if outputs.prompt_logprobs:
            self._keep_prompt_logprobs(rows, outputs, finished)
        for id, tokens in done.tokens.items():
            self._counts["generated"] += len(tokens)
            logprobs = outputs.logprobs.get(id)
            ended = finished.get(id)
            self._outputs.append(
                Output(
                    id=id,
                    tokens=list(tokens),
                    finish_reason=None if ended is None else _reason(ended).value,
                    stop_token=tokens[-1] if ended is not None and _reason(ended) is FinishReason.STOP else None,
                    logprobs=None if logprobs is None else logprobs[: len(tokens)],
                    prompt_logprobs=self._prompt_logprobs.pop(id, None) if self._prompt_logprobs else None,
                    num_cached_tokens=self._cached.pop(id, 0) if self._cached else 0,
                )
            )
            if ended is not None:
                self._over(ended)

    def _keep_prompt_logprobs(
        self, rows: Sequence[BatchRow], outputs: StepOutputs, finished: Mapping[str, Request]
    ) -> None:
        """Keep them until the prompt is complete (case B109); a preempted prompt brings some of them again.

        A request may end with the step that completes its prompt; one that was aborted meanwhile gets none.
        """
        for row in rows:
            request = row.request
            got = outputs.prompt_logprobs.get(request.id)
            if got and (request.id in self.scheduler.requests or request.id in finished):
                new = got[max(0, request.logprobs_done - row.start) :]
                self._prompt_logprobs.setdefault(request.id, []).extend(new)
                request.logprobs_done += len(new)

    # --- Stats -------------------------------------------------------------------------------------------------------

    def take(self, state: Rank, *, idle: bool = False) -> RankOutputs | None:
        """Return what is new: outputs, and stats if they have changed, also without a step (case B103).

        What only counts rides along with outputs; it is no reason to send anything, as long as turns follow and there
        is not much of it.

        Args:
            idle: no turn follows.
        """
        stats = self._stats(state)
        last = self._last
        changed = publishes(last.load, stats.load) or _gauges(stats) != _gauges(last)
        untold = max(len(self.lock_steps), len(self.lane_steps))
        if not self._outputs and not changed and untold < (1 if idle else MOST_UNTOLD):
            return None
        outputs, self._outputs, self._last = self._outputs, [], stats
        lock_steps, self.lock_steps = self.lock_steps, []
        lane_steps, self.lane_steps = self.lane_steps, []
        return RankOutputs(rank=self.rank, outputs=outputs, stats=stats, lock_steps=lock_steps, lane_steps=lane_steps)

    def _stats(self, state: Rank) -> RankStats:
        scheduler, counts = self.scheduler, self._counts
        pool = scheduler.pool
        return RankStats(
            rank=self.rank,
            epoch=self._last.epoch,
            number=self._last.number + 1,
            waiting=len(scheduler.waiting) + len(scheduler.parked),
            running=len(scheduler.running),
            tokens=counts["tokens"],
            read=counts["read"],
            read_tokens=counts["read_tokens"],
            kv_cache_usage=1 - pool.free / pool.num_blocks,
            steps=scheduler.num_steps,
            dummy_steps=self.dummies,
            held_steps=counts["held"],
            prompt_tokens=counts["prompts"],
            generation_tokens=counts["generated"],
            preemptions=counts["preemptions"],
            prefix_cache_queries=counts["queries"],
            prefix_cache_hits=counts["hits"],
            violations=dict(self.violations),
            stopped=state.agreed,
            paused=state.paused,
            asleep=state.asleep,
        )


def _reason(request: Request) -> FinishReason:
    assert request.finish_reason is not None
    return request.finish_reason


def _gauges(stats: RankStats) -> tuple[object, ...]:
    """What is told at once when it changes, beside what the load balancer reads."""
    return stats.stopped, stats.paused, stats.asleep, stats.violations, stats.kv_cache_usage
