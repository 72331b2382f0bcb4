"""Top-k, min-p, top-p, and the choice itself. Rows know nothing of each other: what else is in a batch changes nothing.

All three keep the tokens that are at least as likely as some threshold, so tokens of equal probability stay or go
together, and what is kept does not depend on the order of a sort. They apply as in vLLM: each to what the one before it
left, in the order min-p, top-k, top-p (min-p and top-k commute).

On a CPU the thresholds are found by numpy, whose sort and partition are many times as fast as torch's there.
"""

from typing import Any

import numpy as np
import torch

BLOCK = 512
"""Tokens whose weights are summed up before any running sum is made."""


def keep_top_k(logits: Any, rows: Any, k: Any, most: int) -> None:
    """Set all but the k most likely tokens of some rows to minus infinity, in place.

    Args:
        logits: [R, V].
        rows: [n] indices.
        k: [n] between 1 and V.
        most: the largest of k.
    """
    if logits.is_cuda:
        part = logits[rows]
        logits[rows] = part.masked_fill_(part < top_k_thresholds(part, k, most), -torch.inf)
        return
    for row, count in zip(rows.tolist(), k.tolist(), strict=True):
        one = logits[row]
        at = one.numel() - count
        one.masked_fill_(one < float(np.partition(one.numpy(), at)[at]), -torch.inf)


def keep_min_p(weights: Any, rows: Any, min_p: Any) -> None:
    """Zero what is less likely than min_p times the most likely, in place.

    Args:
        weights: [R, V], unnormalised probabilities.
        rows: [n] indices.
        min_p: [n] between 0 and 1.
    """
    part = weights[rows]
    weights[rows] = part.masked_fill_(part < min_p[:, None] * part.amax(-1, keepdim=True), 0.0)


def keep_top_p(weights: Any, rows: Any, top_p: Any) -> None:
    """Zero all but the smallest set of most likely tokens that has a share of top_p, in place.

    Args:
        weights: [R, V], unnormalised probabilities.
        rows: [n] indices.
        top_p: [n] float64 in (0, 1).
    """
    if weights.is_cuda:
        part = weights[rows]
        weights[rows] = part.masked_fill_(part < top_p_thresholds(part, top_p), 0.0)
        return
    for row, share in zip(rows.tolist(), top_p.tolist(), strict=True):
        one = weights[row]
        one.masked_fill_(one < _top_p_threshold(one.numpy(), share), 0.0)


def top_k_thresholds(logits: Any, k: Any, most: int) -> Any:
    """Return [n, 1]: the k-th largest of each row; the way without the host."""
    return logits.topk(most, dim=-1).values.gather(1, k[:, None] - 1)


def top_p_thresholds(weights: Any, top_p: Any) -> Any:
    """Return [n, 1]: the weight of the least likely token that is kept; the way without the host."""
    ordered = weights.sort(dim=-1, descending=True).values
    sums = ordered.cumsum(-1, dtype=torch.float64)
    last = torch.searchsorted(sums, top_p[:, None] * sums[:, -1:]).clamp_(max=ordered.shape[-1] - 1)
    return ordered.gather(1, last)


def _top_p_threshold(weights: Any, share: float) -> float:
    """Return the weight of the least likely token that is kept.

    Tokens below (1 - share) / V of the total have together less than 1 - share, so none of them is needed and none of
    them is summed up.
    """
    total = float(weights.sum(dtype=np.float64))
    ordered = np.sort(weights)
    lowest = int(np.searchsorted(ordered, total * (1.0 - share) / weights.size * 0.999))
    ordered = ordered[lowest:][::-1]
    sums = torch.from_numpy(ordered.copy()).cumsum(0, dtype=torch.float64).numpy()
    last = int(np.searchsorted(sums, share * total))
    return float(ordered[min(last, ordered.size - 1)]) if ordered.size else 0.0


def choose(weights: Any, noise: Any) -> Any:
    """Return [R] token ids: the first at which the running sum of weights exceeds noise times their total.

    The sum runs over blocks of tokens, and then over the tokens of one block.

    Args:
        weights: [R, V], unnormalised probabilities.
        noise: [R] float64 in [0, 1).
    """
    size = weights.shape[-1]
    if size % BLOCK:
        weights = torch.nn.functional.pad(weights, (0, BLOCK - size % BLOCK))
    blocks = weights.view(weights.shape[0], -1, BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    wanted = noise[:, None] * sums[:, -1:]
    block = _first_above(sums, wanted)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK)).squeeze(1).cumsum(-1, dtype=torch.float64)
    # The two sums over a block may differ by a rounding; a token without weight must not be chosen for that.
    rest = torch.minimum(wanted - before, inside[:, -1:] * (1 - 2.0**-52))
    return (block * BLOCK + _first_above(inside, rest)).squeeze(1).clamp_(max=size - 1)


def _first_above(sums: Any, wanted: Any) -> Any:
    """Return [R, 1]: the first index at which a running sum exceeds what is wanted.

    Sums that are no numbers, out of a model that overflowed, must not become an index out of range.
    """
    return torch.searchsorted(sums, wanted, right=True).clamp_(max=sums.shape[-1] - 1)
