"""Builds a decoder from named tensors."""

from collections.abc import Sequence

import torch

from onbeat_engine.runner.models.architecture import ModelConfig
from onbeat_engine.runner.models.decoder import Decoder, Layer
from onbeat_engine.runner.models.linear import Linear
from onbeat_engine.runner.models.moe import ExpertWeights, LocalExperts
from onbeat_engine.runner.models.rope import Rope
from onbeat_engine.runner.models.weights import Weights
from onbeat_engine.wire.errors import ModelError


def build(
    config: ModelConfig,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_positions: int,
    expert_range: tuple[int, int] | None = None,
) -> Decoder:
    """Read the weights into merged matrices.

    Args:
        max_positions: the rotary tables reach so far.
        expert_range: of a MoE, read only the experts lo .. hi - 1; None: all.

    Raises:
        ModelError: a tensor is missing, of the wrong shape, or one that this decoder has no place for.
    """
    return _Builder(config, weights, dtype, device, expert_range).decoder(max_positions)


class _Builder:
    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype,
        device: torch.device,
        expert_range: tuple[int, int] | None,
    ) -> None:
        self.config = config
        self.weights = weights
        self.dtype = dtype
        self.device = device
        self.lo, self.hi = expert_range or (0, config.num_experts)
        if not 0 <= self.lo <= self.hi <= config.num_experts:
            raise ModelError(f"expert_range is {self.lo}..{self.hi}; it must lie within 0..{config.num_experts}")
        self.used: set[str] = set()

    def decoder(self, max_positions: int) -> Decoder:
        config = self.config
        table = (config.vocab_size, config.hidden_size)
        embedding = self.tensor("model.embed_tokens.weight", table)
        layers, experts = [], {}
        for index in range(config.num_layers):
            layers.append(self.layer(index))
            if index in config.sparse_layers:
                experts[index] = self.experts(f"model.layers.{index}.mlp.experts")
        norm = self.tensor("model.norm.weight", (config.hidden_size,))
        head = embedding if config.tie_word_embeddings else self.tensor("lm_head.weight", table)
        self.nothing_left()
        return Decoder(
            config,
            layers=layers,
            embedding=embedding,
            norm=norm,
            lm_head=Linear(head),
            rope=Rope(config, max_positions, self.dtype, self.device),
            experts=LocalExperts(experts, self.lo, self.hi, config.num_experts) if experts else None,
        )

    def layer(self, index: int) -> Layer:
        config, name = self.config, f"model.layers.{index}"
        hidden, wide = config.hidden_size, config.num_heads * config.head_dim
        narrow = config.num_kv_heads * config.head_dim
        norm, head = (hidden,), (config.head_dim,)
        sparse = index in config.sparse_layers
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        return Layer(
            input_norm=self.tensor(f"{name}.input_layernorm.weight", norm),
            qkv=self.linear(
                (f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
                (wide, narrow, narrow),
                hidden,
                config.attention_bias,
            ),
            q_norm=self.tensor(f"{attention}.q_norm.weight", head) if config.qk_norm else None,
            k_norm=self.tensor(f"{attention}.k_norm.weight", head) if config.qk_norm else None,
            o=self.linear((f"{attention}.o_proj",), (hidden,), wide, config.attention_bias),
            post_norm=self.tensor(f"{name}.post_attention_layernorm.weight", norm),
            gate_up=None if sparse else self.linear(*self.gate_up(mlp, config.intermediate_size), hidden),
            down=None if sparse else self.linear((f"{mlp}.down_proj",), (hidden,), config.intermediate_size),
            router=self.linear((f"{mlp}.gate",), (config.num_experts,), hidden) if sparse else None,
        )

    def experts(self, name: str) -> ExpertWeights:
        """Read one layer's experts, stored one by one or stacked (as transformers 5 holds them)."""
        count, hidden, width = self.config.num_experts, self.config.hidden_size, self.config.moe_intermediate_size
        if f"{name}.gate_up_proj" in self.weights.shapes:
            rows = (self.lo, self.hi)
            return ExpertWeights(
                self.tensor(f"{name}.gate_up_proj", (count, 2 * width, hidden), rows),
                self.tensor(f"{name}.down_proj", (count, hidden, width), rows),
            )
        self.expect(f"{name}.{count - 1}.down_proj.weight", (hidden, width))  # before memory is taken
        held = ExpertWeights(
            self.empty(self.hi - self.lo, 2 * width, hidden), self.empty(self.hi - self.lo, hidden, width)
        )
        for expert in range(count):
            parts, rows = self.gate_up(f"{name}.{expert}", width)
            down = f"{name}.{expert}.down_proj.weight"
            if self.lo <= expert < self.hi:
                self.fill(held.gate_up[expert - self.lo], [f"{part}.weight" for part in parts], rows)
                self.fill(held.down[expert - self.lo], [down], (hidden,))
            else:
                self.used.update(f"{part}.weight" for part in parts)
                self.used.add(down)
        return held

    @staticmethod
    def gate_up(mlp: str, width: int) -> tuple[tuple[str, str], tuple[int, int]]:
        return (f"{mlp}.gate_proj", f"{mlp}.up_proj"), (width, width)

    def linear(self, names: Sequence[str], rows: Sequence[int], columns: int, bias: bool = False) -> Linear:
        """Read projections one below the other into one matrix."""
        weights = [f"{name}.weight" for name in names]
        for name, count in zip(weights, rows, strict=True):  # before memory is taken for what cannot be
            self.expect(name, (count, columns))
        weight = self.empty(sum(rows), columns)
        self.fill(weight, weights, rows)
        if not bias:
            return Linear(weight)
        biases = self.empty(sum(rows))
        self.fill(biases, [f"{name}.bias" for name in names], rows)
        return Linear(weight, biases)

    def fill(self, into: torch.Tensor, names: Sequence[str], rows: Sequence[int]) -> None:
        at = 0
        for name, count in zip(names, rows, strict=True):
            into[at : at + count].copy_(self.checked(name, (count, *into.shape[1:])))
            at += count

    def tensor(self, name: str, shape: tuple[int, ...], rows: tuple[int, int] | None = None) -> torch.Tensor:
        return self.checked(name, shape, rows).to(self.device, self.dtype).contiguous()

    def checked(self, name: str, shape: tuple[int, ...], rows: tuple[int, int] | None = None) -> torch.Tensor:
        self.expect(name, shape)
        self.used.add(name)
        values = self.weights.read(name, rows)
        if not values.is_floating_point():
            raise ModelError(f"{name} is stored as {values.dtype}; only floating-point weights are read")
        return values

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        found = self.weights.shapes.get(name)
        if found is None:
            raise ModelError(f"the weights lack {name}, of shape {list(shape)}")
        if found != shape:
            raise ModelError(f"{name} is of shape {list(found)}; the configuration makes it {list(shape)}")

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def nothing_left(self) -> None:
        """Refuse weights that nothing was made of: the model is another than its configuration says."""
        left = sorted(
            name
            for name in self.weights.shapes
            if name not in self.used
            and not name.endswith("rotary_emb.inv_freq")  # older files carry what is computed
            and not (name == "lm_head.weight" and self.config.tie_word_embeddings)
        )
        if left:
            raise ModelError(f"{len(left)} tensors have no place in this model, such as {left[0]}")
