"""Real vLLM schedulers over a stub model: no GPU, no weights, no network; and a fake engine around one.

Importing this module imports vLLM, so tests do it after `needs_vllm`.
"""

import dataclasses
import importlib
import json
import os
import tempfile
import warnings
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

os.environ.update(VLLM_PLUGINS="", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own imports use what others have deprecated
    import vllm.config as vc
    from vllm.model_executor.models import ModelRegistry
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus
    from vllm.v1.structured_output import StructuredOutputManager

    from onbeat_engine.vllm import OnbeatAsyncScheduler, OnbeatScheduler

__all__ = ["AsyncScheduler", "OnbeatAsyncScheduler", "OnbeatScheduler", "PauseState", "Scheduler"]

ARCHITECTURE = "OnbeatStubForCausalLM"
MODEL = {
    "architectures": [ARCHITECTURE],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 65_536,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}


torch: Any = importlib.import_module("torch")  # the one that vLLM brings


class StubModel(torch.nn.Module):  # type: ignore[misc]  # torch is not type-checked: its classes are Any
    """What the registry asks of a text-generation class; inspected and never built."""

    def __init__(self, vllm_config: object, prefix: str = "") -> None: ...

    def embed_input_ids(self, input_ids: object) -> object: ...

    def forward(self, input_ids: object, positions: object) -> object: ...

    def compute_logits(self, hidden_states: object) -> object: ...


@cache
def _model() -> tuple[Any, tempfile.TemporaryDirectory[str]]:
    folder = tempfile.TemporaryDirectory()
    (Path(folder.name) / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    ModelRegistry.register_model(ARCHITECTURE, StubModel)
    model = vc.ModelConfig(model=folder.name, skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=256)
    init_none_hash(get_hash_fn_by_name("sha256"))
    return model, folder


@dataclasses.dataclass(frozen=True)
class Options:
    """One scheduler's configuration; token counts are tokens, block counts KV blocks."""

    scheduling: str = "fcfs"
    block_size: int = 4
    num_blocks: int = 64
    tokens: int = 32
    seqs: int = 8
    caching: bool = False
    remote: bool = False
    interval: int = 1
    threshold: int = 0
    drafts: int = 0
    """Draft tokens proposed for each decode, all but the first of them always accepted."""
    lookahead: bool = False
    """Asynchronous scheduling: the next step is scheduled before the outputs of the last one are back."""


def attention(block_size: int) -> Any:
    """What the one layer of the stub model keeps for a block."""
    return FullAttentionSpec(block_size=block_size, num_kv_heads=4, head_size=16, dtype=torch.float32)


def configuration(options: Options, scheduler_cls: str | None = None) -> Any:
    """Make vLLM's configuration for the stub model."""
    model, _ = _model()
    cache_config = vc.CacheConfig(block_size=options.block_size, enable_prefix_caching=options.caching)
    cache_config.num_gpu_blocks = options.num_blocks
    transfer = None
    if options.remote:
        transfer = vc.KVTransferConfig(
            kv_connector="Store",
            kv_connector_module_path="tests.engine.vllm.connector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
        )
    parallel = vc.ParallelConfig()
    speculative = None
    if options.drafts:
        speculative = vc.SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=options.drafts,
            prompt_lookup_max=2,
            target_model_config=model,
            target_parallel_config=parallel,
        )
    return vc.VllmConfig(
        model_config=model,
        speculative_config=speculative,
        scheduler_config=vc.SchedulerConfig(
            max_model_len=256,
            is_encoder_decoder=False,
            max_num_batched_tokens=options.tokens,
            max_num_seqs=options.seqs,
            enable_chunked_prefill=True,
            policy=options.scheduling,
            prefill_schedule_interval=options.interval,
            long_prefill_token_threshold=options.threshold,
            async_scheduling=options.lookahead,
            scheduler_cls=scheduler_cls,
        ),
        cache_config=cache_config,
        parallel_config=parallel,
        device_config=vc.DeviceConfig(device="cpu"),
        kv_transfer_config=transfer,
    )


def build(cls: type, options: Options = Options()) -> Any:
    """Make a scheduler of a class."""
    config = configuration(options)
    return cls(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=options.num_blocks + 1,  # one is the null block
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], attention(options.block_size))],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=options.block_size,
        log_stats=False,
    )


class Engine:
    """One scheduler and what an engine does around it; every operation is a method with plain arguments."""

    def __init__(self, cls: type, options: Options = Options()) -> None:
        self.scheduler = build(cls, options)
        self.options = options
        self.flights: deque[Any] = deque()
        self.added = 0

    def add(
        self,
        id: str,
        prompt: int,
        outputs: int = 4,
        *,
        priority: int = 0,
        prefix: int = 0,
        remote: int = 0,
        landing: bool = True,
    ) -> None:
        """Add a request; its first `prefix` tokens are the same as others', and a store has `remote` of them."""
        self.added += 1
        extra = {"kv_transfer_params": {"tokens": remote, "landing": landing}} if remote else None
        hasher = None
        if self.options.caching:
            hasher = get_request_block_hasher(self.options.block_size, get_hash_fn_by_name("sha256"))
        self.scheduler.add_request(
            Request(
                request_id=id,
                prompt_token_ids=[*range(prefix), *([1000 + self.added] * (prompt - prefix))],
                sampling_params=SamplingParams(max_tokens=outputs, ignore_eos=True, extra_args=extra),
                pooling_params=None,
                priority=priority,
                arrival_time=float(self.added),
                block_hasher=hasher,
            )
        )

    def abort(self, id: str) -> None:
        self.scheduler.finish_requests(id, RequestStatus.FINISHED_ABORTED)

    def pause(self, name: str) -> None:
        self.scheduler.set_pause_state(PauseState[name])

    def schedule(self, throttle: bool = False) -> Any:
        """Schedule one step; its outputs come back when `deliver` is called."""
        output = self.scheduler.schedule(throttle)  # positionally, as vLLM's engine does
        self.flights.append(output)
        return output

    def deliver(self, landed: tuple[str, ...] = (), failed: tuple[str, ...] = ()) -> None:
        """Bring back the outputs of the oldest step in flight; loads that landed, or failed, come with them."""
        output = self.flights.popleft()
        ids = list(output.num_scheduled_tokens)
        sampled = []
        for id in ids:
            request = self.scheduler.requests.get(id)
            done = request is not None and self._computed(output, id) >= self._known(output, id)
            drafts = len(output.scheduled_spec_decode_tokens.get(id, ()))
            sampled.append([7] * (1 + max(0, drafts - 1)) if done else [])
        bad: set[int] = set()
        for id in failed:
            bad.update(self.scheduler.kv_cache_manager.get_block_ids(id)[0])
        transfer = None
        if landed or failed:
            transfer = KVConnectorOutput(finished_recving={*landed, *failed}, invalid_block_ids=bad)
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={id: index for index, id in enumerate(ids)},
                sampled_token_ids=sampled,
                kv_connector_output=transfer,
            ),
        )
        if self.options.drafts and ids:
            live = [id for id in ids if id in self.scheduler.requests]
            self.scheduler.update_draft_token_ids(DraftTokenIds(live, [[7] * self.options.drafts for _ in live]))

    def step(self, throttle: bool = False, **transfers: tuple[str, ...]) -> dict[str, int]:
        """Schedule a step and bring its outputs back; return the tokens given."""
        output = self.schedule(throttle)
        self.deliver(**transfers)
        return dict(output.num_scheduled_tokens)

    @property
    def loading(self) -> list[str]:
        """Requests whose remote load has not landed."""
        wait = RequestStatus.WAITING_FOR_REMOTE_KVS
        landed = self.scheduler.finished_recving_kv_req_ids
        return [id for id, each in self.scheduler.requests.items() if each.status == wait and id not in landed]

    @staticmethod
    def _computed(output: Any, id: str) -> int:
        before = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        before.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        given: int = output.num_scheduled_tokens[id]
        return int(before[id]) + given

    def _known(self, output: Any, id: str) -> int:
        """Tokens that were known, or awaited, when the step was scheduled."""
        cached = output.scheduled_cached_reqs
        outputs = dict(zip(cached.req_ids, cached.num_output_tokens, strict=True)).get(id)
        request = self.scheduler.requests[id]
        return int(request.num_prompt_tokens + (request.num_output_tokens if outputs is None else outputs))


def plain(value: Any) -> Any:
    """Turn a scheduler output, or a part of it, into values that can be compared."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return type(value).__name__


def books(scheduler: Any) -> Any:
    """Return all that a stock scheduler knows of its requests, as one value; the saturation flag is left out."""
    return {
        "running": [each.request_id for each in scheduler.running],
        "waiting": [each.request_id for each in scheduler.waiting],
        "holding": [each.request_id for each in scheduler.kv_holding_waiting],
        "deferred": sorted(each.request_id for each in scheduler.deferred_waiting),
        "landed": sorted(scheduler.finished_recving_kv_req_ids),
        "steps": (scheduler.current_step, getattr(scheduler, "num_executed_steps", None)),
        "finished": sorted(scheduler.finished_req_ids),
        "preempted": sorted(scheduler.reset_preempted_req_ids),
        "inflight": sorted(each.request_id for each in scheduler._inflight_prefills),
        "free": [
            block.block_id for block in scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
        ],
        "requests": {
            id: (
                each.status.name,
                each.num_tokens,
                each.num_computed_tokens,
                each.num_output_placeholders,
                each.num_in_flight_tokens,
                each.next_decode_eligible_step,
                each.is_prefill_chunk,
                each.num_preemptions,
                plain(scheduler.kv_cache_manager.get_block_ids(id)),
            )
            for id, each in scheduler.requests.items()
        },
    }
