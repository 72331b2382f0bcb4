"""Dense models of random weights: in sizes that people know, and small ones; in memory, or as a folder to serve."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from onbeat_engine.files.find import ModelFiles
from onbeat_engine.runner.models.architecture import ModelConfig
from onbeat_engine.runner.models.build import build
from onbeat_engine.runner.models.load import LoadedModel

SHAPES = {
    "llama-8b": ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=128256,
        hidden_size=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=14336,
        max_position_embeddings=8192,
        rope_theta=500000.0,
    ),
    "smollm2-135m": ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        intermediate_size=1536,
        max_position_embeddings=8192,
        rope_theta=100000.0,
        tie_word_embeddings=True,
    ),
    "tiny": ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=512,
        hidden_size=192,
        num_layers=3,
        num_heads=3,
        num_kv_heads=1,
        head_dim=64,
        intermediate_size=256,
        max_position_embeddings=2048,
    ),
    # Its experts are small: ranks share the experts' work, so only the rest of a prefill is what others wait for. With
    # large ones, two prefills at once take twice as long as one, and nothing is gained by having them at once.
    "attentive": ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=256,
        hidden_size=512,
        num_layers=12,
        num_heads=8,
        num_kv_heads=4,
        head_dim=64,
        intermediate_size=64,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        eos_token_ids=(255,),
        dtype="float32",
    ),
    "smallest": ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=256,
        hidden_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=12,
        intermediate_size=80,
        max_position_embeddings=4096,
        dtype="float32",
    ),
}
"""By name; tokens of the last two are bytes, as those of `onbeat_engine.testing.fake.tokenizer`."""


class RandomWeights:
    """Weights of a dense model, drawn when they are read; so scaled that activations keep their size."""

    def __init__(self, config: ModelConfig, device: Any) -> None:
        self._device = device
        self._generator = torch.Generator(device).manual_seed(0)
        hidden, inner = config.hidden_size, config.intermediate_size
        wide, narrow = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
        for index in range(config.num_layers):
            name = f"model.layers.{index}"
            shapes |= {
                f"{name}.input_layernorm.weight": (hidden,),
                f"{name}.post_attention_layernorm.weight": (hidden,),
                f"{name}.self_attn.q_proj.weight": (wide, hidden),
                f"{name}.self_attn.k_proj.weight": (narrow, hidden),
                f"{name}.self_attn.v_proj.weight": (narrow, hidden),
                f"{name}.self_attn.o_proj.weight": (hidden, wide),
                f"{name}.mlp.gate_proj.weight": (inner, hidden),
                f"{name}.mlp.up_proj.weight": (inner, hidden),
                f"{name}.mlp.down_proj.weight": (hidden, inner),
            }
        shapes["model.norm.weight"] = (hidden,)
        if not config.tie_word_embeddings:
            shapes["lm_head.weight"] = (config.vocab_size, hidden)
        self.shapes: Mapping[str, tuple[int, ...]] = shapes

    def read(self, name: str, rows: tuple[int, int] | None = None) -> Any:
        """See `Weights`."""
        assert rows is None
        shape = self.shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, device=self._device)
        return torch.randn(shape, generator=self._generator, device=self._device) / shape[1] ** 0.5


def random_model(config: ModelConfig, dtype: Any, device: Any) -> LoadedModel:
    """Build a model of random weights."""
    length = config.max_position_embeddings
    with torch.inference_mode():
        decoder = build(config, RandomWeights(config, device), dtype=dtype, device=device, max_positions=length)
    return LoadedModel(config, decoder, ModelFiles("folder", Path(), "random"), length)


def write_model(config: ModelConfig, folder: Path, *, ascii_only: bool = False) -> str:
    """Write a Llama of random weights as Hugging Face lays it out, without a tokenizer; return where.

    Args:
        ascii_only: bytes above 127 are never the likeliest: parts of characters would be kept back until the whole is
            there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {
        "architectures": [config.architecture],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": config.dtype,
        "eos_token_id": list(config.eos_token_ids),
    }
    (folder / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    weights = RandomWeights(config, torch.device("cpu"))
    tensors = {name: weights.read(name) for name in weights.shapes}
    if ascii_only:
        tensors["model.embed_tokens.weight"][128:] = 0
    save_file(tensors, folder / "model.safetensors")
    return str(folder)
