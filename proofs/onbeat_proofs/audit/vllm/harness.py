"""A real scheduler of vLLM's with no model behind it. Needs vLLM and nothing else.

The audit drives schedulers through this module, and pastes it into the test files that it writes; so it imports
nothing of ours.
"""

import json
import os
from collections.abc import Iterable
from copy import copy
from functools import cache
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

for _name, _value in {
    "VLLM_PLUGINS": "",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}.items():
    os.environ.setdefault(_name, _value)

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.model_executor.models import ModelRegistry
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

LONGEST = 1 << 20
"""Most tokens that the stub model says it can take."""
ARCHITECTURE = "SchedulerTestForCausalLM"
MODEL = {
    "architectures": [ARCHITECTURE],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 65_536,
    "max_position_embeddings": LONGEST,
    "torch_dtype": "float32",
}


class Stub:
    """What the model registry asks of a text-generation class; inspected and never built."""

    def __init__(self, vllm_config: object, prefix: str = "") -> None: ...

    def embed_input_ids(self, input_ids: object) -> object: ...

    def forward(self, input_ids: object, positions: object) -> object: ...

    def compute_logits(self, hidden_states: object) -> object: ...


class Store(KVConnectorBase_V1):  # type: ignore[misc]  # vLLM is not installed where this is checked
    """A remote KV store as the scheduler sees it: it offers what it is told to, once per request, and moves nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.offers: dict[str, tuple[int, bool]] = {}
        """For each request, leading tokens that the store has, and whether they are loaded ahead of its first step."""
        self.taken: dict[str, int] = {}
        """Leading tokens that a load gives, or gave, to each request in its present allocation."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        tokens, ahead = self.offers.get(request.request_id, (0, False))
        if not ahead:
            tokens = min(tokens, request.num_tokens - 1)
        more = tokens - num_computed_tokens
        return (more, ahead) if more > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: object, num_external_tokens: int) -> None:
        offer = self.offers.pop(request.request_id, None)
        if num_external_tokens > 0 and offer is not None:
            self.taken[request.request_id] = offer[0] if offer[1] else min(offer[0], request.num_tokens - 1)

    def build_connector_meta(self, scheduler_output: object) -> Any:
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: object) -> tuple[bool, None]:
        self.offers.pop(request.request_id, None)
        self.taken.pop(request.request_id, None)
        return False, None

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: object, attn_metadata: object, **kwargs: object) -> None: ...

    def wait_for_save(self) -> None: ...


@cache
def parameters(cls: Any) -> frozenset[str]:
    """The parameters of a constructor in this version; one that hands all on has those of its base."""
    names: set[str] = set()
    for base in cls.__mro__:
        accepted = signature(base).parameters
        names.update(accepted)
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in accepted.values()):
            break
    return frozenset(names)


def made(cls: Any, **arguments: Any) -> Any:
    """Call a constructor with those of the arguments that this version has."""
    return cls(**{name: value for name, value in arguments.items() if name in parameters(cls)})


@cache
def template(asynchronous: bool) -> Any:
    """A valid configuration for the stub model."""
    ModelRegistry.register_model(ARCHITECTURE, type(ARCHITECTURE, (Stub, torch.nn.Module), {}))
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=LONGEST)
    cached = CacheConfig(block_size=16, enable_prefix_caching=False)
    cached.num_gpu_blocks = 1
    return VllmConfig(
        model_config=model,
        scheduler_config=SchedulerConfig(
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            max_num_batched_tokens=8192,
            max_num_seqs=256,
            enable_chunked_prefill=True,
            async_scheduling=asynchronous,
        ),
        cache_config=cached,
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig(device="cpu"),
        kv_transfer_config=made(
            KVTransferConfig,
            kv_connector="Store",
            kv_connector_module_path=__name__,
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
        ),
    )


def changed(value: Any, **fields: Any) -> Any:
    """A copy of a configuration with fields that it has set, unchecked: small numbers are the point."""
    new = copy(value)
    for name, item in fields.items():
        if hasattr(new, name):
            object.__setattr__(new, name, item)
    return new


def make_scheduler(
    cls: Any,
    *,
    block_size: int = 16,
    num_blocks: int = 64,
    max_num_batched_tokens: int = 8192,
    max_num_seqs: int = 256,
    max_model_len: int = 1024,
    policy: str = "fcfs",
    enable_prefix_caching: bool = False,
    long_prefill_token_threshold: int = 0,
    prefill_schedule_interval: int = 1,
) -> Any:
    """A scheduler with these sizes; `num_blocks` does not count the null block."""
    base = template(issubclass(cls, AsyncScheduler))
    scheduling = changed(
        base.scheduler_config,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        long_prefill_token_threshold=long_prefill_token_threshold,
        prefill_schedule_interval=prefill_schedule_interval,
        policy=policy,
        # Some platforms turn it off, CPUs up to 0.32 among them; how blocks are freed depends on it.
        async_scheduling=issubclass(cls, AsyncScheduler),
    )
    caching = changed(
        base.cache_config,
        block_size=block_size,
        num_gpu_blocks=num_blocks + 1,
        enable_prefix_caching=enable_prefix_caching,
    )
    settings = changed(
        base,
        model_config=changed(base.model_config, max_model_len=max_model_len),
        scheduler_config=scheduling,
        cache_config=caching,
    )
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=4, head_size=16, dtype=torch.float32)
    return cls(
        vllm_config=settings,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=structured_output(),
        block_size=block_size,
        log_stats=False,
    )


@cache
def structured_output() -> Any:
    """One for all: no request here has structured output."""
    return StructuredOutputManager(template(False))


@cache
def block_hasher(block_size: int) -> Any:
    """What names the blocks of a request for the prefix cache."""
    function = get_hash_fn_by_name("sha256")
    init_none_hash(function)
    return get_request_block_hasher(block_size, function)


def make_request(
    id: str,
    prompt: list[int],
    max_tokens: int,
    *,
    arrival: int,
    priority: int = 0,
    stop: Iterable[int] = (),
    block_size: int = 0,
) -> Any:
    """A request; `block_size` 0: without prefix caching."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=list(stop), detokenize=False)
    return made(
        Request,
        request_id=id,
        prompt_token_ids=prompt,
        sampling_params=sampling,
        pooling_params=None,
        eos_token_id=None,
        arrival_time=float(arrival),
        priority=priority,
        block_hasher=block_hasher(block_size) if block_size else None,
    )


def runner_output(sampled: dict[str, list[int]], transfer: Any = None) -> Any:
    """What the model runner hands back: for each request of the step its sampled tokens, maybe none."""
    return made(
        ModelRunnerOutput,
        req_ids=list(sampled),
        req_id_to_index={id: index for index, id in enumerate(sampled)},
        sampled_token_ids=list(sampled.values()),
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
        kv_connector_output=transfer,
    )


def report_load(scheduler: Any, id: str, invalid_blocks: Iterable[int] = ()) -> None:
    """A remote load ended; the notice comes with the outputs of a step, here an empty one."""
    transfer = KVConnectorOutput(finished_recving={id}, invalid_block_ids=set(invalid_blocks))
    scheduler.update_from_output(SchedulerOutput.make_empty(), runner_output({}, transfer))
