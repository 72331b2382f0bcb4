"""The sampler: one token for each row of logits, by the parameters of the row's request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from onbeat_engine.runner.executor import EngineRequest
from onbeat_engine.runner.sampling import filters
from onbeat_engine.runner.sampling.logprobs import LogprobTensors, as_lists, measure
from onbeat_engine.runner.sampling.noise import uniform
from onbeat_engine.runner.sampling.penalties import Penalties
from onbeat_engine.runner.sampling.plan import SamplerState, SamplingPlan, penalised
from onbeat_engine.runner.sampling.structured import mask_logits
from onbeat_engine.runner.sampling.transfer import OnHost, to_device
from onbeat_engine.text.grammars import Grammars
from onbeat_engine.wire.messages import TokenLogprobs
from onbeat_spec.errors import ProtocolMisuse


@dataclass(slots=True)
class Sampled:
    """What was sampled in one step, on the device; `Sampler.collect` brings it to the host."""

    tokens: Any
    """[S] int64."""
    plan: SamplingPlan
    on_host: OnHost


class Collected(NamedTuple):
    """The same on the host, row by row."""

    tokens: list[int]
    logprobs: list[TokenLogprobs | None]
    """None for rows that did not ask."""


class Sampler:
    """Samples, step after step. Not thread-safe; the steps of one request come in order.

    The logits are taken as they are: log probabilities tell of them unchanged. Then come grammar, bias, least number
    of tokens, penalties, temperature, min-p, top-k and top-p, in vLLM's order.

    Args:
        vocab_size: V, columns of the logits.
        device: where the logits are.
        max_num_seqs: most rows of a step.
        grammars: for structured output; None: no request has any.
    """

    def __init__(self, vocab_size: int, device: Any, max_num_seqs: int, *, grammars: Grammars | None = None) -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.max_num_seqs = max_num_seqs
        self._grammars = grammars
        self._states: dict[str, SamplerState] = {}
        with torch.inference_mode():
            self._penalties = Penalties(vocab_size, self.device)
        self._plan: SamplingPlan | None = None

    def sample(self, logits: Any, requests: Sequence[EngineRequest], positions: Sequence[int]) -> Sampled:
        """Sample one token for each row; on CUDA nothing is waited for.

        Args:
            logits: [S, V] on the device; not changed.
            requests: of the rows, all different.
            positions: of the rows: the index that the sampled token will have in `request.tokens`, which is `start +
                num_tokens` of the row. Tokens before it need not have reached the host if they were sampled here, in
                the step before (but for a request with structured output they must have).

        Raises:
            ProtocolMisuse: tokens before the position are known neither here nor to the host.
            BadRequest: a structured request whose grammar cannot be used.
        """
        with torch.inference_mode():
            plan = self._plan_of(requests)
            changed = self._changed(logits, plan, positions)
            if len(plan.random) == len(requests):
                tokens = self._draw(changed, plan, positions)
            else:
                tokens = changed.argmax(-1)
                if plan.random:
                    tokens[plan.random_rows] = self._draw(changed[plan.random_rows], plan, positions)
            if plan.penalised:
                self._count(plan, tokens, positions)
            wanted: tuple[Any, ...] = (tokens,)
            if plan.logprobs:
                rows = plan.logprob_rows
                part, chosen = (logits, tokens) if len(rows) == len(requests) else (logits[rows], tokens[rows])
                wanted += measure(part, chosen, max(plan.logprob_counts))
            return Sampled(tokens, plan, OnHost(wanted))

    def collect(self, sampled: Sampled) -> Collected:
        """Wait for a step's tokens."""
        ids, *rest = sampled.on_host.wait()
        tokens: list[int] = ids.tolist()
        logprobs: list[TokenLogprobs | None] = [None] * len(tokens)
        plan = sampled.plan
        if plan.logprobs:
            lists = as_lists([tokens[row] for row in plan.logprobs], LogprobTensors(*rest), plan.logprob_counts)
            for row, entry in zip(plan.logprobs, lists, strict=True):
                logprobs[row] = entry
        return Collected(tokens, logprobs)

    def release(self, request: EngineRequest) -> None:
        """Forget a request; one that is not known is no error."""
        state = self._states.get(request.id)
        if state is None or state.request is not request:
            return
        del self._states[request.id]
        self._plan = None
        if state.slot >= 0:
            self._penalties.close(state.slot)

    @property
    def num_requests(self) -> int:
        """Requests of which something is kept."""
        return len(self._states)

    def _plan_of(self, requests: Sequence[EngineRequest]) -> SamplingPlan:
        plan = self._plan
        if (
            plan is None
            or len(plan.states) != len(requests)
            or any(state.request is not request for state, request in zip(plan.states, requests, strict=True))
        ):
            plan = self._plan = SamplingPlan(
                [self._state(request) for request in requests], self.vocab_size, self.device
            )
        return plan

    def _state(self, request: EngineRequest) -> SamplerState:
        state = self._states.get(request.id)
        if state is not None and state.request is not request:
            self.release(state.request)
            state = None
        if state is None:
            state = SamplerState(request)
            if request.params.structured is not None:
                if self._grammars is None:
                    raise ProtocolMisuse(f"request {request.id} is structured, and the sampler was given no grammars")
                state.matcher = self._grammars.matcher(request.params.structured)
            if penalised(request.params):
                state.slot = self._penalties.open()
            self._states[request.id] = state
        return state

    def _changed(self, logits: Any, plan: SamplingPlan, positions: Sequence[int]) -> Any:
        """Return logits [S, V] with everything in them that is not the choice itself; a copy if anything is."""
        least = [
            (row, token)
            for row in plan.least
            if positions[row] - plan.states[row].request.num_prompt < plan.states[row].params.min_tokens
            for token in plan.states[row].request.stop_token_ids
        ]
        if not (least or plan.structured or plan.penalised or plan.biases):
            return logits
        logits = logits.clone() if logits.dtype == torch.float64 else logits.to(torch.float32, copy=True)
        if plan.structured:
            assert self._grammars is not None
            mask_logits(logits, self._grammars, [(row, plan.states[row], positions[row]) for row in plan.structured])
        if plan.biases:
            rows, ids, values = plan.biases
            logits.index_put_((rows, ids), values.to(logits.dtype), accumulate=True)
        if least:
            rows, ids = to_device(least, torch.int64, self.device).unbind(1)
            logits[rows, ids] = -torch.inf
        if plan.penalised:
            for row in plan.penalised:
                self._catch_up(plan.states[row], positions[row])
            length = max(positions[row] for row in plan.penalised)
            penalties = plan.penalties.to(logits.dtype)
            self._penalties.apply(logits, plan.penalty_rows, plan.penalty_slots, length, penalties)
        return logits

    def _draw(self, logits: Any, plan: SamplingPlan, positions: Sequence[int]) -> Any:
        """Return a token for each random row; `logits` are theirs."""
        scaled = logits / plan.temperatures if logits.dtype == torch.float64 else logits.float() / plan.temperatures
        if plan.top_k is not None:
            filters.keep_top_k(scaled, *plan.top_k)
        weights = scaled.softmax(-1)
        if plan.min_p is not None:
            filters.keep_min_p(weights, *plan.min_p)
        if plan.top_p is not None:
            filters.keep_top_p(weights, *plan.top_p)
        noise = [uniform(plan.states[row].request.seed, positions[row]) for row in plan.random]
        return filters.choose(weights, to_device(noise, torch.float64, self.device))

    def _catch_up(self, state: SamplerState, position: int) -> None:
        """Count the tokens before a position; they have been counted unless the request is new or was put back."""
        if state.counted == position:
            return
        tokens = state.request.tokens
        if len(tokens) < position:
            raise ProtocolMisuse(
                f"request {state.request.id}: position {position} is sampled, {len(tokens)} tokens before it are known "
                f"to the host and {max(state.counted, 0)} were counted on the device"
            )
        prompt = state.request.num_prompt
        self._penalties.fill(state.slot, tokens[:prompt], tokens[prompt:position])

    def _count(self, plan: SamplingPlan, tokens: Any, positions: Sequence[int]) -> None:
        at = [positions[row] for row in plan.penalised]
        self._penalties.add(plan.penalty_slots, at, tokens[plan.penalty_rows])
        for row, position in zip(plan.penalised, at, strict=True):
            plan.states[row].counted = position + 1
