"""Top-k, min-p, top-p, and the choice itself. Rows know nothing of each other: what else is in a batch changes nothing.

All three keep the tokens that are at least as likely as some threshold, so tokens of equal probability stay or go
together, and what is kept does not depend on the order of a sort. They apply as in vLLM: each to what the one before it
left, in the order min-p, top-k, top-p (min-p and top-k commute).
"""

from typing import Any

import torch


def keep_top_k(logits: Any, rows: Any, k: Any, most: int) -> None:
    """Set all but the k most likely tokens of some rows to minus infinity, in place.

    Args:
        logits: [R, V].
        rows: [n] indices.
        k: [n] between 1 and V.
        most: the largest of k.
    """
    part = logits[rows]
    threshold = part.topk(most, dim=-1).values.gather(1, k[:, None] - 1)
    logits[rows] = part.masked_fill_(part < threshold, -torch.inf)


def keep_min_p(weights: Any, rows: Any, min_p: Any) -> None:
    """Zero what is less likely than min_p times the most likely, in place.

    Args:
        weights: [R, V], unnormalised probabilities with largest value 1 in each row.
        rows: [n] indices.
        min_p: [n] between 0 and 1.
    """
    part = weights[rows]
    weights[rows] = part.masked_fill_(part < min_p[:, None], 0.0)


def keep_top_p(weights: Any, rows: Any, top_p: Any) -> None:
    """Zero all but the smallest set of most likely tokens that has a share of top_p, in place.

    Args:
        weights: [R, V], unnormalised probabilities.
        rows: [n] indices.
        top_p: [n] float64 in (0, 1).
    """
    if weights.is_cuda:
        part = weights[rows]
        weights[rows] = part.masked_fill_(part < _threshold(part, top_p), 0.0)
        return
    # Tokens below a share of (1 - top_p) / V have together less than 1 - top_p, so none of them is needed: on a CPU
    # sorting the others only is what makes top-p affordable.
    for row, share in zip(rows.tolist(), top_p.tolist(), strict=True):
        one = weights[row]
        floor = one.sum(dtype=torch.float64).item() * (1.0 - share) / one.numel() * 0.999
        some = one[one >= floor]
        threshold = _threshold(some[None], torch.tensor([share], dtype=torch.float64), one.sum(dtype=torch.float64))
        one.masked_fill_(one < threshold[0], 0.0)


def _threshold(weights: Any, top_p: Any, total: Any = None) -> Any:
    """Return [R, 1]: the weight of the least likely token that is kept."""
    ordered = weights.sort(dim=-1, descending=True).values
    sums = ordered.cumsum(-1, dtype=torch.float64)
    wanted = top_p[:, None] * (sums[:, -1:] if total is None else total)
    last = torch.searchsorted(sums, wanted).clamp_(max=ordered.shape[-1] - 1)
    return ordered.gather(1, last)


def choose(weights: Any, noise: Any) -> Any:
    """Return [R] token ids: the first at which the running sum of weights exceeds noise times their total.

    Args:
        weights: [R, V], unnormalised probabilities.
        noise: [R] float64 in [0, 1).
    """
    sums = weights.cumsum(-1, dtype=torch.float64)
    wanted = noise[:, None] * sums[:, -1:]
    # Weights that are no numbers, out of a model that overflowed, must not become an index out of range.
    return torch.searchsorted(sums, wanted, right=True).squeeze(1).clamp_(max=weights.shape[-1] - 1)
