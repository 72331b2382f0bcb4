"""A dense model made into a mixture of experts with the same outputs: the oracle for expert parallelism."""

from dataclasses import replace

import torch

from onbeat_engine.runner.models.decoder import Decoder
from onbeat_engine.runner.models.linear import Linear
from onbeat_engine.runner.models.moe import ExpertWeights, LocalExperts
from onbeat_engine.wire.errors import ModelError


def upcycle(
    decoder: Decoder, *, num_experts: int, top_k: int, seed: int = 0, expert_range: tuple[int, int] | None = None
) -> Decoder:
    """Make each FFN into `num_experts` identical experts behind a random router.

    The chosen experts' weights sum to 1, so that the outputs are the dense model's up to rounding, whatever is chosen
    and wherever the experts are. The experts share one memory.

    Args:
        seed: of the routers; the same on all ranks.
        expert_range: hold only the experts lo .. hi - 1; None: all.

    Raises:
        ModelError: the model has experts already, or `top_k` or `expert_range` is out of range.
    """
    config = decoder.config
    if config.num_experts:
        raise ModelError(f"the model has {config.num_experts} experts already; only a dense model can be upcycled")
    lo, hi = expert_range or (0, num_experts)
    if not 0 <= lo <= hi <= num_experts:
        raise ModelError(f"expert_range is {lo}..{hi}; it must lie within 0..{num_experts}")
    sparse = replace(
        config,
        num_experts=num_experts,
        top_k=top_k,
        moe_intermediate_size=config.intermediate_size,
        norm_topk_prob=True,
        sparse_layers=tuple(range(config.num_layers)),
    )
    layers, experts = [], {}
    for index, layer in enumerate(decoder.layers):
        assert layer.gate_up is not None
        assert layer.down is not None
        experts[index] = ExpertWeights(
            layer.gate_up.weight.expand(hi - lo, -1, -1), layer.down.weight.expand(hi - lo, -1, -1)
        )
        # Drawn on the CPU: the same on every device.
        router = torch.randn(num_experts, config.hidden_size, generator=torch.Generator().manual_seed(seed + index))
        layers.append(replace(layer, gate_up=None, down=None, router=Linear(router.to(decoder.device, decoder.dtype))))
    return Decoder(
        sparse,
        layers=layers,
        embedding=decoder.embedding,
        norm=decoder.norm,
        lm_head=decoder.lm_head,
        rope=decoder.rope,
        experts=LocalExperts(experts, lo, hi, num_experts),
    )
