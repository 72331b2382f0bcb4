"""A rank of a group that shares the experts of a model."""

import hashlib
from dataclasses import asdict
from typing import Any

from onbeat_engine.parallel.experts import ExpertParallel, split_experts
from onbeat_engine.parallel.group import Group
from onbeat_engine.parallel.place import GroupPlace
from onbeat_engine.runner.models.architecture import ModelConfig
from onbeat_engine.runner.models.load import LoadedModel, Opened, load_model
from onbeat_engine.wire.config import EngineConfig


def shares_experts(config: EngineConfig, model: ModelConfig) -> bool:
    """Whether the ranks of a deployment share collectives: there are several, and the model has experts."""
    return config.data_parallel_size > 1 and (config.moe_upcycle or model.num_experts) > 0


def become_member(
    config: EngineConfig, rank: int, device: Any, opened: Opened
) -> tuple[LoadedModel, ExpertParallel, Group]:
    """Load a rank's part of the model, and meet the other ranks at `config.data_parallel_address`.

    Raises:
        ModelError: the model cannot be used.
        ConfigError: the ranks differ.
        EngineDead: another rank did not come.
    """
    size = config.data_parallel_size
    place = GroupPlace(rank, size, config.data_parallel_address, config.data_parallel_port)
    held = split_experts(config.moe_upcycle or opened.config.num_experts, size)
    model = load_model(config, device=device, expert_range=(held[rank].start, held[rank].stop), opened=opened)
    assert model.decoder.experts is not None
    group = Group.join(
        place,
        config.settings,
        _shared(config, model) | {"experts": [len(one) for one in held]},
        device=str(device),
        timeout=config.collective_timeout,
    )
    return model, ExpertParallel(group, model.decoder.experts, held), group


def _shared(config: EngineConfig, model: LoadedModel) -> dict[str, Any]:
    """Return what all ranks of a group must have in common, beside the protocol's settings.

    Args:
        model: with any part of the experts.
    """
    weights = hashlib.sha256(repr(model.config).encode())
    for tensor in (model.decoder.norm, model.decoder.embedding[:16]):
        weights.update(tensor.double().cpu().numpy().tobytes())
    names = (
        "block_size",
        "num_gpu_blocks_override",  # without one a rank runs its largest step, together with the others
        "max_num_batched_tokens",
        "max_num_seqs",
        "policy",
        "max_hold_steps",
        "collective_timeout",
    )
    return {
        "model": f"{model.source.name} {weights.hexdigest()[:16]}",
        "dtype": str(model.dtype),
        "max_model_len": model.max_model_len,
        **{name: asdict(config)[name] for name in names},
    }
