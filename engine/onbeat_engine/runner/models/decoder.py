"""The decoder: one class for Llama, Qwen3 and Qwen3-MoE."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from onbeat_engine.runner.models.architecture import ModelConfig
from onbeat_engine.runner.models.attention_interface import Attention
from onbeat_engine.runner.models.linear import Linear
from onbeat_engine.runner.models.moe import Experts, LocalExperts, route
from onbeat_engine.runner.models.rope import Rope
from onbeat_engine.wire.errors import ModelError


@dataclass(slots=True)
class Layer:
    """Weights of one layer. Of `gate_up` and `down` on the one hand and `router` on the other, one is there."""

    input_norm: torch.Tensor
    qkv: Linear
    """[(Hq + 2 Hkv) D, H]: rows of q, then k, then v."""
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: Linear
    post_norm: torch.Tensor
    gate_up: Linear | None
    """[2 I, H]: rows of the gate first."""
    down: Linear | None
    router: Linear | None
    """[E, H]"""


class Decoder:
    """Token ids in, hidden states or logits out. It keeps nothing between forwards."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        layers: Sequence[Layer],
        embedding: torch.Tensor,
        norm: torch.Tensor,
        lm_head: Linear,
        rope: Rope,
        experts: LocalExperts | None,
    ) -> None:
        self.config = config
        self.layers = layers
        self.embedding = embedding
        """[vocab_size, hidden_size]"""
        self.norm = norm
        self.lm_head = lm_head
        self.rope = rope
        self.experts = experts
        """Those that were loaded; None: a dense model."""

    def pack(self) -> None:
        """Lay the matrices out for the CPU's kernels, where that gains anything; the last thing after loading."""
        for layer in self.layers:
            for linear in (layer.qkv, layer.o, layer.gate_up, layer.down, layer.router):
                if linear is not None:
                    linear.pack()
        self.lm_head.pack()
        if self.experts is not None:
            self.experts.pack()

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.device

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        experts: Experts | None = None,
        real: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run a flat batch of tokens; call it under `torch.inference_mode()`.

        With T = 0 the attention is not called, but the experts are: their ranks may wait for this one.

        Args:
            token_ids: [T] int64.
            positions: [T] int64, each in 0 .. max_position_embeddings - 1.
            attention: of this batch.
            experts: who runs the experts; None: those held here, which must be all.
            real: [T] bool, False for padding, which reaches no expert (case N06); None: there is none.

        Returns:
            [T, hidden_size], the final norm applied.
        """
        experts = self._experts(experts)
        num_heads, num_kv_heads, head_dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        cos, sin = self.rope.at(positions)
        residual = F.embedding(token_ids, self.embedding)
        for index, layer in enumerate(self.layers):
            x = self._norm(residual, layer.input_norm)
            qkv = layer.qkv(x).unflatten(-1, (-1, head_dim))
            qk, v = qkv.split((num_heads + num_kv_heads, num_kv_heads), dim=1)
            q, k = self._qk_norm(layer, qk, cos, sin)
            attended = attention(index, q, k, v) if token_ids.shape[0] else q
            residual = residual + layer.o(attended.flatten(1))
            x = self._norm(residual, layer.post_norm)
            residual = residual + self._feed_forward(index, layer, x, experts, real)
        return self._norm(residual, self.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [S, vocab_size] of hidden states [S, hidden_size]: float32, or float64 of a float64 model."""
        logits = self.lm_head(hidden)
        return logits if logits.dtype == torch.float64 else logits.float()

    def _qk_norm(
        self, layer: Layer, qk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalise each head where the model does so, then rotate."""
        sizes = (self.config.num_heads, self.config.num_kv_heads)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split(sizes, dim=1)
            qk = torch.cat((self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)), dim=1)
        q, k = self.rope.rotate(qk, cos, sin).split(sizes, dim=1)
        return q, k

    def _feed_forward(
        self, index: int, layer: Layer, x: torch.Tensor, experts: Experts | None, real: torch.Tensor | None
    ) -> torch.Tensor:
        if layer.gate_up is not None and layer.down is not None:
            gate, up = layer.gate_up(x).chunk(2, dim=-1)
            return layer.down(F.silu(gate) * up)
        assert layer.router is not None
        assert experts is not None
        ids, weights = route(layer.router(x), self.config.top_k, self.config.norm_topk_prob)
        if real is not None:
            ids = ids.masked_fill(~real.unsqueeze(1), self.config.num_experts)  # nobody holds an expert of that number
        return experts(index, x, ids, weights)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)

    def _experts(self, given: Experts | None) -> Experts | None:
        if given is None and self.experts is not None and not self.experts.complete:
            held = self.experts
            raise ModelError(
                f"only the experts {held.lo} to {held.hi - 1} of {held.num_experts} are held here; "
                "a forward needs the group's experts"
            )
        return given if given is not None else self.experts
