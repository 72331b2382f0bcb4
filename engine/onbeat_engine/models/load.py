"""From an engine's configuration to a model that can run."""

from dataclasses import dataclass

import torch

from onbeat_engine.config import EngineConfig
from onbeat_engine.models.config import ModelConfig
from onbeat_engine.models.decoder import Decoder
from onbeat_engine.models.source import Source


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model."""

    config: ModelConfig
    decoder: Decoder
    source: Source
    max_model_len: int
    """Most tokens of one sequence: as configured, or what the model was made for."""

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self.decoder.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.decoder.device


def load_model(
    config: EngineConfig, *, device: torch.device | str = "cpu", expert_range: tuple[int, int] | None = None
) -> Model:
    """Find the model, read its configuration and its weights.

    Args:
        device: where the weights go.
        expert_range: of a MoE, load only the experts lo .. hi - 1; None: all.

    Raises:
        ModelError: there is no such model, it cannot be served, or its weights are not what its configuration says.
        ConfigError: `max_model_len` is beyond what the model was made for.
    """
    raise NotImplementedError
