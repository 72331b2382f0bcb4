"""Mixture of experts: the router, and the experts that this process holds."""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F

from onbeat_engine.runner.models.linear import Linear

_ALL_AT_ONCE = 256
"""On a GPU, up to so many tokens go through all experts: nothing is read back, so a CUDA graph can hold it."""


class Experts(Protocol):
    """Runs each token through the experts that were chosen for it.

    One that holds only some of the experts leaves the others out of the sum.
    """

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sums of the chosen experts' outputs.

        Args:
            layer: number of the decoder layer.
            x: [T, H]; T may be 0.
            ids: [T, K] int64, experts by their numbers in the whole model.
            weights: [T, K], float32 (float64 for a float64 model).

        Returns:
            [T, H], of x's dtype.
        """
        ...


class ExpertWeights(NamedTuple):
    """The experts lo .. hi - 1 of one layer."""

    gate_up: torch.Tensor
    """[hi - lo, 2 I, H]: rows of the gate first."""
    down: torch.Tensor
    """[hi - lo, H, I]"""


class _Expert(NamedTuple):
    gate_up: Linear
    down: Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


def route(scores: torch.Tensor, top_k: int, normalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts: softmax over all of them, then the `top_k` most likely.

    Args:
        scores: [T, E], the router's.
        normalise: scale the chosen weights to the sum 1.

    Returns:
        ids [T, K] int64 and weights [T, K] float32 (float64 for float64).
    """
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    weights, ids = scores.softmax(-1, dtype=wide).topk(top_k, dim=-1)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights


class LocalExperts:
    """The experts lo .. hi - 1, in this process. What was chosen beyond them adds nothing."""

    def __init__(self, layers: Mapping[int, ExpertWeights], lo: int, hi: int, num_experts: int) -> None:
        self.lo = lo
        self.hi = hi
        self.num_experts = num_experts
        self._stacked = dict(layers)
        self._each = {layer: _apart(weights) for layer, weights in layers.items()}

    @property
    def complete(self) -> bool:
        """Whether these are all experts of the model."""
        return (self.lo, self.hi) == (0, self.num_experts)

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See `Experts`."""
        if x.is_cuda and x.shape[0] <= _ALL_AT_ONCE:
            return self._all_at_once(layer, x, ids, weights)
        return self._by_expert(layer, x, ids, weights)

    def pack(self) -> None:
        """Lay the weights out for the CPU's kernels (`Linear.pack`), in place of those as they were loaded."""
        for layer, experts in self._each.items():
            linears = [linear for expert in experts for linear in expert]
            for linear in linears:
                linear.pack()
            if linears and all(linear.packed for linear in linears):
                self._stacked.pop(layer, None)

    def _by_expert(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Sort the choices by expert; one pair of products for each expert that was chosen at all."""
        out = torch.zeros_like(x, dtype=weights.dtype)
        flat, order = ids.flatten().sort(stable=True)
        edges = torch.searchsorted(flat, torch.arange(self.lo, self.hi + 1, device=ids.device)).tolist()
        rows = order // ids.shape[1]
        scale = weights.flatten()[order].unsqueeze(1)
        for expert, (begin, end) in zip(self._each[layer], pairwise(edges), strict=True):
            if begin < end:
                mine = rows[begin:end]
                out.index_add_(0, mine, expert(x[mine]).to(out.dtype) * scale[begin:end])
        return out.to(x.dtype)

    def _all_at_once(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Run every token through every expert held, and weigh those that were not chosen with 0."""
        held = self._stacked[layer]
        count = self.hi - self.lo
        local = ids - self.lo
        local = local.masked_fill((local < 0) | (local >= count), count)  # a column more, which is dropped
        scale = weights.new_zeros(x.shape[0], count + 1).scatter_add_(1, local, weights)[:, :count]
        gate, up = torch.matmul(x, held.gate_up.transpose(1, 2)).chunk(2, dim=-1)
        y = torch.bmm(F.silu(gate) * up, held.down.transpose(1, 2))
        return torch.einsum("te,eth->th", scale, y.to(scale.dtype)).to(x.dtype)


def _apart(weights: ExpertWeights) -> list[_Expert]:
    """Return the experts one by one; experts that share one memory (`upcycle`) are one object."""
    count = weights.gate_up.shape[0]
    if count > 1 and weights.gate_up.stride(0) == 0 == weights.down.stride(0):
        return [_Expert(Linear(weights.gate_up[0]), Linear(weights.down[0]))] * count
    return [_Expert(Linear(gate_up), Linear(down)) for gate_up, down in zip(*weights, strict=True)]
