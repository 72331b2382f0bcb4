"""Rotary position embeddings, rotating halves (dimension i with i + D / 2)."""

import math

import torch

from onbeat_engine.runner.models.architecture import Llama3Scaling, ModelConfig
from onbeat_engine.wire.errors import ModelError

MOST_BYTES = 1 << 31


class Rope:
    """Tables of cosines and sines, computed in float32 as the models were trained with."""

    def __init__(self, config: ModelConfig, max_positions: int, dtype: torch.dtype, device: torch.device) -> None:
        """Make tables for the positions 0 .. max_positions - 1; activations are of `dtype`.

        Raises:
            ModelError: they would take more than `MOST_BYTES`.
        """
        size = 2 * max_positions * config.head_dim * dtype.itemsize
        if size > MOST_BYTES:
            raise ModelError(
                f"rotary tables for {max_positions} positions take {size / 2**30:.1f} GiB; give a smaller max_model_len"
            )
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies(config))
        # One table, so that a forward gathers once: [P, 2, 1, D]; the sines of the first half are negated.
        cos, sin = angles.cos(), angles.sin()
        halves = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)
        self.table = halves.unsqueeze(2).to(dtype=dtype, device=device)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what `rotate` needs for positions [T]: two tensors [T, 1, D]."""
        cos, sin = self.table.index_select(0, positions).unbind(1)
        return cos, sin

    @staticmethod
    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotate heads [T, H, D]."""
        first, second = x.chunk(2, dim=-1)
        return torch.addcmul(x * cos, torch.cat((second, first), dim=-1), sin)


def frequencies(config: ModelConfig) -> torch.Tensor:
    """Return the angle per position of each pair of dimensions, [D / 2] float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    plain = 1.0 / config.rope_theta**exponents
    if config.rope_factors is not None:
        return plain / torch.tensor(config.rope_factors, dtype=torch.float32)
    return plain if config.rope_scaling is None else _llama3(plain, config.rope_scaling)


def _llama3(plain: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Stretch wavelengths beyond the original context / low_freq_factor; blend down to context / high_freq_factor."""
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return (1 - kept) * plain / scaling.factor + kept * plain
