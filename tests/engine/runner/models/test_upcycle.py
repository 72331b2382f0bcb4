"""A dense model made into a mixture of experts has the same outputs."""

from pathlib import Path

import pytest
import torch

from onbeat_engine.runner.models.load import load_model
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.errors import ModelError
from tests.engine.runner.models import tiny
from tests.engine.runner.models.test_decoder import TOKENS


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (4, 2), (7, 7)])
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("float64", 1e-12)])
def test_the_outputs_stay(experts: int, top_k: int, dtype: str, bound: float, tmp_path: Path) -> None:
    tiny.llama(tmp_path)
    dense = load_model(EngineConfig(model=str(tmp_path), dtype=dtype))  # type: ignore[arg-type]  # one of its literals
    moe = load_model(
        EngineConfig(model=str(tmp_path), dtype=dtype, moe_upcycle=experts, moe_top_k=top_k, seed=5)  # type: ignore[arg-type]  # as above
    )
    assert (moe.config.num_experts, moe.config.top_k, moe.config.sparse_layers) == (experts, top_k, (0, 1))
    assert tiny.error(tiny.logits(moe.decoder, TOKENS), tiny.logits(dense.decoder, TOKENS)) < bound


def test_parts_add_up_to_the_whole(tmp_path: Path) -> None:
    """Each layer's experts, held in two parts, give what one process gives that holds all."""
    tiny.qwen3(tmp_path)
    config = EngineConfig(model=str(tmp_path), moe_upcycle=5, moe_top_k=2)
    whole = load_model(config)
    left, right = (load_model(config, expert_range=part).decoder.experts for part in ((0, 3), (3, 5)))
    assert left is not None
    assert right is not None

    def together(layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        assert 0 < int((ids < 3).sum()) < ids.numel(), "the router uses both parts"
        return left(layer, x, ids, weights) + right(layer, x, ids, weights)

    found = tiny.logits(whole.decoder, TOKENS, together)
    assert tiny.error(found, tiny.logits(whole.decoder, TOKENS)) < 1e-5


def test_all_ranks_have_the_same_router(tmp_path: Path) -> None:
    tiny.llama(tmp_path)
    config = EngineConfig(model=str(tmp_path), moe_upcycle=4)
    first, second = (load_model(config, expert_range=part).decoder.layers[1].router for part in ((0, 2), (2, 4)))
    assert first is not None
    assert second is not None
    assert torch.equal(first.weight, second.weight)
    other = load_model(EngineConfig(model=str(tmp_path), moe_upcycle=4, seed=1)).decoder.layers[1].router
    assert other is not None
    assert not torch.equal(first.weight, other.weight)


def test_what_cannot_be_upcycled(tmp_path: Path) -> None:
    tiny.qwen3_moe(tmp_path)
    with pytest.raises(ModelError, match="has 6 experts already"):
        load_model(EngineConfig(model=str(tmp_path), moe_upcycle=4))
    tiny.llama(tmp_path / "dense")
    with pytest.raises(ModelError, match=r"expert_range is 2\.\.5"):
        load_model(EngineConfig(model=str(tmp_path / "dense"), moe_upcycle=4), expert_range=(2, 5))
