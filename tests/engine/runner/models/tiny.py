"""Tiny random models, made and saved by transformers, and an attention that is plainly right."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

_SIZES = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    # So wide that logits differ by far more than rounding does.
    "initializer_range": 0.2,
    "eos_token_id": 2,
}


def llama(folder: Path, **changes: Any) -> Any:
    """Save a Llama; return transformers' model of the same weights."""
    return _save(LlamaForCausalLM(LlamaConfig(**_SIZES | changes)), folder)


def qwen3(folder: Path, **changes: Any) -> Any:
    """Save a Qwen3 whose head_dim is not hidden_size / num_heads."""
    return _save(Qwen3ForCausalLM(Qwen3Config(**_SIZES | {"head_dim": 16} | changes)), folder)


def qwen3_moe(folder: Path, **changes: Any) -> Any:
    """Save a Qwen3-MoE of 6 experts."""
    moe = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
    return _save(Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SIZES | {"head_dim": 16} | moe | changes)), folder)


def _save(model: Any, folder: Path) -> Any:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms begin as ones and biases as zeros, which would hide their mistakes
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    model.eval().save_pretrained(folder)
    return model


class DenseAttention:
    """Attention of one sequence from its first token on, computed whole, without a cache."""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `Attention`."""
        group = q.shape[1] // k.shape[1]
        keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, keys) / q.shape[2] ** 0.5
        later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(later, -torch.inf).softmax(-1), values)


def logits(decoder: Any, tokens: list[int], experts: Any = None) -> torch.Tensor:
    """Return a decoder's logits [T, V] of one sequence."""
    with torch.inference_mode():
        positions = torch.arange(len(tokens))
        hidden = decoder.forward(torch.tensor(tokens, dtype=torch.int64), positions, DenseAttention(), experts)
        return decoder.logits(hidden)


def expected(model: Any, tokens: list[int]) -> torch.Tensor:
    """Return transformers' logits [T, V] of one sequence."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest logit."""
    assert found.shape == right.shape
    return float((found - right).abs().max() / right.abs().max())
