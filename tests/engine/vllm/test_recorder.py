"""The recorder beside vLLM: real schedulers where there is an interpreter that has one, stand-ins everywhere.

ONBEAT_VLLM_PYTHON names that interpreter, ONBEAT_VLLM_PATH a folder with another unpacked release, if any.
"""

import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onbeat_engine.vllm import recorder
from onbeat_engine.vllm.recorder import VllmRecorder
from onbeat_proofs.traces.check import TraceReport, check_trace
from onbeat_spec.records import Eviction, LockStep
from onbeat_spec.trace import Accepted, CacheReset, Crashed, Idle, Notice, PauseChanged, Record, StepRecord, Update
from onbeat_spec.trace_read import TraceFile
from tests.reference.test_observe_vllm import put
from tests.reference.test_observe_vllm import scheduler as stand_in

ROOT = Path(__file__).resolve().parents[3]


def records(folder: Path) -> Iterator[Record]:
    for path in sorted(folder.glob("*.ndjson")):
        file = TraceFile(path)
        yield from (record for _, record in file)
        file.close()


# --- Real ones -------------------------------------------------------------------------------------------------------

PYTHON = os.environ.get("ONBEAT_VLLM_PYTHON") or (sys.executable if importlib.util.find_spec("vllm") else None)
needs_vllm = pytest.mark.skipif(
    PYTHON is None, reason="no vLLM here; set ONBEAT_VLLM_PYTHON to an interpreter that has it"
)

ODD = {"full-sequence-fits", "oldest-finishes", "order-kept", "resume-bypasses", "decode-never-held"}
ODD |= {"one-token-passes", "visit-once", "evicted-is-out", "victim-can-pay", "flag-means-backlog", "no-empty-step"}
"""What stock schedulers may be found to violate; the audit tells which of it is deliberate."""


def run_vllm(folder: Path, kind: str, seed: int, steps: int = 400) -> dict[str, Any]:
    paths = [os.environ.get("ONBEAT_VLLM_PATH", ""), *(str(ROOT / name) for name in ("spec", "reference", "engine"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    command = [str(PYTHON), str(Path(__file__).with_name("run.py")), str(folder), kind, str(seed), str(steps)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def violated(report: TraceReport) -> set[str]:
    return {row.invariant for row in report.rows if row.violations}


@needs_vllm
@pytest.mark.parametrize("kind", ["RecordedScheduler", "RecordedAsyncScheduler"])
@pytest.mark.parametrize("seed", [1, 2], ids=["priority", "fcfs"])
def test_a_real_scheduler_is_recorded(tmp_path: Path, kind: str, seed: int) -> None:
    """Without an error, every step, no decision changed; and what no scheduler gets wrong unnoticed is not wrong."""
    did = run_vllm(tmp_path, kind, seed)
    assert did["same"]
    assert (did["errors"], did["writer_errors"], did["steps"]) == (0, 0, 400)
    report = check_trace([str(path) for path in tmp_path.glob("*.ndjson")])
    assert (report.steps, report.notes) == (400, [])
    assert violated(report) <= ODD
    met = {row.invariant: row.met for row in report.rows}
    for invariant in ("exactly-once", "blocks-conserved", "evicted-is-out", "load-once", "held-at-most", "order-kept"):
        assert met[invariant] > 0, invariant
    read = list(records(tmp_path))
    assert sum(bool(each.step.evictions) for each in read if isinstance(each, StepRecord)) == did["preempted"]
    assert sum(len(each.step.loading) for each in read if isinstance(each, StepRecord)) == did["loads"]


# --- Stand-ins -------------------------------------------------------------------------------------------------------


class Plain:
    """What the recorder needs of a scheduler; `schedule` does what a test has put into `plan`."""

    def __init__(self, **changes: Any) -> None:
        vars(self).update(vars(stand_in(**changes)))
        self.parallel_config.data_parallel_rank = 0
        self.plan: list[Any] = []

    def schedule(self, throttle_prefills: bool = False) -> Any:
        return self.plan.pop(0)()

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        return model_runner_output

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def finish_requests(self, request_ids: Any, finished_status: Any) -> str:
        for id in [request_ids] if isinstance(request_ids, str) else list(request_ids or self.requests):
            self.requests.pop(id, None)
        return "done"

    def set_pause_state(self, pause_state: Any) -> None:
        self._pause_state = pause_state

    def _preempt_request(self, request: Any, timestamp: float, drop_stale_output: bool = False) -> None:
        self.running.remove(request)
        self.waiting.insert(0, request)
        request.status = SimpleNamespace(name="PREEMPTED")
        request.num_computed_tokens = 0
        self.kv_cache_manager.tables[request.request_id] = []

    requests: dict[str, Any]
    waiting: list[Any]
    running: list[Any]
    kv_cache_manager: Any
    parallel_config: Any
    _pause_state: Any


class Recorded(VllmRecorder, Plain):
    """The stand-in, recorded."""


def output(**scheduled: int) -> Any:
    cached = SimpleNamespace(req_ids=list(scheduled), new_block_ids=[([9],)] * len(scheduled))
    return SimpleNamespace(
        num_scheduled_tokens=scheduled, scheduled_spec_decode_tokens={}, scheduled_cached_reqs=cached
    )


def results(**tokens: int) -> Any:
    outputs = [SimpleNamespace(request_id=id, new_token_ids=[7] * n, finish_reason=None) for id, n in tokens.items()]
    return {0: SimpleNamespace(outputs=outputs)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONBEAT_TRACE_DIR", str(tmp_path))
    monkeypatch.delenv("ONBEAT_TRACE_FSYNC", raising=False)
    return tmp_path


def test_an_eviction_is_seen_as_it_happens(folder: Path) -> None:
    made = Recorded()
    a = put(made, "a", "RUNNING", tokens=5, computed=4, blocks=1)
    b = put(made, "b", "RUNNING", tokens=5, computed=4, blocks=2)

    def step() -> Any:
        made._preempt_request(b, 0.0, drop_stale_output=True)
        made.kv_cache_manager.tables["a"].append(9)
        a.num_computed_tokens += 1
        return output(a=1)

    made.plan = [step]
    returned = made.schedule(True)
    assert returned.num_scheduled_tokens == {"a": 1}
    assert made.update_from_output(returned, results(a=1)) is not None
    record, update = list(records(folder))
    assert isinstance(record, StepRecord)
    assert (record.step.throttle, record.step.hold, record.step.evictions) == (True, True, [Eviction("b", "a", 2)])
    assert (record.before.running, record.after.waiting) == (("b", "a"), ("b",))
    assert record.whole is not None
    assert isinstance(update, Update)
    assert update == Update(0, time=update.time)


def test_events(folder: Path) -> None:
    made = Recorded()
    request = SimpleNamespace(**{**vars(put(stand_in(), "a", "WAITING", tokens=4, computed=0)), "is_finished": bool})
    made.add_request(request)
    made.set_pause_state(SimpleNamespace(name="PAUSED_ALL"))
    made.set_pause_state(SimpleNamespace(name="UNPAUSED"))
    made.onbeat_lock_step(LockStep(3, 1), idle=True)
    made.onbeat_lock_step(LockStep(4, 2))
    made.plan = [output]
    made.schedule()
    b = put(made, "b", "RUNNING", tokens=5, computed=4, blocks=1)
    made._preempt_request(b, 0.0)
    assert made.finish_requests(["a", "z"], None) == "done"
    read = list(records(folder))
    assert [each.lock for each in read if isinstance(each, StepRecord)] == [LockStep(4, 2)]
    assert [each for each in read if not isinstance(each, StepRecord)] == [
        Accepted("a", 4, 12),
        PauseChanged("all"),
        PauseChanged(None),
        Idle(LockStep(3, 1)),
        CacheReset(("b",)),
        Notice("abort", "a"),
        Notice("abort", "z", known=False),
    ]


def test_a_crash_is_recorded_and_raised(folder: Path) -> None:
    made = Recorded()
    with pytest.raises(IndexError):
        made.schedule()
    assert list(records(folder)) == [Crashed("schedule: IndexError: pop from empty list")]


@pytest.mark.usefixtures("folder")
def test_what_cannot_be_recorded_is_scheduled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A release whose attributes moved: counted, said once, and nothing else."""
    made = Recorded()
    made.plan = [output] * 5
    del made.waiting
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            assert made.schedule().num_scheduled_tokens == {}
    assert made.onbeat_recorder is not None
    assert made.onbeat_recorder.errors == 5
    assert len(caplog.records) == 1
    with caplog.at_level(logging.ERROR):
        assert Recorded(parallel_config=SimpleNamespace(data_parallel_rank=0)).onbeat_recorder is None
    assert "cannot be recorded" in caplog.text
    caplog.clear()
    monkeypatch.setenv("ONBEAT_TRACE_MAX_BYTES", "much")
    with caplog.at_level(logging.ERROR):
        assert Recorded().onbeat_recorder is None
    assert "ONBEAT_TRACE_MAX_BYTES is 'much'" in caplog.text


def test_without_a_folder_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ONBEAT_TRACE_DIR", raising=False)
    made = Recorded()
    made.plan = [output]
    made.schedule()
    assert (made.onbeat_recorder, list(tmp_path.iterdir())) == (None, [])


def test_importing_it_loads_no_vllm() -> None:
    script = """
import sys
import onbeat_engine.vllm.recorder as module
print(*sorted({"vllm", "torch", "z3"} & sys.modules.keys()), hasattr(module, "anything"))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stdout.split() == ["False"], run.stderr


def test_the_two_classes_are_made_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Scheduler", "AsyncScheduler"):
        module = {"Scheduler": "scheduler", "AsyncScheduler": "async_scheduler"}[name]
        as_module = SimpleNamespace(**{name: Plain})
        monkeypatch.setitem(sys.modules, f"vllm.v1.core.sched.{module}", as_module)
        made = getattr(recorder, f"Recorded{name}")
        assert made.__mro__[1:3] == (VllmRecorder, Plain)
        assert getattr(recorder, f"Recorded{name}") is made
        monkeypatch.delattr(recorder, f"Recorded{name}")
    with pytest.raises(AttributeError, match="RecordedOther"):
        _ = recorder.RecordedOther
