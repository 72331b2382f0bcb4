"""The installed vLLM: importing it quietly, and everything that differs between its versions outside a scheduler."""

import json
import os
from collections.abc import Iterable
from copy import copy
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from onbeat_proofs.branching import share
from onbeat_spec.config import Config
from onbeat_spec.errors import NotAScheduler

OLDEST, NEWEST = (0, 24), (0, 33)
"""Releases whose schedulers were driven: the throttle came with the first."""
ENVIRONMENT = {
    "VLLM_PLUGINS": "",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
"""No plugin loads by itself, nothing is reported or downloaded, and the log is for errors."""
VOCABULARY = 65_536
LONGEST = 1 << 20
_ARCHITECTURE = "OnbeatStubForCausalLM"
_MODEL = {
    "architectures": [_ARCHITECTURE],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LONGEST,
    "torch_dtype": "float32",
}
_CONNECTOR = "onbeat_proofs.vllm.connector"


@cache
def part(name: str) -> Any:
    """Import a module of vLLM, quietly.

    Args:
        name: below `vllm`, as `v1.request`.

    Raises:
        NotAScheduler: vLLM is not installed, or has no such module.
    """
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    full = f"vllm.{name}" if name else "vllm"
    try:
        return import_module(full)
    except ImportError as error:
        raise NotAScheduler(
            f"{full} cannot be imported: {error}; run the audit in the environment of the vLLM that the class is for"
        ) from error


@cache
def version() -> tuple[int, int]:
    """Return the installed vLLM's version, as (major, minor).

    Raises:
        NotAScheduler: vLLM cannot be imported, or is of a release whose schedulers are not known.
    """
    text = str(getattr(part(""), "__version__", "unknown"))
    try:
        major, minor = (int(number) for number in text.split(".")[:2])
    except ValueError:
        raise NotAScheduler(f"vLLM calls its version {text!r}; install a release") from None
    if not OLDEST <= (major, minor) <= NEWEST:
        oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
        raise NotAScheduler(f"vLLM {text} is installed; its schedulers are known from {oldest} to {newest}")
    return major, minor


def full_version() -> str:
    """Return the installed vLLM's version as it calls itself, build suffix left out."""
    version()
    return str(part("").__version__).partition("+")[0]


class _Stub:
    """What the model registry asks of a text-generation class; inspected and never built."""

    def __init__(self, vllm_config: object, prefix: str = "") -> None: ...

    def embed_input_ids(self, input_ids: object) -> object: ...

    def forward(self, input_ids: object, positions: object) -> object: ...

    def compute_logits(self, hidden_states: object) -> object: ...


def _made(cls: Any, **arguments: Any) -> Any:
    """Call a constructor with those of the arguments that this version has."""
    known = signature(cls).parameters
    return cls(**{name: value for name, value in arguments.items() if name in known})


@cache
def _template(asynchronous: bool) -> Any:
    """Return a `VllmConfig` for a stub model, whose numbers `vllm_config` then replaces."""
    config, torch = part("config"), import_module("torch")
    part("model_executor.models").ModelRegistry.register_model(
        _ARCHITECTURE, type(_ARCHITECTURE, (_Stub, torch.nn.Module), {})
    )
    folder = Path(mkdtemp(prefix="onbeat-model-"))
    (folder / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
    model = config.ModelConfig(
        model=str(folder), skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=LONGEST
    )
    (folder / "config.json").unlink()
    folder.rmdir()
    scheduler = config.SchedulerConfig(
        max_model_len=LONGEST,
        is_encoder_decoder=False,
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        enable_chunked_prefill=True,
        async_scheduling=asynchronous,
    )
    cached = config.CacheConfig(block_size=16, enable_prefix_caching=False)
    cached.num_gpu_blocks = 1
    transfer = _made(
        config.KVTransferConfig,
        kv_connector="Store",
        kv_connector_module_path=_CONNECTOR,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
    )
    return config.VllmConfig(
        model_config=model,
        scheduler_config=scheduler,
        cache_config=cached,
        parallel_config=config.ParallelConfig(),
        device_config=config.DeviceConfig(device="cpu"),
        kv_transfer_config=transfer,
    )


def _with(value: Any, **fields: Any) -> Any:
    """Return a copy of a configuration with fields that its class has set, unchecked: small numbers are the point."""
    new = copy(value)
    for name, item in fields.items():
        if hasattr(new, name):
            object.__setattr__(new, name, item)
    return new


def vllm_config(config: Config, *, asynchronous: bool, max_model_len: int, store: bool) -> Any:
    """Return the `VllmConfig` that is like one of ours.

    Args:
        config: sizes and modes; `prefill_schedule_interval` is left to whoever passes the flag.
        asynchronous: steps are scheduled ahead of their outputs.
        max_model_len: what any request may know at most.
        store: a remote KV store is attached.
    """
    base = _template(asynchronous)
    scheduling = _with(
        base.scheduler_config,
        max_model_len=max_model_len,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        policy=config.scheduling,
    )
    cached = _with(
        base.cache_config,
        block_size=config.block_size,
        num_gpu_blocks=config.num_blocks + 1,
        enable_prefix_caching=config.enable_prefix_caching,
    )
    return _with(
        base,
        model_config=_with(base.model_config, max_model_len=max_model_len),
        scheduler_config=scheduling,
        cache_config=cached,
        kv_transfer_config=base.kv_transfer_config if store else None,
    )


@cache
def share_constants() -> None:
    """Let copies of a scheduler share what it never changes: configurations, parameters, records of steps, outlets."""
    torch = import_module("torch")
    share(torch.dtype, torch.device, torch.Tensor)
    names = {
        "config": ("VllmConfig", "ModelConfig", "SchedulerConfig", "CacheConfig", "ParallelConfig", "KVTransferConfig"),
        "v1.kv_cache_interface": ("KVCacheConfig", "KVCacheSpec", "KVCacheGroupSpec"),
        "v1.structured_output": ("StructuredOutputManager",),
        "sampling_params": ("SamplingParams",),
        "v1.core.sched.output": ("SchedulerOutput",),
        "distributed.kv_events": ("EventPublisher",),
        "multimodal.registry": ("MultiModalRegistry",),
    }
    for module, classes in names.items():
        share(*(getattr(part(module), name) for name in classes if hasattr(part(module), name)))
    observability = getattr(part("config"), "ObservabilityConfig", None)
    if observability is not None:
        share(observability)


@cache
def _structured_output() -> Any:
    return part("v1.structured_output").StructuredOutputManager(_template(False))


def make_scheduler(cls: Any, settings: Any) -> Any:
    """Construct a scheduler of vLLM's family from a `VllmConfig`."""
    interface, torch = part("v1.kv_cache_interface"), import_module("torch")
    size = settings.cache_config.block_size
    spec = interface.FullAttentionSpec(block_size=size, num_kv_heads=4, head_size=16, dtype=torch.float32)
    # One block is the null block, which nobody ever gets.
    blocks = interface.KVCacheConfig(
        num_blocks=settings.cache_config.num_gpu_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[interface.KVCacheGroupSpec(["layer"], spec)],
    )
    return cls(
        vllm_config=settings,
        kv_cache_config=blocks,
        structured_output_manager=_structured_output(),
        block_size=size,
        log_stats=False,
    )


@cache
def _block_hasher(block_size: int) -> Any:
    utilities = part("v1.core.kv_cache_utils")
    function = part("utils.hashing").get_hash_fn_by_name("sha256")
    utilities.init_none_hash(function)
    return utilities.get_request_block_hasher(block_size, function)


def make_request(
    id: str, prompt: list[int], max_tokens: int, *, arrival: int, priority: int, stop: Iterable[int], block_size: int
) -> Any:
    """Construct a request of vLLM's; `block_size` 0: without prefix caching."""
    sampling = part("sampling_params").SamplingParams(
        max_tokens=max_tokens, ignore_eos=True, stop_token_ids=list(stop), detokenize=False
    )
    return _made(
        part("v1.request").Request,
        request_id=id,
        prompt_token_ids=prompt,
        sampling_params=sampling,
        pooling_params=None,
        eos_token_id=None,
        arrival_time=float(arrival),
        priority=priority,
        block_hasher=_block_hasher(block_size) if block_size else None,
    )


def runner_output(sampled: dict[str, list[int]], transfer: Any = None) -> Any:
    """Return what the model runner hands back: for each request of the step its sampled tokens, maybe none."""
    ids = list(sampled)
    return _made(
        part("v1.outputs").ModelRunnerOutput,
        req_ids=ids,
        req_id_to_index={id: index for index, id in enumerate(ids)},
        sampled_token_ids=list(sampled.values()),
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
        kv_connector_output=transfer,
    )
