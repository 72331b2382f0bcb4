"""Expert parallelism: each rank holds some of the experts, and tokens go to the ranks that hold theirs.

Two ways, with the same result up to rounding; sums over ranks are taken in the order of the ranks, so a result depends
on nothing but its inputs:

- `all-gather`: every token goes to every rank, which applies what it holds; the parts come home and are added. Two
  collectives of known sizes, so it is the way of every forward that a CUDA graph holds.
- `all-to-all`: a token goes once to each rank that holds an expert of it. A third collective, of the sizes, comes
  first; it pays where there are many more ranks than experts per token.

A forward begins with `begin`, or `alike` where graphs are captured. A rank without tokens calls every sparse layer
with none.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Literal

import torch

from onbeat_engine.parallel.group import Group, TokensByRank
from onbeat_engine.runner.models.moe import Experts
from onbeat_spec.errors import ConfigError, ProtocolMisuse

Way = Literal["auto", "all-gather", "all-to-all"]


def split_experts(num_experts: int, size: int, counts: Sequence[int] | None = None) -> tuple[range, ...]:
    """Return which experts each rank holds: as evenly as possible, or as many as `counts` says, in order.

    Raises:
        ConfigError: `counts` does not fit.
    """
    if counts is None:
        counts = [num_experts // size + (rank < num_experts % size) for rank in range(size)]
    if len(counts) != size or sum(counts) != num_experts or min(counts) < 0:
        raise ConfigError(f"{list(counts)} does not split {num_experts} experts over {size} ranks")
    ends = list(accumulate(counts))
    return tuple(range(end - count, end) for end, count in zip(ends, counts, strict=True))


class ExpertParallel:
    """`Experts` over a group of ranks."""

    def __init__(self, group: Group, local: Experts, held: Sequence[range], way: Way = "auto") -> None:
        """Take the experts that this rank holds, and by rank which ones each holds (as `split_experts` has it)."""
        self._group = group
        self._local = local
        self._held = held
        self._tokens: tuple[int, ...] | None = None
        self._alike = False
        self._num_experts = max(experts.stop for experts in held)
        self._counts: list[int] | None = None
        """Of each sparse layer, this rank's rows that reached an expert; None: nobody counts."""
        # Measured with 2 ranks, top-2 of 4 experts (benchmarks/coordination.py): all-gather from 1 token to 256.
        self._way: Way = "all-gather" if way == "auto" and group.size <= _FEW_RANKS else "all-to-all"
        if way != "auto":
            self._way = way

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self._group.size

    def begin(self, num_tokens: int, replays: bool = False) -> TokensByRank:
        """Agree with all ranks on the forward that begins; see `Group.forward_shape`.

        Args:
            num_tokens: this rank's; 0: a dummy.
            replays: this rank could replay a graph.
        """
        shape = self._group.forward_shape(num_tokens, replays)
        self._tokens, self._alike = shape.tokens, False
        return shape

    def alike(self, num_tokens: int) -> None:
        """Let a forward begin to which all ranks bring as many tokens, as each knows already: nothing is exchanged."""
        self._tokens, self._alike = (num_tokens,) * self._group.size, True

    def count(self, forward: Callable[[], object]) -> int | None:
        """Run a forward; return how many rows of this rank reached an expert, in the layer where they were most.

        None: no layer was called (a replayed CUDA graph does not come by here), so nobody counted.
        """
        counts = self._counts = []
        try:
            forward()
        finally:
            self._counts = None
        return max(counts, default=None)

    def __call__(self, layer: int, x: Any, ids: Any, weights: Any) -> Any:
        """Apply experts `ids` [T, K] (by their numbers in the whole model) to `x` [T, H], weighted by `weights` [T, K].

        Raises:
            ProtocolMisuse: T is not what this rank told the others.
            EngineDead: a rank is gone, or does not answer.
        """
        tokens = self._tokens
        if tokens is None or len(x) != tokens[self._group.rank]:
            raise ProtocolMisuse(
                f"rank {self._group.rank} has {len(x)} tokens in layer {layer}, and told the others of {tokens}; "
                f"call begin with their number first"
            )
        if self._counts is not None:
            # Without rows nothing is read back from a device.
            self._counts.append(int((ids < self._num_experts).any(dim=1).sum()) if len(x) else 0)
        if sum(tokens) == 0:
            return x
        way = self._gathered if self._alike or self._way == "all-gather" else self._dispatched
        return way(layer, x, ids, weights, tokens)

    def _gathered(self, layer: int, x: Any, ids: Any, weights: Any, tokens: tuple[int, ...]) -> Any:
        """Every token to every rank, the parts back."""
        size, mine = self._group.size, len(x)
        rows = _pack(x, ids, weights)
        everybody = rows.new_empty(sum(tokens), rows.shape[1])
        self._group.all_gather(everybody, rows, tokens)
        parts = self._local(layer, *_unpack(everybody, x, ids, weights))
        home = parts.new_empty(size * mine, x.shape[1])
        self._group.all_to_all(home, parts, [mine] * size, tokens)
        return _add(home.view(size, *x.shape)).to(x.dtype)

    def _dispatched(self, layer: int, x: Any, ids: Any, weights: Any, tokens: tuple[int, ...]) -> Any:
        """Every token to the ranks that hold an expert of it, the parts back."""
        goes = [((ids >= held.start) & (ids < held.stop)).any(dim=1).nonzero().squeeze(1) for held in self._held]
        send = [len(rows) for rows in goes]
        receive = self._group.counts(send)
        order = torch.cat(goes)
        rows = _pack(x, ids, weights)
        here = rows.new_empty(sum(receive), rows.shape[1])
        self._group.all_to_all(here, rows[order], receive, send)
        parts = self._local(layer, *_unpack(here, x, ids, weights))
        home = parts.new_empty(len(order), x.shape[1])
        self._group.all_to_all(home, parts, send, receive)
        total = torch.zeros(x.shape, dtype=home.dtype, device=x.device)
        for rows_of, part in zip(goes, home.split(send), strict=True):
            total[rows_of] += part  # no row twice, so the order of additions is the order of the ranks
        return total.to(x.dtype)


_FEW_RANKS = 4
"""Up to here each rank needs most of the tokens anyway."""


def _add(parts: Any) -> Any:
    """Add [N, T, H] over N, from the first on: the order in which `sum` adds is nobody's promise."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _pack(x: Any, ids: Any, weights: Any) -> Any:
    """Put tokens, experts and weights side by side, as bytes [T, B]: one collective instead of three."""
    return torch.cat([_bytes(weights), _bytes(ids), _bytes(x)], dim=1)


def _unpack(rows: Any, x: Any, ids: Any, weights: Any) -> tuple[Any, Any, Any]:
    found, at = [], 0
    for like in (weights, ids, x):
        width = like.shape[1] * like.element_size()
        # Of a single row `contiguous` would copy nothing, and where it lies it may not be read as wider numbers.
        part = rows[:, at : at + width].clone(memory_format=torch.contiguous_format)
        found.append(part.view(like.dtype))
        at += width
    return found[2], found[1], found[0]


def _bytes(tensor: Any) -> Any:
    return tensor.contiguous().view(torch.uint8)
