"""Measure what recording costs beside vLLM: its Scheduler with the recorder and without, on pure-decode steps.

A script for an interpreter that has vLLM, with spec, reference and engine on PYTHONPATH. Both schedulers run in this
process and take turns; of each the round with the least median counts. Standard output gets one JSON object.
"""

import importlib
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _vllm_peer as peer

ROUNDS, STEPS = 4, 50


def build(kind: Any, folder: Path, decodes: int) -> Any:
    """A scheduler of this class with so many running decodes."""
    importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler = kind  # type: ignore[attr-defined]  # what the peer builds
    scheduler = peer.build_scheduler(folder, False)
    for request in peer.build_requests(decodes, False):
        scheduler.add_request(request)
    peer.run_prefills(scheduler, decodes)
    return scheduler


def measure(folder: Path, decodes: int) -> dict[str, float]:
    """Median microseconds of a step, plain and recorded."""
    plain = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler
    recorded = importlib.import_module("onbeat_engine.vllm.recorder").RecordedScheduler
    schedulers = [build(kind, folder, decodes) for kind in (plain, recorded)]
    build(plain, folder, 1)  # leaves the class in its place
    least = [float("inf"), float("inf")]
    for token in range(ROUNDS):
        for index, scheduler in enumerate(schedulers):
            times = [sum(peer.timed_step(scheduler, decodes, token)) for _ in range(STEPS)]
            least[index] = min(least[index], statistics.median(times) / 1000)
    if schedulers[1].onbeat_recorder.errors or schedulers[1].onbeat_recorder.writer.errors:
        raise RuntimeError("the recorder had errors")
    return {"decodes": decodes, "plain_us": least[0], "recorded_us": least[1], "ratio": least[1] / least[0]}


def main() -> None:
    """Measure and print."""
    with peer.stdout_to_stderr(), tempfile.TemporaryDirectory() as name:
        vllm = peer.load_vllm()
        peer.register_stub()
        (Path(name) / "config.json").write_text(json.dumps(peer.STUB_CONFIG), encoding="utf-8")
        os.environ["ONBEAT_TRACE_DIR"] = str(Path(name) / "trace")
        rows = [measure(Path(name), decodes) for decodes in (1, 64, 256, 1024)]
    print(json.dumps({"vllm": vllm.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
