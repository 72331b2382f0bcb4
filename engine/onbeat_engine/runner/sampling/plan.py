"""What the sampler knows of a batch; it stays as long as the same requests are sampled, step after step."""

from collections.abc import Sequence
from typing import Any

import torch

from onbeat_engine.runner.executor import EngineRequest
from onbeat_engine.runner.sampling.transfer import to_device
from onbeat_engine.text.grammars import Matcher
from onbeat_engine.wire.params import SamplingParams


class SamplerState:
    """What the sampler keeps of one request."""

    __slots__ = ("counted", "matcher", "params", "request", "slot")

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.params = request.params
        self.slot = -1
        """Its slot of `Penalties`, if it has penalties."""
        self.counted = -1
        """Tokens, prompt included, that its slot has counted."""
        self.matcher: Matcher | None = None
        """Its place in its grammar, if it has one."""


def penalised(params: SamplingParams) -> bool:
    """Return whether what was seen changes what comes."""
    return bool(params.presence_penalty or params.frequency_penalty) or params.repetition_penalty != 1.0


class SamplingPlan:
    """A batch of S requests, as index lists and tensors on the device.

    Args:
        states: of the requests, in the order of the logits' rows.
        vocab_size: V.
        device: a torch.device.
    """

    def __init__(self, states: Sequence[SamplerState], vocab_size: int, device: Any) -> None:
        self.states = list(states)
        params = [state.params for state in states]

        def on_device(values: Sequence[Any], dtype: Any = torch.int64) -> Any:
            return to_device(values, dtype, device)

        self.random = [row for row, p in enumerate(params) if not p.greedy]
        self.least = [row for row, p in enumerate(params) if p.min_tokens and p.structured is None]
        """Rows with a least number of tokens. A structured text ends where its grammar says."""
        self.structured = [row for row, p in enumerate(params) if p.structured is not None]
        self.penalised = [row for row, p in enumerate(params) if penalised(p)]
        self.logprobs = [row for row, p in enumerate(params) if p.logprobs is not None]
        self.logprob_counts = [params[row].logprobs or 0 for row in self.logprobs]

        biases = [(row, *bias) for row, p in enumerate(params) for bias in p.logit_bias.items()]
        self.biases: Any = None
        if biases:
            rows, ids, values = zip(*biases, strict=True)
            self.biases = (on_device(rows), on_device(ids), on_device(values, torch.float32))
        if self.penalised:
            self.penalty_rows = on_device(self.penalised)
            self.penalty_slots = on_device([states[row].slot for row in self.penalised])
            names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
            table = [[[getattr(params[row], name)] for row in self.penalised] for name in names]
            self.penalties = on_device(table, torch.float32)
            """[3, n, 1]"""
        if self.logprobs:
            self.logprob_rows = on_device(self.logprobs)
        self._filters([params[row] for row in self.random], vocab_size, on_device)

    def _filters(self, params: Sequence[SamplingParams], vocab_size: int, on_device: Any) -> None:
        """Set what the random rows need; row numbers here count random rows only."""
        if not params:
            return
        self.random_rows = on_device(self.random)
        self.temperatures = on_device([[p.temperature] for p in params], torch.float32)
        self.top_k: Any = None
        self.top_p: Any = None
        self.min_p: Any = None
        rows = [row for row, p in enumerate(params) if 0 < p.top_k < vocab_size]
        if rows:
            ks = [params[row].top_k for row in rows]
            self.top_k = (on_device(rows), on_device(ks), max(ks))
        rows = [row for row, p in enumerate(params) if p.top_p < 1.0]
        if rows:
            self.top_p = (on_device(rows), on_device([params[row].top_p for row in rows], torch.float64))
        rows = [row for row, p in enumerate(params) if p.min_p > 0.0]
        if rows:
            self.min_p = (on_device(rows), on_device([params[row].min_p for row in rows], torch.float32))
