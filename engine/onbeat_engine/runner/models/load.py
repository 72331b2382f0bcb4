"""Loads the model that an engine's configuration names."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from onbeat_engine.files.find import ModelFiles, find
from onbeat_engine.runner.models.architecture import ModelConfig
from onbeat_engine.runner.models.build import build
from onbeat_engine.runner.models.decoder import Decoder
from onbeat_engine.runner.models.gguf import GgufFile
from onbeat_engine.runner.models.upcycle import upcycle
from onbeat_engine.runner.models.weights import SafetensorsFolder, Weights, read_json
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.errors import ModelError
from onbeat_spec.errors import ConfigError

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model."""

    config: ModelConfig
    decoder: Decoder
    source: ModelFiles
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


class Opened(NamedTuple):
    """A model whose configuration has been read, and whose weights have not."""

    source: ModelFiles
    config: ModelConfig
    weights: Weights


def load_model(
    config: EngineConfig,
    *,
    device: torch.device | str = "cpu",
    expert_range: tuple[int, int] | None = None,
    opened: Opened | None = None,
) -> LoadedModel:
    """Find the model, read its configuration and its weights.

    Args:
        device: where the weights go.
        opened: the model, if it is opened already.
        expert_range: of a MoE, load only the experts lo .. hi - 1; None: all.

    Raises:
        ModelError: there is no such model, it cannot be served, or its weights are not what its configuration says.
        ConfigError: `max_model_len` is beyond what the model was made for.
    """
    device = torch.device(device)
    source, model, weights = opened or open_model(config.model)
    length = config.max_model_len or model.max_position_embeddings
    if length > model.max_position_embeddings:
        raise ConfigError(f"max_model_len is {length}; {source.name} was made for {model.max_position_embeddings}")
    if expert_range is not None and not (model.num_experts or config.moe_upcycle):
        raise ModelError(f"{source.name} is a dense model; it has no experts to load a part of")
    dtype = choose_dtype(config.dtype, model.dtype, device)
    part = None if config.moe_upcycle else expert_range
    try:
        decoder = build(model, weights, dtype=dtype, device=device, max_positions=length, expert_range=part)
    except (RuntimeError, MemoryError) as error:  # torch's own: memory, most of all
        reason = (str(error).strip() or "out of memory").splitlines()[0]
        raise ModelError(f"{source.name} cannot be loaded onto {device}: {reason}") from error
    if config.moe_upcycle:
        decoder = upcycle(
            decoder,
            num_experts=config.moe_upcycle,
            top_k=config.moe_top_k,
            seed=config.seed,
            expert_range=expert_range,
        )
    decoder.pack()
    return LoadedModel(decoder.config, decoder, source, length)


def open_model(model: str | None) -> Opened:
    """Find a model (`find`), and open it.

    Raises:
        ModelError: there is none, it cannot be served, or a file is missing or damaged.
    """
    source = find(model)
    return Opened(source, *open_weights(source))


def open_weights(source: ModelFiles) -> tuple[ModelConfig, Weights]:
    """Read a model's configuration, and open its weights without reading them.

    Raises:
        ModelError: it cannot be served, or a file is missing or damaged.
    """
    if source.kind == "gguf":
        file = GgufFile(source.path)
        return file.config, file
    generation = source.path / "generation_config.json"
    config = ModelConfig.from_hf(
        read_json(source.path / "config.json"), read_json(generation) if generation.is_file() else None
    )
    return config, SafetensorsFolder(source.path)


def choose_dtype(asked: str, stored: str | None, device: torch.device) -> torch.dtype:
    """Return what the model computes in.

    "auto" is what its weights are stored in; where that is not told (GGUF), float32 on a CPU and bfloat16 elsewhere.

    Raises:
        ModelError: the weights are stored in something else than a floating-point type that is served.
    """
    if asked == "auto":
        asked = stored or ("float32" if device.type == "cpu" else "bfloat16")
    if asked not in _DTYPES:
        raise ModelError(f"the model's dtype is {asked!r}; choose one with --dtype: {', '.join(_DTYPES)}")
    return _DTYPES[asked]
