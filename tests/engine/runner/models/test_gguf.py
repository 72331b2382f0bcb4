"""GGUF files: names, permuted rows, quantised tensors, damage."""

from pathlib import Path
from typing import Any

import pytest
import torch

from onbeat_engine.runner.models.gguf import GgufFile
from onbeat_engine.runner.models.load import LoadedModel, load_model
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.errors import ModelError
from tests.engine.runner.models import tiny, tiny_gguf
from tests.engine.runner.models.test_decoder import LLAMA3, TOKENS

# A block of Q8_0 is 32 wide, so are all rows here.
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def both(folder: Path, model: Any, kind: str = "F32", **metadata: Any) -> tuple[LoadedModel, LoadedModel]:
    """Load a model from its folder and from a GGUF file."""
    path = tiny_gguf.write(model, folder / "tiny.gguf", kind, **metadata)
    return load_model(EngineConfig(model=str(folder))), load_model(EngineConfig(model=str(path)))


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": True}, {"num_key_value_heads": 4}, {"rope_parameters": LLAMA3}],
    ids=["plain", "tied", "no-groups", "scaled"],
)
def test_llama_equals_its_folder(changes: dict[str, Any], tmp_path: Path) -> None:
    """Stored as float32: the rows of q and k are permuted in the file, and the rope scaling is a tensor."""
    folder, file = both(tmp_path, tiny.llama(tmp_path, **SIZES | changes))
    assert tiny.error(tiny.logits(file.decoder, TOKENS), tiny.logits(folder.decoder, TOKENS)) < 1e-6
    assert file.config.eos_token_ids == folder.config.eos_token_ids == (2,)
    assert file.config.rms_norm_eps == folder.config.rms_norm_eps


def test_qwen3_equals_its_folder(tmp_path: Path) -> None:
    """Its q and k are not permuted, and normalised."""
    folder, file = both(tmp_path, tiny.qwen3(tmp_path, **SIZES))
    assert tiny.error(tiny.logits(file.decoder, TOKENS), tiny.logits(folder.decoder, TOKENS)) < 1e-6


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q5_1", "Q4_0"])
def test_quantised_equals_what_is_dequantised(kind: str, tmp_path: Path) -> None:
    """The folder holds what is left of the weights after quantising them."""
    model = tiny.llama(tmp_path / "exact", **SIZES)
    path = tiny_gguf.write(model, tmp_path / "tiny.gguf", kind)
    exact = tiny.expected(model, TOKENS)
    tiny_gguf.round_trip(model, kind)
    file = load_model(EngineConfig(model=str(path)))
    found = tiny.logits(file.decoder, TOKENS)
    assert tiny.error(found, tiny.expected(model, TOKENS)) < 1e-5
    assert tiny.error(found, exact) > 1e-4
    assert file.dtype == torch.float32


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"expert_count": 8}, "expert_count is 8; only 0 is served"),
        ({"rope__dimension_count": 8}, "rope.dimension_count is 8; only 16"),
        ({"attention__sliding_window": 4096}, "sliding_window is 4096"),
        ({"rope__scaling__type": "yarn"}, "'yarn' is not served"),
        ({"block_count": 3}, "the weights lack model.layers.2"),
        ({"block_count": 1}, "have no place in this model, such as model.layers.1"),
        ({"feed_forward_length": 64}, r"of shape \[96, 64\]; the configuration makes it \[64, 64\]"),
        ({"attention__head_count": 0}, "head_count is 0"),
        ({"embedding_length": "wide"}, "embedding_length in the GGUF metadata is 'wide'"),
        ({"drop": "token_embd.weight"}, "no matrix token_embd.weight"),
        ({"drop": "blk.1.ffn_up.weight"}, "lack model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_what_is_not_served_is_refused(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tiny_gguf.write(tiny.llama(tmp_path, **SIZES), tmp_path / "tiny.gguf", **metadata)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(EngineConfig(model=str(path)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [4, 40, 2000, 0.9])
def test_a_damaged_file_is_one_line(keep: float, tmp_path: Path) -> None:
    path = tiny_gguf.write(tiny.llama(tmp_path, **SIZES), tmp_path / "tiny.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep if keep > 1 else keep * len(whole))])
    with pytest.raises(ModelError, match=r"tiny\.gguf is damaged") as caught:
        GgufFile(path)
    assert "\n" not in str(caught.value)
