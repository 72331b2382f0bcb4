"""Models of random weights in a folder."""

from pathlib import Path

import pytest
import torch

from benchmarks._weights import SHAPES, RandomWeights, write_model
from onbeat_engine.runner.models.load import load_model
from onbeat_engine.wire.config import EngineConfig


@pytest.mark.parametrize("name", ["tiny", "smallest"])
def test_a_folder_holds_the_shape_and_the_weights(name: str, tmp_path: Path) -> None:
    model = load_model(EngineConfig(model=write_model(SHAPES[name], tmp_path / "made"), dtype="float32"))
    assert model.config == SHAPES[name]
    right = RandomWeights(SHAPES[name], torch.device("cpu")).read("model.embed_tokens.weight")
    assert torch.equal(model.decoder.embedding, right)


def test_bytes_that_are_no_characters_are_never_likely(tmp_path: Path) -> None:
    model = load_model(EngineConfig(model=write_model(SHAPES["smallest"], tmp_path, ascii_only=True)))
    assert not model.decoder.embedding[128:].any()
    assert model.decoder.embedding[:128].any(1).all()
