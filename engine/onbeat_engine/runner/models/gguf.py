"""GGUF files: metadata and dequantised tensors, under the names that Hugging Face gives them."""

import re
from pathlib import Path
from typing import Any

import numpy
import torch
from gguf import GGUFValueType, dequantize

from onbeat_engine.files.gguf_reader import Reader
from onbeat_engine.runner.models.architecture import ModelConfig
from onbeat_engine.wire.errors import ModelError

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_FACTORS = "rope_freqs.weight"


class GgufFile:
    """One GGUF file."""

    def __init__(self, path: Path) -> None:
        """Map the file; tensors are dequantised when they are read.

        Raises:
            ModelError: it is damaged, a part of a split model, or holds a model that is not served.
        """
        try:
            reader = Reader(path)
            self._metadata = {
                key: field.contents() for key, field in reader.fields.items() if field.types[0] != GGUFValueType.ARRAY
            }
        except Exception as error:  # a damaged file makes the reader raise nearly anything
            raise ModelError(f"{path} is damaged, or no GGUF file: {type(error).__name__}: {error}") from error
        if self._metadata.get("split.count", 1) not in (0, 1):
            raise ModelError(f"{path} is a part of a split model; join its parts with `llama-gguf-split --merge`")
        self._stored: dict[str, Any] = {each.name: each for each in reader.tensors}
        factors = tuple(self._values(_FACTORS).flatten().tolist()) if _FACTORS in self._stored else None
        shapes = {name: _shape(each) for name, each in self._stored.items()}
        self.config = ModelConfig.from_gguf(self._metadata, shapes, factors)
        self._names = {_hf_name(name): name for name in self._stored if name != _FACTORS}
        self.shapes = {name: shapes[stored] for name, stored in self._names.items()}

    def read(self, name: str, rows: tuple[int, int] | None = None) -> torch.Tensor:
        """See `Weights`; always float32."""
        values = torch.from_numpy(self._values(self._names[name]))
        if self.config.architecture == "LlamaForCausalLM":
            if ".q_proj." in name:
                values = _unpermuted(values, self.config.num_heads)
            elif ".k_proj." in name:
                values = _unpermuted(values, self.config.num_kv_heads)
        return values if rows is None else values[rows[0] : rows[1]]

    def _values(self, stored: str) -> Any:
        tensor = self._stored[stored]
        kind = tensor.tensor_type.name
        try:
            # The file is mapped read-only, and what is stored as float32 comes as a view of it: that is copied.
            return numpy.require(dequantize(tensor.data, tensor.tensor_type), numpy.float32, "W")
        except (NotImplementedError, ValueError, KeyError) as error:
            raise ModelError(f"tensor {stored} is {kind}, which cannot be dequantised: {error}") from error


def _shape(tensor: Any) -> tuple[int, ...]:
    """Return a tensor's shape, rows first: the file lists the innermost dimension first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def _hf_name(stored: str) -> str:
    """Translate a name; one that is not known stays, and is refused by whoever builds the model."""
    match = _LAYER.fullmatch(stored)
    if match is None:
        return _WHOLE.get(stored, stored)
    layer, part, kind = match.groups()
    return f"model.layers.{layer}.{_IN_LAYER[part]}.{kind}" if part in _IN_LAYER else stored


def _unpermuted(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Put the rows of a q or k projection back: a Llama GGUF has the pairs to rotate side by side in each head."""
    if rows.shape[0] % (2 * num_heads):
        return rows  # of the wrong shape altogether; the builder says so
    return rows.unflatten(0, (num_heads, -1, 2)).transpose(1, 2).reshape(rows.shape)
