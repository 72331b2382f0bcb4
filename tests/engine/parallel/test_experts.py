"""Expert parallelism gives what one rank that holds all experts gives."""

from typing import Any

import pytest
import torch

from onbeat_engine.parallel.experts import ExpertParallel, Way, split_experts
from onbeat_engine.parallel.group import Through
from onbeat_engine.parallel.place import GroupPlace
from onbeat_engine.wire.errors import EngineDead
from onbeat_spec.errors import ConfigError, ProtocolMisuse
from tests.engine.parallel.ranks import join, run, well

EXPERTS, HIDDEN, LAYERS = 5, 8, 2
FORWARDS = [(4, 4, 4), (3, 0, 7), (0, 0, 0), (0, 1, 0), (0, 0, 33), (0, 1, 0)]
TOP_KS = [2, 3, 2, 2, 1, 1]
"""Of each forward."""


class Slice:
    """Some experts of a layer, one product each; the others are left out of the sum."""

    def __init__(self, held: range, dtype: Any) -> None:
        made = torch.Generator().manual_seed(7)
        self.matrices = torch.randn(LAYERS, EXPERTS, HIDDEN, HIDDEN, generator=made, dtype=torch.float64).to(dtype)
        self.held = held

    def __call__(self, layer: int, x: Any, ids: Any, weights: Any) -> Any:
        total = torch.zeros_like(x)
        for expert in self.held:
            for k in range(ids.shape[1]):
                share = torch.where(ids[:, k : k + 1] == expert, weights[:, k : k + 1], 0).to(x.dtype)
                total = total + share * (x @ self.matrices[layer, expert])
        return total


def tokens_of(rank: int, number: int, forward: int, dtype: Any, top_k: int = 2) -> tuple[Any, Any, Any]:
    made = torch.Generator().manual_seed(100 * forward + rank)
    x = torch.randn(number, HIDDEN, generator=made, dtype=torch.float64).to(dtype)
    scores = torch.rand(number, EXPERTS, generator=made)
    weights, ids = torch.topk(torch.softmax(scores, dim=1), top_k, dim=1)
    return x, ids, weights


def forwards(place: GroupPlace, through: Through, cases: list[tuple[Way, list[int] | None, str]]) -> list[float]:
    """By case, the largest difference from all experts on one rank."""
    group = join(place, through=through)
    differences = []
    for way, counts, name in cases:
        dtype = getattr(torch, name)
        held = split_experts(EXPERTS, place.size, counts)
        shared = ExpertParallel(group, Slice(held[place.rank], dtype), held, way)
        whole = Slice(range(EXPERTS), dtype)
        worst = 0.0
        for forward, numbers in enumerate(FORWARDS):
            x, ids, weights = tokens_of(place.rank, numbers[place.rank], forward, dtype, TOP_KS[forward])
            if forward == 0:
                shared.alike(len(x))  # all know that already
            else:
                assert shared.begin(len(x)).tokens == numbers[: place.size]
            y = x
            for layer in range(LAYERS):
                got = shared(layer, y, ids, weights)
                assert got.shape == y.shape
                assert got.dtype == dtype
                expected = whole(layer, y, ids, weights)
                worst = max([worst, *((got - expected).abs() / (1 + expected.abs())).flatten().tolist()])
                y = got
        differences.append(worst)
    group.close()
    return differences


def cases(size: int) -> list[tuple[Way, list[int] | None, str]]:
    uneven: list[int] = [4, 1] if size == 2 else [1, 0, 4]
    ways: tuple[Way, Way] = ("all-gather", "all-to-all")
    return [(way, counts, dtype) for way in ways for counts in (None, uneven) for dtype in ("float32", "bfloat16")]


@pytest.mark.parametrize("through", ["memory", "gloo"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_same_as_on_one_rank(size: int, through: Through) -> None:
    several = cases(size) if size > 1 else [("auto", None, "float32")]
    for differences in well(run(size, forwards, through, several)):
        for (way, counts, dtype), worst in zip(several, differences, strict=True):
            assert worst <= (1e-6 if dtype == "float32" else 2e-2), (way, counts, dtype)


def misuse(place: GroupPlace) -> None:
    group = join(place)
    held = split_experts(EXPERTS, place.size)
    shared = ExpertParallel(group, Slice(held[place.rank], torch.float32), held)
    shared.begin(2)
    shared(0, *tokens_of(0, 3, 0, torch.float32))


def test_other_tokens_than_were_told_are_refused() -> None:
    for error in run(2, misuse):
        assert isinstance(error, ProtocolMisuse)
        assert "has 3 tokens in layer 0, and told the others of (2, 2)" in str(error)


def leaves(place: GroupPlace) -> Any:
    group = join(place)
    held = split_experts(EXPERTS, place.size)
    shared = ExpertParallel(group, Slice(held[place.rank], torch.float32), held)
    shared.begin(2)
    if place.rank == 1:
        return None
    return shared(0, *tokens_of(0, 2, 0, torch.float32))


def test_a_rank_that_is_gone_in_the_middle_of_a_forward() -> None:
    error, _ = run(2, leaves)
    assert isinstance(error, EngineDead)
    assert "an all-gather of rank 0 with 1 others failed" in str(error)


def test_splits() -> None:
    assert split_experts(8, 2) == (range(4), range(4, 8))
    assert split_experts(5, 3) == (range(2), range(2, 4), range(4, 5))
    assert split_experts(2, 3) == (range(1), range(1, 2), range(2, 2))
    assert split_experts(5, 2, [1, 4]) == (range(1), range(1, 5))
    for wrong in ([1, 3], [5], [6, -1]):
        with pytest.raises(ConfigError, match="does not split 5 experts over 2 ranks"):
            split_experts(5, 2, wrong)
