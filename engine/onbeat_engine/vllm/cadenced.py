"""The policy, laid around one call of vLLM's own `schedule()`.

The stock step always runs unthrottled. Whoever the policy holds is kept out of it by means that the stock class has
for other ends: a running chunk is not eligible in this step, a waiting request is skipped as if an input of it were
still in transit. Both stay where they are. Everything else is the stock class's: budgets, admission, preemption,
encoders, LoRA, structured output, connectors.
"""

from collections import Counter, deque
from itertools import chain
from typing import Any, ClassVar

from onbeat_engine.vllm.stock import Stock, Vllm
from onbeat_engine.vllm.turn import ScheduleCall, carries_prefill, chunks_to_hold, not_eligible, waiting_work
from onbeat_engine.vllm.watch import Watch
from onbeat_reference.observe_vllm import place_of
from onbeat_spec.cadence import LocalClock, count_held
from onbeat_spec.config import Config
from onbeat_spec.policy import Policy
from onbeat_spec.records import Place


class _Empty(Exception):
    """A held step came out empty; its output has not been made yet."""


class Cadenced(Stock):
    """Decides with the policy `onbeat`; to be mixed into vLLM's `Scheduler` or a subclass of it.

    Attributes:
        onbeat_turn: what the last step decided.
        onbeat_violations: how often each invariant did not hold; it stays empty unless the monitor is on.
    """

    onbeat_policy: ClassVar[type[Policy]] = Policy
    """The policy text that decides; an audit holds the class against it."""
    replay_is_subtracted = True
    """Whether tokens to be replayed are off the count that `_ec_transfer_pending` is passed (vLLM 0.33.0)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        interval = int(self.scheduler_config.prefill_schedule_interval)
        alone = self.parallel_config.data_parallel_size == 1
        self._policy = self.onbeat_policy()
        self._clock = LocalClock(interval if alone else 1)  # the clock of a lock-step group is the engine's
        self.local_prefill_interval = 1  # vLLM's own local clock (0.33.0): this one replaces it
        self._max_hold_steps = max(Config().max_hold_steps, interval - 1)
        self._held_steps = 0
        self._local_hit = 0
        """Tokens in the prefix cache for the waiting request that is being looked at."""
        self._landed: set[Vllm] = set()
        """Waiting requests whose KV came from a remote store."""
        self._passed: set[Vllm] = set()
        """Waiting requests that this step passes over."""
        self._kept: set[Vllm] = set()
        """Those of them that are to stay in the queue of requests that hold blocks."""
        self._overtaken: set[Vllm] = set()
        """Waiting requests that a hold has passed over, so that younger ones may have been let in."""
        self._scan_over = False
        self.onbeat_turn = ScheduleCall(throttle=False)
        self.onbeat_violations: Counter[str] = Counter()
        self._watch = Watch.if_asked(self.onbeat_violations)

    # --- The step ----------------------------------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> Vllm:
        """Decide one step. Prefills are throttled by the flag, or by the local clock of a rank on its own."""
        turn = self.onbeat_turn = ScheduleCall(throttle_prefills or self._clock.throttle())
        turn.open = self._pause_state.name == "UNPAUSED"
        if self._watch is not None:
            self._watch.before(self)
        saturated, deferred, victims = self.prefill_capacity_bound, self.deferred_waiting, self._num_preempted()
        self._passed, self._kept, self._scan_over = set(), set(), False
        self.deferred_waiting = set()  # so that it tells who is skipped in this step
        try:
            output = self._run(turn, victims)
        finally:
            skipped = self.deferred_waiting
            waiting = deferred | (skipped - self._passed)
            self.deferred_waiting = {request for request in waiting if request.status.name != "RUNNING"}
            self.prefill_capacity_bound = saturated  # the stock class writes it by a rule of its own
        turn.preempted = len(output.preempted_req_ids) > victims
        self._seat_victims()
        self._write_flag(turn, skipped)
        self._landed = {request for request in self._landed if place_of(self, request)[0] is Place.WAITING}
        self._held_steps = count_held(self._held_steps, turn.holding)
        if self._clock.interval > 1:
            tokens = output.total_num_scheduled_tokens
            self._clock.executed(tokens, carries_prefill(output, self.requests), turn.holding)
        if self._watch is not None:
            self._watch.after(self, output)
        return output

    def _run(self, turn: ScheduleCall, victims: int) -> Vllm:
        """Run the stock step: with the hold if there is one, and again without if the hold left it empty."""
        chunks = self._chunks_to_hold(turn)
        if chunks is not None:
            turn.hold = True
            turn.held = [request.request_id for request in chunks]
            try:
                with not_eligible(chunks):
                    return super().schedule(False)
            except _Empty:
                turn.held = []
            self.current_step -= 1  # what was given up has counted itself
            self._passed.clear()
            self._kept.clear()
            # That the step was open, or not, the stock class sees to.
            self._scan_over = not self._policy.scans(preempted=self._num_preempted() > victims, open=True)
        return super().schedule(False)

    def _seat_victims(self) -> None:
        """Put who was preempted behind older requests that a hold has passed over; the stock class puts them first.

        Without a hold nobody overtakes: whoever was preempted is older than those who wait.
        """
        self._overtaken = {request for request in self._overtaken if place_of(self, request)[0] is Place.WAITING}
        queue = self.waiting
        if self._overtaken and isinstance(queue, deque):  # by priority, the queue sees to it itself
            waiting = list(queue)
            end = max((at for at, request in enumerate(waiting, 1) if request in self._overtaken), default=0)
            waiting[:end] = sorted(waiting[:end], key=lambda request: request.arrival_time)
            queue.clear()
            queue.extend(waiting)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Vllm:
        """Forget what is cached; whoever ran may be preempted."""
        result = super().reset_prefix_cache(*args, **kwargs)
        self._seat_victims()
        return result

    def _chunks_to_hold(self, turn: ScheduleCall) -> list[Vllm] | None:
        """Return the chunks that this step holds; None if it does not hold at all."""
        policy = self._policy
        if self._pause_state.name == "PAUSED_ALL" or not policy.may_hold(
            throttle=turn.throttle,
            saturated=self.prefill_capacity_bound,
            held_steps=self._held_steps,
            max_hold_steps=self._max_hold_steps,
        ):
            return None
        return chunks_to_hold(policy, self.running, self.current_step + 1, self.max_model_len)

    def _num_preempted(self) -> int:
        """Requests preempted since the last output was made, also by what came between the steps."""
        return len(self.reset_preempted_req_ids)

    def _write_flag(self, turn: ScheduleCall, skipped: set[Vllm]) -> None:
        """Write the saturation flag, if this step may; who was skipped could not have been admitted in it."""
        if not self._policy.writes_flag(hold=turn.hold, preempted=turn.preempted, open=turn.open):
            return
        left = chain(self.kv_holding_waiting, self.waiting)
        backlog = any(place_of(self, each) == (Place.WAITING, True) for each in left if each not in skipped)
        self.prefill_capacity_bound = self._policy.saturated(
            backlog=backlog, waiting=bool(self.waiting or self.kv_holding_waiting)
        )
        turn.wrote_flag = True

    # --- Where the stock step asks -----------------------------------------------------------------------------------

    def _handle_blocked_waiting_request(self, request: Vllm) -> bool:
        """Whether a waiting request may be looked at; none once the scan is over."""
        if self._scan_over:
            self._pass_over(request)
            return False
        return super()._handle_blocked_waiting_request(request)

    def _update_waiting_for_remote_kv(self, request: Vllm) -> None:
        """Take note of a load that has landed, wholly or in part."""
        super()._update_waiting_for_remote_kv(request)
        if request.num_computed_tokens > 0:
            self._landed.add(request)

    def _get_local_prefix_cache_hit(self, request: Vllm, *limits: Any) -> Vllm:
        """Take note of how many tokens the prefix cache has."""
        hit = super()._get_local_prefix_cache_hit(request, *limits)
        self._local_hit = hit[1]
        return hit

    def _ec_transfer_pending(self, request: Vllm, num_computed_tokens: int) -> bool:
        """Whether a waiting request is to be skipped; asked once its tokens at hand are known, and nothing is booked.

        This is the last question before the stock class would hold it, and the one whose answer skips it alone.
        """
        if super()._ec_transfer_pending(request, num_computed_tokens):
            return True
        if not self.onbeat_turn.holding:
            return False
        work, external = waiting_work(request, num_computed_tokens), self._external(request, num_computed_tokens)
        if not self._policy.holds_waiting(work=work, computed=request.num_computed_tokens, external=external):
            if external > 0:
                self.onbeat_turn.remote[request.request_id] = external
            return False
        self.onbeat_turn.held.append(request.request_id)
        self._pass_over(request)
        self._scan_over = not self._policy.scans_past_held()
        return True

    def _pass_over(self, request: Vllm) -> None:
        """Skip a waiting request, which the stock step has not taken off its queue yet."""
        self._passed.add(request)
        self._overtaken.add(request)
        if self.kv_holding_waiting:  # it is drained before the other one, so the request is from there
            self._kept.add(request)

    def _holds_kv_blocks(self, request: Vllm) -> bool:  # type: ignore[override]  # it depends on the step
        """Whether a waiting request belongs with those that hold blocks; one passed over keeps its place.

        A failed load has no blocks any more, and is fresh: nevertheless it has waited there.
        """
        return request in self._kept or super()._holds_kv_blocks(request)

    def _external(self, request: Vllm, at_hand: int) -> int:
        """Return the tokens that a waiting request has, or is about to have, from a remote store."""
        if request.num_computed_tokens > 0:  # it holds blocks: a load has landed, or a session waits for its next turn
            return at_hand if request in self._landed else 0
        if at_hand > 0 and self.replay_is_subtracted:
            at_hand += self.prefix_replay_tokens
        return max(0, at_hand - self._local_hit)

    def _make_cached_request_data(
        self, running: Vllm, resumed: Vllm, num_scheduled_tokens: dict[str, int], *rest: Any
    ) -> Vllm:
        """Begin the step's output, or give the step up because the hold left it empty.

        All lists are whole at this point, and nothing that goes to the workers has been collected.
        """
        turn = self.onbeat_turn
        if turn.holding and self._policy.lifts(len(num_scheduled_tokens)):
            turn.lifted = True
            if turn.held:
                raise _Empty
        return super()._make_cached_request_data(running, resumed, num_scheduled_tokens, *rest)

    # --- What only the monitor needs ---------------------------------------------------------------------------------

    def add_request(self, request: Vllm) -> None:
        """Take a request in."""
        if self._watch is not None:
            self._watch.came(request.request_id)
        super().add_request(request)

    def update_from_output(self, scheduler_output: Vllm, model_runner_output: Vllm) -> Vllm:
        """Take a step's outputs in."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self._watch is not None:
            self._watch.updated()
        return outputs
