"""Rotary embeddings."""

import math
from dataclasses import replace

import pytest
import torch

from onbeat_engine.runner.models.architecture import Llama3Scaling, ModelConfig
from onbeat_engine.runner.models.rope import Rope, frequencies

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=8,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=16,
    max_position_embeddings=64,
    rope_theta=100.0,
)


def test_each_pair_turns_by_its_angle() -> None:
    """Dimensions i and i + D / 2 are the two parts of a complex number, multiplied by e^(i position frequency)."""
    x = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    positions = torch.tensor([0, 1, 7, 7, 40])
    rope = Rope(CONFIG, 64, torch.float64, torch.device("cpu"))
    turned = rope.rotate(x, *rope.at(positions))
    for token, position in enumerate(positions.tolist()):
        for pair in range(4):
            angle = position * 100.0 ** (-2 * pair / 8)
            number = torch.complex(x[token, :, pair], x[token, :, pair + 4])
            right = number * complex(math.cos(angle), math.sin(angle))
            found = torch.complex(turned[token, :, pair], turned[token, :, pair + 4])
            assert torch.allclose(found, right, atol=1e-5)


def test_llama3_stretches_the_low_frequencies_only() -> None:
    scaling = Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position_embeddings=500)
    plain = frequencies(replace(CONFIG, rope_theta=1e6))
    scaled = frequencies(replace(CONFIG, rope_theta=1e6, rope_scaling=scaling))
    ratios = (plain / scaled).tolist()
    assert ratios[0] == 1
    assert ratios[2:] == pytest.approx([8, 8])
    assert 1 < ratios[1] < 8  # between the two bounds it is blended
