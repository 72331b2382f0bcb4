"""Top-k, min-p and top-p, by hand and beside transformers' processors; the choice."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onbeat_engine.runner.sampling import filters

torch.set_num_threads(1)


def rows(*indices: int) -> Any:
    return torch.tensor(indices)


def test_top_k_by_hand() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0], [1.0, 4.0, 2.0, 3.0], [0.0, 0.0, 0.0, 1.0]])
    filters.keep_top_k(logits, rows(0, 1), torch.tensor([1, 3]), 3)
    none = -torch.inf
    # Both of the most likely stay: they are equally likely.
    assert logits.tolist() == [[none, 3.0, none, 3.0], [none, 4.0, 2.0, 3.0], [0.0, 0.0, 0.0, 1.0]]


def test_min_p_by_hand() -> None:
    weights = torch.tensor([[1.0, 0.5, 0.25, 0.2], [1.0, 0.1, 0.1, 0.1]])
    filters.keep_min_p(weights, rows(0), torch.tensor([0.25]))
    assert weights.tolist() == [[1.0, 0.5, 0.25, 0.0], pytest.approx([1.0, 0.1, 0.1, 0.1])]


@pytest.mark.parametrize(
    ("share", "kept"),
    [(0.4, [4, 0, 0, 0]), (0.5, [4, 0, 0, 0]), (0.51, [4, 2, 0, 0]), (0.75, [4, 2, 0, 0]), (0.76, [4, 2, 1, 1])],
)
def test_top_p_by_hand(share: float, kept: list[float]) -> None:
    """Shares 1/2, 1/4, 1/8, 1/8; the last two stay or go together."""
    weights = torch.tensor([[4.0, 2.0, 1.0, 1.0]])
    filters.keep_top_p(weights, rows(0), torch.tensor([share], dtype=torch.float64))
    assert weights.tolist() == [kept]


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 60), st.floats(0.01, 0.99), st.floats(0.0, 1.0))
def test_like_transformers(seed: int, k: int, share: float, least: float) -> None:
    transformers = pytest.importorskip("transformers")
    logits = torch.randn(3, 60, generator=torch.Generator().manual_seed(seed)) * 3
    theirs = transformers.TopKLogitsWarper(k)(None, transformers.MinPLogitsWarper(least)(None, logits))
    theirs = transformers.TopPLogitsWarper(share)(None, theirs)
    ours = logits.clone()
    every = rows(0, 1, 2)
    filters.keep_top_k(ours, every, torch.tensor([k] * 3), k)
    weights = ours.sub(ours.amax(-1, keepdim=True)).exp()
    filters.keep_min_p(weights, every, torch.tensor([least] * 3))
    filters.keep_top_p(weights, every, torch.tensor([share] * 3, dtype=torch.float64))
    assert torch.equal(weights > 0, theirs > -torch.inf)


def test_host_and_device_agree() -> None:
    """On a CPU only what can matter is summed up; the thresholds are those of the way without the host."""
    generator = torch.Generator().manual_seed(1)
    for scale in (0.01, 1.0, 10.0):
        weights = (torch.randn(4, 500, generator=generator) * scale).exp()
        shares = torch.tensor([0.1, 0.5, 0.9, 0.999], dtype=torch.float64)
        thresholds = filters.top_p_thresholds(weights, shares)
        expected = weights.masked_fill(weights < thresholds, 0.0)
        kept = weights.clone()
        filters.keep_top_p(kept, rows(0, 1, 2, 3), shares)
        assert torch.equal(kept, expected)
        counts = torch.tensor([1, 2, 77, 500])
        expected = weights.masked_fill(weights < filters.top_k_thresholds(weights, counts, 500), -torch.inf)
        filters.keep_top_k(weights, rows(0, 1, 2, 3), counts, 500)
        assert torch.equal(weights, expected)
        assert (weights > -torch.inf).sum(-1).tolist() == counts.tolist()


def test_choice_by_hand() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 3.0]]).expand(6, 4)
    noise = torch.tensor([0.0, 0.2499, 0.25, 0.26, 0.9, 1 - 2.0**-52], dtype=torch.float64)
    assert filters.choose(weights, noise).tolist() == [1, 1, 3, 3, 3, 3]


def test_roundings_choose_nothing_without_weight() -> None:
    """Small weights are lost one by one beside a large one, and are not when they are summed up among themselves."""
    weights = torch.zeros(1, filters.BLOCK)
    weights[0, 1:400] = 2.0**-54
    weights[0, 0] = 1.0
    assert weights.sum(dtype=torch.float64) > weights.cumsum(-1, dtype=torch.float64)[0, -1]
    chosen = filters.choose(weights, torch.tensor([1 - 2.0**-52], dtype=torch.float64))
    assert weights[0, chosen] > 0


def test_choice_in_blocks() -> None:
    """As one running sum over all tokens would have it."""
    for size in (filters.BLOCK - 1, filters.BLOCK, 3 * filters.BLOCK + 5):
        generator = torch.Generator().manual_seed(size)
        weights = torch.randn(200, size, generator=generator).mul(4).exp()
        weights[:, : size // 2] = 0.0
        noise = torch.rand(200, dtype=torch.float64, generator=generator)
        sums = weights.double().cumsum(-1)
        expected = (sums <= noise[:, None] * sums[:, -1:]).sum(-1)
        assert torch.equal(filters.choose(weights, noise), expected)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 1e-30, 1e-3, 1.0]), min_size=1, max_size=50), st.integers(0, 2**52 - 1))
def test_only_what_has_weight_is_chosen(weights: list[float], noise: int) -> None:
    if sum(weights) > 0:
        chosen = filters.choose(torch.tensor([weights]), torch.tensor([noise / 2**52], dtype=torch.float64))
        assert weights[int(chosen)] > 0


def test_no_numbers() -> None:
    """A model that overflows brings a token, not an index out of range."""
    weights = torch.full((2, 3), torch.nan)
    assert all(0 <= id < 3 for id in filters.choose(weights, torch.tensor([0.0, 0.9], dtype=torch.float64)).tolist())
