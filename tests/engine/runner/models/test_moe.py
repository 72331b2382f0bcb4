"""Router, experts and slices of them."""

import pytest
import torch

from onbeat_engine.runner.models.moe import ExpertWeights, LocalExperts, route

GENERATOR = torch.Generator().manual_seed(3)
WEIGHTS = ExpertWeights(torch.randn(5, 2 * 6, 8, generator=GENERATOR), torch.randn(5, 8, 6, generator=GENERATOR))


def one_by_one(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the definition, token by token."""
    rows = []
    for token in range(x.shape[0]):
        total = torch.zeros(x.shape[1])
        for expert, weight in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            gate, up = (WEIGHTS.gate_up[expert] @ x[token]).chunk(2)
            total += weight * (WEIGHTS.down[expert] @ (gate * gate.sigmoid() * up))
        rows.append(total)
    return torch.stack(rows)


def choices(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, and what a router chose for them."""
    x = torch.randn(tokens, 8, generator=GENERATOR)
    ids, weights = route(x @ torch.randn(8, 5, generator=GENERATOR), 3, True)
    return x, ids, weights


def held(lo: int, hi: int) -> LocalExperts:
    """Return a part of the experts."""
    return LocalExperts({7: ExpertWeights(WEIGHTS.gate_up[lo:hi], WEIGHTS.down[lo:hi])}, lo, hi, 5)


@pytest.mark.parametrize("normalise", [True, False])
def test_route_takes_the_most_likely(normalise: bool) -> None:
    scores = torch.randn(9, 5, generator=GENERATOR)
    ids, weights = route(scores, 2, normalise)
    likely = scores.softmax(-1)
    right, order = likely.sort(-1, descending=True)
    assert torch.equal(ids, order[:, :2])
    scale = right[:, :2].sum(-1, keepdim=True) if normalise else 1
    assert torch.allclose(weights, right[:, :2] / scale)


def test_weights_are_float32_whatever_the_model() -> None:
    scores = torch.randn(4, 5)
    assert route(scores.bfloat16(), 2, True)[1].dtype == torch.float32
    assert route(scores.double(), 2, True)[1].dtype == torch.float64


def test_experts_are_the_weighted_sum() -> None:
    x, ids, weights = choices(20)
    assert torch.allclose(held(0, 5)(7, x, ids, weights), one_by_one(x, ids, weights), atol=1e-5)


@pytest.mark.parametrize("tokens", [0, 1, 20])
def test_slices_add_up_to_the_whole(tokens: int) -> None:
    """Uneven ones, an empty one among them."""
    x, ids, weights = choices(tokens)
    whole = held(0, 5)(7, x, ids, weights)
    parts = [held(lo, hi)(7, x, ids, weights) for lo, hi in ((0, 1), (1, 4), (4, 4), (4, 5))]
    assert whole.shape == x.shape
    assert torch.allclose(sum(parts), whole, atol=1e-5)


def test_the_way_without_reading_back_computes_the_same() -> None:
    """What a GPU does for few tokens, here on the CPU; slices too, and an expert chosen twice."""
    x, ids, weights = choices(20)
    ids[0] = torch.tensor([2, 2, 4])
    for lo, hi in ((0, 5), (1, 4), (2, 2)):
        part = held(lo, hi)
        assert torch.allclose(part._all_at_once(7, x, ids, weights), part(7, x, ids, weights), atol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_packed_experts_compute_the_same(shared: bool) -> None:
    """Shared: all in one memory, as upcycling makes them."""
    x, ids, weights = choices(20)
    same = ExpertWeights(*(each[:1].expand(5, -1, -1) for each in WEIGHTS))
    experts = LocalExperts({7: same if shared else WEIGHTS}, 0, 5, 5)
    before = experts(7, x, ids, weights)
    experts.pack()
    assert torch.allclose(experts(7, x, ids, weights), before, atol=1e-5)


def test_choices_nobody_made_add_nothing() -> None:
    """A padded row carries expert -1, or one beyond the last."""
    x, ids, weights = choices(3)
    ids[1], ids[2] = -1, 5
    experts = held(0, 5)
    for found in (experts(7, x, ids, weights), experts._all_at_once(7, x, ids, weights)):
        assert found[0].abs().sum() > 0
        assert not found[1:].any()
