"""Builds a rank with a real model: alone, or one of a group that shares its experts."""

import hashlib
import os
from dataclasses import asdict
from typing import Any

import torch

from onbeat_engine.config import EngineConfig
from onbeat_engine.core import Built
from onbeat_engine.exchange import Alone, Exchange
from onbeat_engine.models.load import Model, load_model, open_weights
from onbeat_engine.models.source import Source, find
from onbeat_engine.parallel.experts import ExpertParallel, split_experts
from onbeat_engine.parallel.group import Group
from onbeat_engine.parallel.place import Place
from onbeat_engine.runner import ModelRunner, choose_device
from onbeat_engine.sampling.sampler import Sampler
from onbeat_engine.sampling.structured import Grammars
from onbeat_engine.text.tokenizer import Tokenizer


def build(config: EngineConfig, rank: int) -> Built:
    """Build a rank by its number, in its own process.

    Ranks of a dense model share nothing, and each is on its own (case B80). Those of a mixture of experts split the
    experts, and meet at `config.data_parallel_address`; this returns when all have.

    Raises:
        ModelError: the model cannot be used.
        ConfigError: the configuration does not fit the model or the machine, or the ranks differ.
        EngineDead: another rank did not come.
    """
    size = config.data_parallel_size
    device = choose_device(config.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        _share_cores(size)
    source = find(config.model)
    experts = config.moe_upcycle or open_weights(source)[0].num_experts
    if size == 1 or not experts:
        return _built(config, source, load_model(config, device=device), None, Alone())
    held = split_experts(experts, size)
    model = load_model(config, device=device, expert_range=(held[rank].start, held[rank].stop))
    group = Group.join(
        Place(rank, size, config.data_parallel_address, config.data_parallel_port),
        config.settings,
        shared(config, model) | {"experts": [len(one) for one in held]},
        device=str(device),
        timeout=config.collective_timeout,
    )
    assert model.decoder.experts is not None
    return _built(config, source, model, ExpertParallel(group, model.decoder.experts, held), group)


def shared(config: EngineConfig, model: Model) -> dict[str, Any]:
    """Return what all ranks of a group must have in common, beside the protocol's settings.

    Args:
        model: with any part of the experts.
    """
    weights = hashlib.sha256(repr(model.config).encode())
    for tensor in (model.decoder.norm, model.decoder.embedding[:16]):
        weights.update(tensor.double().cpu().numpy().tobytes())
    names = ("block_size", "max_num_batched_tokens", "max_num_seqs", "policy", "max_hold_steps", "collective_timeout")
    return {
        "model": f"{model.source.name} {weights.hexdigest()[:16]}",
        "dtype": str(model.dtype),
        "max_model_len": model.max_model_len,
        **{name: asdict(config)[name] for name in names},
    }


def _built(
    config: EngineConfig, source: Source, model: Model, companions: ExpertParallel | None, exchange: Exchange
) -> Built:
    vocab_size = model.config.vocab_size
    grammars = Grammars(lambda: Tokenizer.load(config.tokenizer or source.path), vocab_size)
    sampler = Sampler(vocab_size, model.device, config.max_num_seqs, grammars=grammars)
    runner = ModelRunner(model, config, sampler, companions=companions)
    return Built(runner, runner.num_blocks, model.max_model_len, exchange)


def _share_cores(ranks: int) -> None:
    """Leave each rank of this machine its part of the cores, unless somebody said how many."""
    if "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // ranks))
