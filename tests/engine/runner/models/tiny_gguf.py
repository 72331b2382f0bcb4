"""GGUF files of tiny models, laid out as llama.cpp's converter lays them out."""

from pathlib import Path
from typing import Any

import numpy
import torch
from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quantize

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write(model: Any, path: Path, kind: str = "F32", *, drop: str = "", **metadata: int | float | str) -> Path:
    """Write a model of transformers; matrices are stored as `kind`.

    Args:
        drop: leave this tensor out.
        metadata: more keys of the architecture (with _ for .), or other values for those that there are.
    """
    config = model.config
    architecture = {"llama": "llama", "qwen3": "qwen3"}[config.model_type]
    writer = GGUFWriter(path, architecture)
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
    }
    for key, value in (keys | {key.replace("__", "."): value for key, value in metadata.items()}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{key}", value)
    writer.add_eos_token_id(2)
    for name, parameter in model.state_dict().items():
        stored = _stored(name)
        if stored == drop or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        values = parameter.float().numpy()
        if architecture == "llama" and ".q_proj." in name:
            values = _permuted(values, config.num_attention_heads)
        if architecture == "llama" and ".k_proj." in name:
            values = _permuted(values, config.num_key_value_heads)
        if values.ndim == 1:
            writer.add_tensor(stored, values)
        else:
            quantised = GGMLQuantizationType[kind]
            writer.add_tensor(stored, quantize(values, quantised), raw_dtype=quantised)
    scaling = config.rope_parameters
    if scaling["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _factors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def round_trip(model: Any, kind: str) -> None:
    """Round a model's matrices as storing them as `kind` does."""
    quantised = GGMLQuantizationType[kind]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                values = dequantize(quantize(parameter.numpy(), quantised), quantised)
                parameter.copy_(torch.from_numpy(values))


def _stored(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        layer, part = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{_NAMES[part]}.{kind}"
    return f"{_NAMES[stem]}.{kind}"


def _permuted(values: Any, heads: int) -> Any:
    """Put the two dimensions of each rotated pair side by side."""
    rows = values.shape[0] // heads
    return numpy.ascontiguousarray(
        values.reshape(heads, 2, rows // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    )


def _factors(config: Any) -> Any:
    """Return by what Llama 3's scaling divides each frequency."""
    scaling = config.rope_parameters
    dims = numpy.arange(0, config.head_dim, 2)
    wavelengths = 2 * numpy.pi * scaling["rope_theta"] ** (dims / config.head_dim)
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    blend = (original / wavelengths - low) / (high - low)
    middle = 1 / ((1 - blend) / factor + blend)
    factors = numpy.where(wavelengths < original / high, 1, numpy.where(wavelengths > original / low, factor, middle))
    return factors.astype(numpy.float32)
