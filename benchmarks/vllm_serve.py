"""Measure what the policy costs inside vLLM: stock class, ours, and ours with the monitor on, in one run.

Run from the repository's root by the Python of an environment that has vLLM, with `engine`, `reference` and `spec` on
its path: `PYTHONPATH=.:engine:reference:spec python -m benchmarks.vllm_serve`. Needs no GPU, no weights, no network.

The schedulers take turns, step by step, so that whatever else the machine does falls on all of them; what counts are
the ratios. *plain* steps are unthrottled, with n decodes. In *held* steps n decodes run, prefills are throttled, and
fresh prompts wait; the stock class stops at the first, ours looks at all of them.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import _vllm_peer as peer

WAITING = 16
"""Fresh prompts that wait in a held step."""

CLASSES = ("stock", "onbeat", "onbeat+monitor")


def build(folder: Path) -> dict[str, Any]:
    """One scheduler for each column."""
    ours = importlib.import_module("onbeat_engine.vllm").OnbeatScheduler
    watch = importlib.import_module("onbeat_engine.vllm.watch").Watch
    schedulers = {name: peer.build_scheduler(folder, False, None if name == "stock" else ours) for name in CLASSES}
    schedulers["onbeat+monitor"]._watch = watch(schedulers["onbeat+monitor"].onbeat_violations)
    return schedulers


def step(scheduler: Any, throttle: bool, decodes: int) -> int:
    """One step; nanoseconds of `schedule()` and `update_from_output()`, the monitor's work in both."""
    start = time.perf_counter_ns()
    output = scheduler.schedule(throttle)
    middle = time.perf_counter_ns()
    if len(output.num_scheduled_tokens) != decodes:
        raise RuntimeError(f"a step with {decodes} decodes scheduled {len(output.num_scheduled_tokens)} requests")
    answer = peer.model_output(scheduler, output, 1)
    resumed = time.perf_counter_ns()
    scheduler.update_from_output(output, answer)
    return middle - start + time.perf_counter_ns() - resumed


def measure(folder: Path, decodes: int, held: bool, steps: int, warmup: int) -> dict[str, Any]:
    """Median microseconds of each class, and the ratios to the stock class's."""
    schedulers = build(folder)
    for scheduler in schedulers.values():
        requests = peer.build_requests(decodes + WAITING, False)
        for request in requests[:decodes]:
            scheduler.add_request(request)
        peer.run_prefills(scheduler, decodes)
        if held:
            scheduler._max_hold_steps = 1 << 30  # the hard bound would end the holds
            for request in requests[decodes:]:
                scheduler.add_request(request)
    gc.collect()
    samples: dict[str, list[int]] = {name: [] for name in schedulers}
    for number in range(warmup + steps):
        for name, scheduler in schedulers.items():
            took = step(scheduler, held, decodes)
            if number >= warmup:
                samples[name].append(took)
    medians = {name: statistics.median(values) / 1000 for name, values in samples.items()}
    return {
        "decodes": decodes,
        "held": held,
        "us": {name: round(value, 1) for name, value in medians.items()},
        "ratio": {name: round(value / medians["stock"], 3) for name, value in medians.items()},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="vllm_serve", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--decodes", type=peer.counts, default=[256, 1000], help="running decodes, as 1,64")
    parser.add_argument("--steps", type=int, default=100, help="measured steps")
    parser.add_argument("--warmup", type=int, default=20, help="unmeasured steps before them")
    options = parser.parse_args()
    with peer.stdout_to_stderr():
        vllm = peer.load_vllm()
        peer.register_stub()
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "config.json").write_text(json.dumps(peer.STUB_CONFIG), encoding="utf-8")
            rows = [
                measure(Path(name), decodes, held, options.steps, options.warmup)
                for decodes in options.decodes
                for held in (False, True)
            ]
    print(json.dumps({"vllm": vllm.__version__, "waiting": WAITING, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
