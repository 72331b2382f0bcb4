"""Drives vLLM schedulers under the recorder. A script for an interpreter that has vLLM; run by test_recorder.py.

    run.py FOLDER CLASS SEED STEPS

writes a trace into FOLDER and prints, as JSON, the version, the steps, and what the scheduler did in them. No model
runs: everybody samples token 7 whenever vLLM expects him to.
"""

import importlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks import _vllm_peer as peer

BLOCK_SIZE, NUM_BLOCKS = 16, 24


def connector_module(folder: Path) -> None:
    """Write a KV connector: requests whose prompt begins with 1 find two blocks in it, loaded beforehand."""
    (folder / "run_connector.py").write_text(
        """
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

class RunConnector(KVConnectorBase_V1):
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        offered = 32 if request.prompt_token_ids[0] == 1 and request.num_prompt_tokens > 32 else 0
        return max(0, offered - num_computed_tokens), True and offered > num_computed_tokens
    def update_state_after_alloc(self, request, blocks, num_external_tokens): pass
    def build_connector_meta(self, scheduler_output): return KVConnectorMetadata()
    def start_load_kv(self, forward_context, **kwargs): pass
    def wait_for_layer_load(self, layer_name): pass
    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs): pass
    def wait_for_save(self): pass
"""
    )
    sys.path.insert(0, str(folder))


def build(folder: Path, kind: str, priority: bool, recorded: bool = True) -> Any:
    """A scheduler with 23 blocks of 16 tokens and a budget of 64 tokens; or the same of the class behind it."""
    config = importlib.import_module("vllm.config")
    torch = importlib.import_module("torch")
    interface = importlib.import_module("vllm.v1.kv_cache_interface")
    structured = importlib.import_module("vllm.v1.structured_output")
    is_async = "Async" in kind
    parallel = config.ParallelConfig()
    parallel.data_parallel_size = 2  # the flag is the caller's: no cadence of the scheduler's own
    vllm_config = config.VllmConfig(
        model_config=config.ModelConfig(
            model=str(folder), skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=256
        ),
        scheduler_config=config.SchedulerConfig(
            max_model_len=256,
            is_encoder_decoder=False,
            max_num_batched_tokens=64,
            max_num_seqs=6,
            enable_chunked_prefill=True,
            async_scheduling=is_async,
            policy="priority" if priority else "fcfs",
            prefill_schedule_interval=3,
        ),
        cache_config=config.CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=False),
        device_config=config.DeviceConfig(device="cpu"),
        kv_transfer_config=config.KVTransferConfig(
            kv_connector="RunConnector", kv_connector_module_path="run_connector", kv_role="kv_both"
        ),
    )
    vllm_config.cache_config.num_gpu_blocks = NUM_BLOCKS
    vllm_config.parallel_config.data_parallel_size = 2
    spec = interface.FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=4, head_size=16, dtype=torch.float32)
    module = importlib.import_module("onbeat_engine.vllm.recorder")
    cls = getattr(module, kind)
    if not recorded:
        cls = cls.__mro__[2]
    return cls(
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


class Run:
    """One scheduler with random clients."""

    def __init__(self, scheduler: Any, depth: int, seed: int) -> None:
        self.scheduler = scheduler
        self.depth = depth
        self.draw = random.Random(seed)
        self.flights: deque[tuple[Any, Any]] = deque()
        self.seen: Counter[str] = Counter()
        self.log: list[dict[str, int]] = []
        """What every step scheduled."""
        self.added = 0
        self.loading: dict[str, int] = {}
        self.outputs = importlib.import_module("vllm.v1.outputs")
        self.request = importlib.import_module("vllm.v1.request")
        self.params = importlib.import_module("vllm.sampling_params").SamplingParams

    def add(self) -> None:
        draw, id = self.draw, f"r{self.added}"
        self.added += 1
        first = 1 if draw.random() < 0.3 else 2
        self.scheduler.add_request(
            self.request.Request(
                request_id=id,
                prompt_token_ids=[first, *range(3, 3 + draw.randint(0, 90))],
                sampling_params=self.params(max_tokens=draw.randint(1, 40), ignore_eos=True),
                pooling_params=None,
                priority=draw.randint(0, 2),
            )
        )

    def turn(self, throttle: bool) -> None:
        scheduler = self.scheduler
        if len(self.flights) == self.depth:
            self.land()
        ran = {request.request_id for request in scheduler.running}
        step = scheduler.schedule(throttle)
        output = self.output(step)
        self.log.append(dict(step.num_scheduled_tokens))
        self.seen["steps"] += 1
        self.seen["throttled"] += throttle
        left = {r.request_id for r in scheduler.running} - step.num_scheduled_tokens.keys()
        self.seen["left out"] += bool(left & ran)
        self.seen["preempted"] += bool(ran - {request.request_id for request in scheduler.running})
        for id, request in scheduler.requests.items():
            landed = id in scheduler.finished_recving_kv_req_ids or id in self.loading
            if request.status.name == "WAITING_FOR_REMOTE_KVS" and not landed:
                self.loading[id] = self.seen["steps"] + self.draw.randint(1, 4)
                self.seen["loads"] += 1
        self.flights.append((step, output))

    def output(self, step: Any) -> Any:
        ids = list(step.num_scheduled_tokens)
        chunks = [self.scheduler.requests[id].is_prefill_chunk for id in ids]
        return self.outputs.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id: index for index, id in enumerate(ids)},
            sampled_token_ids=[[] if chunk else [7] for chunk in chunks],
        )

    def land(self) -> None:
        step, output = self.flights.popleft()
        landed = {id for id, due in self.loading.items() if due <= self.seen["steps"]}
        for id in landed:
            del self.loading[id]
        if landed:
            output.kv_connector_output = self.outputs.KVConnectorOutput(finished_recving=landed)
        self.scheduler.update_from_output(step, output)

    def play(self, steps: int) -> None:
        aborted = self.request.RequestStatus.FINISHED_ABORTED
        for number in range(steps):
            while self.draw.random() < 0.35 and len(self.scheduler.requests) < 12:
                self.add()
            if self.draw.random() < 0.03 and self.scheduler.running:
                self.scheduler.finish_requests(self.scheduler.running[0].request_id, aborted)
            if self.draw.random() < 0.03:
                self.scheduler.finish_requests("nobody", aborted)
            self.turn(number % 3 != 0)
        while self.flights:
            self.land()


def main() -> None:
    """Run, and print what happened."""
    folder, kind, seed, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    os.environ["ONBEAT_TRACE_DIR"] = str(folder)
    with peer.stdout_to_stderr(), tempfile.TemporaryDirectory() as name:
        vllm = peer.load_vllm()
        peer.register_stub()
        (Path(name) / "config.json").write_text(json.dumps(peer.STUB_CONFIG), encoding="utf-8")
        connector_module(Path(name))
        scheduler = build(Path(name), kind, priority=seed % 2 == 1)
        run = Run(scheduler, 2 if "Async" in kind else 1, seed)
        began = time.perf_counter()
        run.play(steps)
        seconds = time.perf_counter() - began
        plain = Run(build(Path(name), kind, seed % 2 == 1, recorded=False), run.depth, seed)
        plain.play(steps)
        recorder = scheduler.onbeat_recorder
        report = {
            "vllm": vllm.__version__,
            "errors": recorder.errors if recorder else None,
            "writer_errors": recorder.writer.errors if recorder else None,
            "seconds": seconds,
            "same": run.log == plain.log and not hasattr(plain.scheduler, "onbeat_recorder"),
            **run.seen,
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
