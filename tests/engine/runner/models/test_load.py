"""Folders: shards, stacked experts, parts of the experts; and whatever may be wrong with them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from onbeat_engine.runner.models.load import choose_dtype, load_model
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.errors import ModelError
from onbeat_spec.errors import ConfigError, OnbeatError
from tests.engine.runner.models import tiny
from tests.engine.runner.models.test_decoder import TOKENS

Tensors = dict[str, Any]


def edit(folder: Path, change: Callable[[Tensors], object]) -> None:
    """Change the tensors of a saved model."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def configure(folder: Path, **changes: Any) -> None:
    """Change a saved model's configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def shard(folder: Path, parts: int) -> None:
    """Split a saved model into shards with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {name: f"model-{i % parts + 1:05}-of-{parts:05}.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in names if weight_map[name] == file}, folder / file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_are_one_model(tmp_path: Path) -> None:
    tiny.llama(tmp_path)
    config = EngineConfig(model=str(tmp_path))
    whole = tiny.logits(load_model(config).decoder, TOKENS)
    shard(tmp_path, 3)
    assert torch.equal(tiny.logits(load_model(config).decoder, TOKENS), whole)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert torch.equal(tiny.logits(load_model(config).decoder, TOKENS), whole)


def stack(tensors: Tensors) -> None:
    """Lay experts out as transformers 5 holds them in memory."""
    for layer in range(2):
        name = f"model.layers.{layer}.mlp.experts"
        parts = {
            part: torch.stack([tensors.pop(f"{name}.{e}.{part}.weight") for e in range(6)])
            for part in ("gate_proj", "up_proj", "down_proj")
        }
        tensors[f"{name}.gate_up_proj"] = torch.cat((parts["gate_proj"], parts["up_proj"]), dim=1)
        tensors[f"{name}.down_proj"] = parts["down_proj"]


@pytest.mark.parametrize("stacked", [False, True])
def test_parts_of_the_experts(stacked: bool, tmp_path: Path) -> None:
    """Each rank loads its own; together they are the model."""
    right = tiny.expected(tiny.qwen3_moe(tmp_path), TOKENS)
    if stacked:
        edit(tmp_path, stack)
    config = EngineConfig(model=str(tmp_path))
    whole = load_model(config)
    assert tiny.error(tiny.logits(whole.decoder, TOKENS), right) < 1e-5
    parts = [load_model(config, expert_range=part) for part in ((0, 1), (1, 4), (4, 4), (4, 6))]
    held = [part.decoder.experts for part in parts]

    def together(layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return sum(part(layer, x, ids, weights) for part in held if part is not None)

    assert [len(part._each[0]) for part in held if part is not None] == [1, 3, 0, 2]
    assert tiny.error(tiny.logits(parts[1].decoder, TOKENS, together), right) < 1e-5
    with pytest.raises(ModelError, match="only the experts 1 to 3 of 6 are held here"):
        tiny.logits(parts[1].decoder, TOKENS)


def test_lengths(tmp_path: Path) -> None:
    tiny.llama(tmp_path)
    assert load_model(EngineConfig(model=str(tmp_path))).max_model_len == 512
    assert load_model(EngineConfig(model=str(tmp_path), max_model_len=100)).max_model_len == 100
    with pytest.raises(ConfigError, match=r"max_model_len is 513; .* was made for 512"):
        load_model(EngineConfig(model=str(tmp_path), max_model_len=513))


def test_dtypes() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert choose_dtype("auto", "bfloat16", cpu) == torch.bfloat16
    assert choose_dtype("auto", None, cpu) == torch.float32
    assert choose_dtype("auto", None, cuda) == torch.bfloat16
    assert choose_dtype("float16", "bfloat16", cuda) == torch.float16
    with pytest.raises(ModelError, match="'float8_e4m3fn'; choose one with --dtype"):
        choose_dtype("auto", "float8_e4m3fn", cuda)


def test_a_dense_model_has_no_experts_to_part(tmp_path: Path) -> None:
    tiny.llama(tmp_path)
    with pytest.raises(ModelError, match="is a dense model"):
        load_model(EngineConfig(model=str(tmp_path)), expert_range=(0, 1))


def _drop(name: str) -> Callable[[Path], object]:
    return lambda folder: edit(folder, lambda tensors: tensors.pop(name))


def _put(name: str, value: torch.Tensor) -> Callable[[Path], object]:
    return lambda folder: edit(folder, lambda tensors: tensors.update({name: value}))


def _shards(spoil: Callable[[Path], object]) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        shard(folder, 2)
        spoil(folder)

    return change


INDEX = "model.safetensors.index.json"


def _astray(folder: Path) -> None:
    """List a file that exists, but is reached by leaving the folder."""
    listed = {"weight_map": {"a": f"../{folder.name}/config.json"}}
    (folder / INDEX).write_text(json.dumps(listed))


Q = "model.layers.1.self_attn.q_proj.weight"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no-weights": (lambda folder: (folder / "model.safetensors").unlink(), "holds no \\*.safetensors file"),
    "cut": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000]),
        "model.safetensors cannot be read",
    ),
    "not-json": (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read"),
    "not-text": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe"), "config.json cannot be read"),
    "too-deep": (lambda folder: (folder / "config.json").write_text("[" * 100_000), "config.json cannot be read"),
    "no-object": (lambda folder: (folder / "config.json").write_text("[]"), "must hold a JSON object"),
    "bad-generation": (lambda folder: (folder / "generation_config.json").write_text("7"), "must hold a JSON object"),
    "missing": (_drop(Q), f"the weights lack {Q}, of shape \\[48, 48\\]"),
    "no-head": (_drop("lm_head.weight"), "lack lm_head.weight"),
    "wrong-shape": (_put(Q, torch.zeros(48, 24)), f"{Q} is of shape \\[48, 24\\]; the configuration makes it"),
    "integers": (_put(Q, torch.zeros(48, 48, dtype=torch.int8)), "stored as torch.int8"),
    "too-much": (_put(f"{Q}_scale", torch.zeros(48)), f"1 tensors have no place in this model, such as {Q}_scale"),
    "more-layers": (lambda folder: configure(folder, num_hidden_layers=3), "lack model.layers.2"),
    "fewer-layers": (lambda folder: configure(folder, num_hidden_layers=1), "9 tensors have no place"),
    "wide-layers": (lambda folder: configure(folder, intermediate_size=1 << 31), "mlp.gate_proj.weight is of shape"),
    "long": (
        lambda folder: configure(folder, max_position_embeddings=1 << 31),
        "rotary tables for 2147483648 positions take 192.0 GiB; give a smaller max_model_len",
    ),
    "another-vocabulary": (lambda folder: configure(folder, vocab_size=301), "embed_tokens.weight is of shape"),
    "no-shard": (
        _shards(lambda folder: (folder / "model-00002-of-00002.safetensors").unlink()),
        "lists 'model-00002-of-00002.safetensors', which is no file of that folder",
    ),
    "astray": (_shards(_astray), "lists '../.*/config.json', which is no file of that folder"),
    "no-map": (_shards(lambda folder: (folder / INDEX).write_text("{}")), "has no weight_map"),
    "lost": (
        _shards(
            lambda folder: save_file({"a": torch.zeros(1)}, folder / "model-00001-of-00002.safetensors"),
        ),
        "tensors that no file holds, such as",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_wrong_with_a_folder_is_one_line(name: str, tmp_path: Path) -> None:
    tiny.llama(tmp_path)
    damage, message = DAMAGES[name]
    damage(tmp_path)
    with pytest.raises(OnbeatError, match=message) as caught:
        load_model(EngineConfig(model=str(tmp_path)))
    assert isinstance(caught.value, ModelError)
    assert "\n" not in str(caught.value)


def test_too_little_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.llama(tmp_path)

    def fails(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nAnd a long story.")

    monkeypatch.setattr(torch, "empty", fails)
    with pytest.raises(ModelError, match=r"cannot be loaded onto cpu: CUDA out of memory. Tried to allocate 2 GiB\.$"):
        load_model(EngineConfig(model=str(tmp_path)))


def test_what_older_files_carry_in_excess_is_passed_over(tmp_path: Path) -> None:
    right = tiny.expected(tiny.llama(tmp_path, tie_word_embeddings=True), TOKENS)
    edit(
        tmp_path,
        lambda tensors: tensors.update(
            {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(6), "lm_head.weight": torch.zeros(300, 48)}
        ),
    )
    assert tiny.error(tiny.logits(load_model(EngineConfig(model=str(tmp_path))).decoder, TOKENS), right) < 1e-5
