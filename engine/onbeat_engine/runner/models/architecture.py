"""What a model is made of: read from a Hugging Face `config.json`, or from the metadata of a GGUF file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onbeat_engine.runner.models.fields import Fields
from onbeat_engine.wire.errors import ModelError

_ARCHITECTURES = ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
_MOST = 1 << 31
"""No size of a model comes near it; a file may say anything."""
_MOST_LAYERS = 1 << 12
"""Likewise of its layers, which are gone through one by one."""
_GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Rotary frequencies stretched as in Llama 3.1: the low ones by `factor`, the high ones not at all."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        if not (self.factor >= 1 and 0 < self.low_freq_factor < self.high_freq_factor):
            raise ModelError(f"{self}: needs factor >= 1 and 0 < low_freq_factor < high_freq_factor")
        if self.original_max_position_embeddings < 1:
            raise ModelError(f"{self}: original_max_position_embeddings must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer of the Llama family.

    Raises:
        ModelError: sizes that do not fit together.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    """Of the dense layers."""
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Llama3Scaling | None = None
    rope_factors: tuple[float, ...] | None = None
    """Divisors of the rotary frequencies, one for each pair of dimensions: how a GGUF file tells of scaling."""
    tie_word_embeddings: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    """Biases on the projections to q, k, v and on the one behind the attention."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    num_experts: int = 0
    """Of each sparse layer; 0: a dense model."""
    top_k: int = 0
    moe_intermediate_size: int = 0
    norm_topk_prob: bool = True
    sparse_layers: tuple[int, ...] = ()
    dtype: str | None = None
    """What the weights are stored in ("bfloat16", ...); None: not told, or quantised."""

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "intermediate_size",
            "max_position_embeddings",
        ):
            self._require(1 <= getattr(self, name) <= _MOST, name, f"between 1 and {_MOST}")
        self._require(self.rms_norm_eps > 0, "rms_norm_eps", "above 0")
        self._require(self.rope_theta > 0, "rope_theta", "above 0")
        self._require(self.head_dim % 2 == 0, "head_dim", "even")
        self._require(self.num_heads % self.num_kv_heads == 0, "num_heads", f"a multiple of {self.num_kv_heads}")
        if self.rope_factors is not None:
            fits = len(self.rope_factors) == self.head_dim // 2 and min(self.rope_factors) > 0
            self._require(fits, "rope_factors", f"{self.head_dim // 2} numbers above 0")
        if self.num_experts:
            self._require(1 <= self.top_k <= self.num_experts, "top_k", f"between 1 and {self.num_experts}")
            for name in ("num_experts", "moe_intermediate_size"):
                self._require(1 <= getattr(self, name) <= _MOST, name, f"between 1 and {_MOST}")

    @property
    def is_moe(self) -> bool:
        """Whether any layer has experts."""
        return bool(self.sparse_layers)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> "ModelConfig":
        """Read a `config.json`, of transformers 4 or 5, and what a `generation_config.json` adds (end tokens).

        Raises:
            ModelError: an architecture or a feature that is not served, a missing key, a value of the wrong type.
        """
        listed = config.get("architectures")
        architecture = listed[0] if isinstance(listed, list) and listed else listed
        if architecture not in _ARCHITECTURES:
            raise ModelError(f"architecture {architecture!r} is not served; these are: {', '.join(_ARCHITECTURES)}")
        fields = Fields(config, "config.json")
        _refuse_unserved(config)
        moe = architecture == "Qwen3MoeForCausalLM"
        layers = fields.whole("num_hidden_layers")
        hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
        if not 1 <= layers <= _MOST_LAYERS:
            raise ModelError(f"num_hidden_layers is {layers}; it must be between 1 and {_MOST_LAYERS}")
        if heads < 1 or (config.get("head_dim") is None and hidden % heads):
            raise ModelError(f"num_attention_heads is {heads}; it must divide hidden_size, {hidden}")
        theta, scaling = _rope(config)
        experts = fields.whole("num_experts", fields.whole("num_local_experts", 0)) if moe else 0
        return cls(
            architecture=architecture,
            vocab_size=fields.whole("vocab_size"),
            hidden_size=hidden,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=fields.whole("num_key_value_heads", heads),
            # Qwen3's own default, where the file does not tell.
            head_dim=fields.whole("head_dim", hidden // heads if architecture == "LlamaForCausalLM" else 128),
            intermediate_size=fields.whole("intermediate_size"),
            max_position_embeddings=fields.whole("max_position_embeddings"),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            tie_word_embeddings=fields.flag("tie_word_embeddings"),
            qk_norm=architecture != "LlamaForCausalLM",
            attention_bias=fields.flag("attention_bias"),
            bos_token_id=fields.ids("bos_token_id")[0] if fields.ids("bos_token_id") else None,
            eos_token_ids=tuple(
                dict.fromkeys(
                    fields.ids("eos_token_id") + Fields(generation or {}, "generation_config.json").ids("eos_token_id")
                )
            ),
            num_experts=experts,
            top_k=fields.whole("num_experts_per_tok") if moe else 0,
            moe_intermediate_size=fields.whole("moe_intermediate_size") if moe else 0,
            norm_topk_prob=fields.flag("norm_topk_prob") if moe else True,
            sparse_layers=_sparse(fields, layers) if experts else (),
            dtype=fields.text("dtype") or fields.text("torch_dtype"),
        )

    @classmethod
    def from_gguf(
        cls, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], factors: tuple[float, ...] | None
    ) -> "ModelConfig":
        """Read the metadata of a GGUF file.

        Args:
            metadata: its key-value pairs, without the vocabulary.
            shapes: of its tensors, rows first.
            factors: the tensor `rope_freqs.weight`, where there is one.

        Raises:
            ModelError: an architecture or a feature that is not served, a missing key, a value of the wrong type.
        """
        name = metadata.get("general.architecture")
        if name not in _GGUF_ARCHITECTURES:
            served = ", ".join(_GGUF_ARCHITECTURES)
            raise ModelError(f"GGUF architecture {name!r} is not served; these are: {served}")
        prefix = f"{name}."
        fields = Fields({k.removeprefix(prefix): v for k, v in metadata.items()}, "the GGUF metadata", prefix)
        hidden, heads = fields.whole("embedding_length"), fields.whole("attention.head_count")
        if heads < 1:
            raise ModelError(f"{prefix}attention.head_count is {heads}; it must be at least 1")
        head_dim = fields.whole("attention.key_length", hidden // heads)
        only = {"attention.value_length": head_dim, "rope.dimension_count": head_dim}
        only |= {"expert_count": 0, "attention.sliding_window": 0}
        for key, value in only.items():
            if fields.whole(key, value) != value:
                raise ModelError(f"{prefix}{key} is {fields.whole(key)}; only {value} is served here")
        scaling = metadata.get(f"{prefix}rope.scaling.type", "none")
        if scaling != "none":
            raise ModelError(f"{prefix}rope.scaling.type {scaling!r} is not served")
        embedding = shapes.get("token_embd.weight")
        if embedding is None or len(embedding) != 2:
            raise ModelError("the GGUF file has no matrix token_embd.weight")
        token = Fields(metadata, "the GGUF metadata")
        bos = token.ids("tokenizer.ggml.bos_token_id")
        ends = token.ids("tokenizer.ggml.eos_token_id") + token.ids("tokenizer.ggml.eot_token_id")
        return cls(
            architecture=_GGUF_ARCHITECTURES[name],
            vocab_size=embedding[0],
            hidden_size=hidden,
            num_layers=fields.whole("block_count"),
            num_heads=heads,
            num_kv_heads=fields.whole("attention.head_count_kv", heads),
            head_dim=head_dim,
            intermediate_size=fields.whole("feed_forward_length"),
            max_position_embeddings=fields.whole("context_length"),
            rms_norm_eps=_single(fields.number("attention.layer_norm_rms_epsilon")),
            rope_theta=fields.number("rope.freq_base", 10000.0),
            rope_factors=factors,
            tie_word_embeddings="output.weight" not in shapes,
            qk_norm=name == "qwen3",
            attention_bias="blk.0.attn_q.bias" in shapes,
            bos_token_id=bos[0] if bos else None,
            eos_token_ids=tuple(dict.fromkeys(ends)),
        )

    def _require(self, holds: bool, name: str, rule: str) -> None:
        if not holds:
            raise ModelError(f"the model's {name} is {getattr(self, name)!r}; it must be {rule}")


def _refuse_unserved(config: Mapping[str, Any]) -> None:
    """Refuse what would change the outputs and is not built here."""
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"hidden_act {activation!r} is not served; only 'silu' is")
    for key in ("mlp_bias", "use_sliding_window", "quantization_config"):
        if config.get(key):
            raise ModelError(f"config.json sets {key}, which is not served")


def _rope(config: Mapping[str, Any]) -> tuple[float, Llama3Scaling | None]:
    """Return rope base and scaling: `rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` before."""
    values = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(values, Mapping):
        raise ModelError(f"the rope settings in config.json are {values!r}; they must be an object")
    rope = Fields(values, "the rope settings in config.json")
    theta = rope.number("rope_theta", Fields(config, "config.json").number("rope_theta", 10000.0))
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"partial_rotary_factor is {values['partial_rotary_factor']}; only 1 is served")
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ModelError(f"rope scaling {kind!r} is not served; 'default' and 'llama3' are")
    return theta, Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position_embeddings=rope.whole("original_max_position_embeddings"),
    )


def _sparse(fields: Fields, layers: int) -> tuple[int, ...]:
    """Return the layers that have experts, by Qwen3-MoE's rule."""
    step = fields.whole("decoder_sparse_step", 1)
    if step < 1:
        raise ModelError(f"decoder_sparse_step is {step}; it must be at least 1")
    dense = fields.ids("mlp_only_layers")
    return tuple(layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)


def _single(value: float) -> float:
    """Round to six digits: the file holds a float32 of what was meant (1e-5 reads 9.9999997e-06)."""
    return float(f"{value:.6g}")
