"""Measure vLLM's own scheduler on steps of decodes, or of chunks, as the peer of a side-by-side comparison.

A stand-alone script, run by the Python of an environment that has vLLM; it needs nothing else but torch and the
standard library, no GPU, no weights and no network. It builds the synchronous ``Scheduler`` on a stub model, admits n
requests, runs their prefills, and then times ``schedule()`` and ``update_from_output()`` while all n only decode, or
while all n are computed in chunks. The model runner's output is made up outside the timed region, and the garbage
collector stays on, as it is in a server. Standard output gets one JSON object, standard error the logs.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

# The releases this script was run against; each moves the scheduler's inner interfaces, so others are refused.
SUPPORTED_VERSIONS = ("0.24.0", "0.25.0", "0.31.0", "0.32.0", "0.33.0")

BLOCK_SIZE = 16
NUM_BLOCKS = 20_000
MAX_BATCHED_TOKENS = 8192
MAX_SEQS = 1024
PROMPT_TOKENS = 32
MAX_MODEL_LEN = 8192
CHUNK_TOKENS = 4
CHUNKED_PROMPT_TOKENS = 256

ENVIRONMENT = {
    "VLLM_PLUGINS": "",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}

STUB_ARCHITECTURE = "SchedulerPeerForCausalLM"

# Small, but a shape that the configuration's own checks accept.
STUB_CONFIG = {
    "architectures": [STUB_ARCHITECTURE],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 65_536,
    "max_position_embeddings": MAX_MODEL_LEN,
    "torch_dtype": "float32",
}


@dataclass(frozen=True)
class Row:
    """Median microseconds of one step with ``decodes`` running requests; ``both_us`` is the median of the sums."""

    decodes: int
    prefix_caching: bool
    schedule_us: float
    update_us: float
    both_us: float


class StubModel:
    """What the model registry asks of a text-generation class, bar being a torch module; inspected and never built."""

    def __init__(self, vllm_config: object, prefix: str = "") -> None: ...

    def embed_input_ids(self, input_ids: object) -> object: ...

    def forward(self, input_ids: object, positions: object) -> object: ...

    def compute_logits(self, hidden_states: object) -> object: ...


def fail(message: str, code: int) -> NoReturn:
    """Say why in one line on standard error, and leave."""
    print(f"_vllm_peer.py: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send whatever is written to file descriptor 1, from Python or below it, to standard error for a while."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def load_vllm() -> ModuleType:
    """Import vLLM under a fixed environment; leave with 2 if it is missing or of a release never tried here."""
    os.environ.update(ENVIRONMENT)
    try:
        vllm = importlib.import_module("vllm")
    except ImportError as error:
        fail(f"vLLM cannot be imported by {sys.executable}: {error}", 2)
    version = str(getattr(vllm, "__version__", "unknown"))
    if version.partition("+")[0] not in SUPPORTED_VERSIONS:
        fail(f"vLLM {version} is not supported; use one of {', '.join(SUPPORTED_VERSIONS)}", 2)
    return vllm


def register_stub() -> None:
    """Make the stub's architecture known to vLLM's model registry."""
    torch = importlib.import_module("torch")
    registry = importlib.import_module("vllm.model_executor.models").ModelRegistry
    registry.register_model(STUB_ARCHITECTURE, type(STUB_ARCHITECTURE, (StubModel, torch.nn.Module), {}))


def build_config(folder: Path, prefix_caching: bool, threshold: int = 0) -> Any:
    """A ``VllmConfig`` for the stub model whose description lies in ``folder``.

    Prefills get at most ``threshold`` tokens a step; 0: no cap.
    """
    config = importlib.import_module("vllm.config")
    model = config.ModelConfig(
        model=str(folder), skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=MAX_MODEL_LEN
    )
    scheduler = config.SchedulerConfig(
        max_model_len=MAX_MODEL_LEN,
        is_encoder_decoder=False,
        max_num_batched_tokens=MAX_BATCHED_TOKENS,
        max_num_seqs=MAX_SEQS,
        enable_chunked_prefill=True,
        async_scheduling=False,
        long_prefill_token_threshold=threshold,
    )
    cache = config.CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=prefix_caching)
    cache.num_gpu_blocks = NUM_BLOCKS
    return config.VllmConfig(
        model_config=model,
        scheduler_config=scheduler,
        cache_config=cache,
        parallel_config=config.ParallelConfig(),
        device_config=config.DeviceConfig(device="cpu"),
    )


def build_scheduler(folder: Path, prefix_caching: bool, cls: type | None = None, threshold: int = 0) -> Any:
    """A scheduler of a class, vLLM's synchronous one by default, over one full-attention KV cache group."""
    torch = importlib.import_module("torch")
    interface = importlib.import_module("vllm.v1.kv_cache_interface")
    scheduler = importlib.import_module("vllm.v1.core.sched.scheduler")
    structured = importlib.import_module("vllm.v1.structured_output")
    vllm_config = build_config(folder, prefix_caching, threshold)
    spec = interface.FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=4, head_size=16, dtype=torch.float32)
    return (cls or scheduler.Scheduler)(
        vllm_config=vllm_config,
        kv_cache_config=interface.KVCacheConfig(
            num_blocks=NUM_BLOCKS,
            kv_cache_tensors=[],
            kv_cache_groups=[interface.KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=structured.StructuredOutputManager(vllm_config),
        block_size=BLOCK_SIZE,
        log_stats=False,
    )


def build_requests(count: int, prefix_caching: bool, prompt: int = PROMPT_TOKENS) -> list[Any]:
    """Requests whose prompts share no token, so that none finds another's prefix, and which never end by themselves."""
    hashing = importlib.import_module("vllm.utils.hashing")
    cache_utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    request_class = importlib.import_module("vllm.v1.request").Request
    sampling_params = importlib.import_module("vllm.sampling_params").SamplingParams
    hasher = None
    if prefix_caching:
        hash_function = hashing.get_hash_fn_by_name("sha256")
        cache_utils.init_none_hash(hash_function)
        hasher = cache_utils.get_request_block_hasher(BLOCK_SIZE, hash_function)
    return [
        request_class(
            request_id=f"r{number}",
            prompt_token_ids=[token % 65_536 for token in range(number * prompt, (number + 1) * prompt)],
            sampling_params=sampling_params(max_tokens=MAX_MODEL_LEN - prompt, ignore_eos=True),
            pooling_params=None,
            block_hasher=hasher,
        )
        for number in range(count)
    ]


def model_output(scheduler: Any, step: Any, token: int) -> Any:
    """The runner's answer to ``step``: one sampled token for each request that has no prompt left to compute."""
    outputs = importlib.import_module("vllm.v1.outputs")
    ids = list(step.num_scheduled_tokens)
    requests = [scheduler.requests[request_id] for request_id in ids]
    computed = [request.num_computed_tokens >= request.num_tokens for request in requests]
    return outputs.ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
        sampled_token_ids=[[token] if whole else [] for whole in computed],
    )


def run_prefills(scheduler: Any, decodes: int) -> None:
    """Step until every request has its whole prompt computed and its first token sampled."""
    for _ in range(decodes * PROMPT_TOKENS // (MAX_BATCHED_TOKENS - MAX_SEQS) + 4):
        if len(scheduler.running) == decodes and all(request.num_output_tokens for request in scheduler.running):
            return
        step = scheduler.schedule()
        scheduler.update_from_output(step, model_output(scheduler, step, 1))
    raise RuntimeError(f"{decodes} prefills did not end in the steps that they should take")


def timed_step(scheduler: Any, count: int, token: int, each: int = 1) -> tuple[int, int]:
    """One step of ``count`` requests with ``each`` tokens: nanoseconds of ``schedule()`` and its update."""
    start = time.perf_counter_ns()
    step = scheduler.schedule()
    schedule_ns = time.perf_counter_ns() - start
    if len(step.num_scheduled_tokens) != count or step.total_num_scheduled_tokens != count * each:
        raise RuntimeError(f"a step with {count} times {each} tokens scheduled {step.total_num_scheduled_tokens}")
    output = model_output(scheduler, step, token)
    start = time.perf_counter_ns()
    scheduler.update_from_output(step, output)
    return schedule_ns, time.perf_counter_ns() - start


def measure(folder: Path, decodes: int, prefix_caching: bool, steps: int, warmup: int) -> Row:
    """Medians over ``steps`` steps, after ``warmup`` unmeasured ones, on a scheduler of its own."""
    scheduler = build_scheduler(folder, prefix_caching)
    for request in build_requests(decodes, prefix_caching):
        scheduler.add_request(request)
    run_prefills(scheduler, decodes)
    gc.collect()
    for token in range(warmup):
        timed_step(scheduler, decodes, token)
    samples = [timed_step(scheduler, decodes, token) for token in range(warmup, warmup + steps)]

    return Row(
        decodes=decodes,
        prefix_caching=prefix_caching,
        schedule_us=median_us([schedule for schedule, _ in samples]),
        update_us=median_us([update for _, update in samples]),
        both_us=median_us([schedule + update for schedule, update in samples]),
    )


def measure_chunks(folder: Path, chunks: int, steps: int, warmup: int) -> dict[str, float]:
    """The median of both calls' sum over ``steps`` steps of nothing but chunks."""
    scheduler = build_scheduler(folder, False, threshold=CHUNK_TOKENS)
    for request in build_requests(chunks, False, CHUNKED_PROMPT_TOKENS):
        scheduler.add_request(request)
    gc.collect()
    samples = [timed_step(scheduler, chunks, 1, CHUNK_TOKENS) for _ in range(1 + warmup + steps)]
    return {"chunks": chunks, "both_us": median_us([sum(sample) for sample in samples[1 + warmup :]])}


def median_us(values: list[int]) -> float:
    """The median in microseconds."""
    return round(statistics.median(values) / 1000, 2)


def measure_all(options: argparse.Namespace) -> dict[str, object]:
    """Every asked-for combination, in the order asked for."""
    vllm = load_vllm()
    register_stub()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(STUB_CONFIG), encoding="utf-8")
        rows = [measure_chunks(folder, chunks, options.steps, options.warmup) for chunks in options.chunks] or [
            asdict(measure(folder, decodes, caching, options.steps, options.warmup))
            for caching in options.prefix_caching
            for decodes in options.decodes
        ]
    return {"vllm": vllm.__version__, "rows": rows}


def counts(text: str) -> list[int]:
    """Parse ``1,64``: numbers of running decodes, each one that the scheduler can hold."""
    values = [int(part) for part in text.split(",")]
    if not all(1 <= value <= MAX_SEQS for value in values):
        raise argparse.ArgumentTypeError(f"each must lie in 1..{MAX_SEQS}: {text}")
    return values


def switches(text: str) -> list[bool]:
    """Parse ``off,on``."""
    parts = text.split(",")
    if not set(parts) <= {"off", "on"}:
        raise argparse.ArgumentTypeError(f"each must be off or on: {text}")
    return [part == "on" for part in parts]


def parse_options() -> argparse.Namespace:
    """The command line, refused where the KV blocks or the model length could not carry the run."""
    parser = argparse.ArgumentParser(prog="_vllm_peer.py", description="Time vLLM's scheduler on pure-decode steps.")
    parser.add_argument("--decodes", type=counts, default=[1, 64, 256, 1024], help="running decodes, as 1,64")
    parser.add_argument("--chunks", type=counts, default=[], help="measure so many chunks instead, as 256,1024")
    parser.add_argument("--prefix-caching", type=switches, default=[False, True], help="off, on or off,on")
    parser.add_argument("--steps", type=int, default=200, help="measured steps")
    parser.add_argument("--warmup", type=int, default=50, help="unmeasured steps before them")
    options = parser.parse_args()
    if options.steps < 1 or options.warmup < 0:
        parser.error("--steps must be at least 1 and --warmup at least 0")
    # Requests prefilled first decode on while the others are prefilled; 16 steps are more than that takes.
    tokens = PROMPT_TOKENS + options.warmup + options.steps + 16
    blocks = max(options.decodes) * -(-tokens // BLOCK_SIZE)
    if tokens > MAX_MODEL_LEN or blocks >= NUM_BLOCKS:
        parser.error(f"{tokens} tokens each for {max(options.decodes)} decodes do not fit the KV cache; ask for less")
    return options


def main() -> None:
    """Measure and print."""
    options = parse_options()
    with stdout_to_stderr():
        try:
            report = measure_all(options)
        except Exception as error:
            fail(f"vLLM's scheduler could not be measured: {type(error).__name__}: {error}", 1)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
