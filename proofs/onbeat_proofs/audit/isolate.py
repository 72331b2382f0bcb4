"""The audit in a process of its own: whatever the audited class does to that process, a report comes of it."""

import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from select import select
from time import monotonic
from typing import Any, BinaryIO

from onbeat_proofs.audit.report import AuditReport, Budget, Finding, InvariantResult
from onbeat_proofs.foreign.watchdog import SIZE, Journal
from onbeat_proofs.play.keeps_text import STATEMENTS
from onbeat_proofs.scenarios.operations import Op, Scenario, Schedule
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.config import Config
from onbeat_spec.errors import NotAScheduler

LIMIT_S: dict[Budget, float] = {"quick": 180.0, "standard": 600.0, "deep": 3 * 3600.0}
"""Wall seconds after which an audit is stopped, far more than it takes: who sleeps, or hangs in C, gets there."""
LAST_S = 20.0
"""Wall seconds that a process may take to end once it has closed its end of the pipe: a big one on a busy machine."""
SHOWN = 2000
"""Characters of a child's last words that are kept."""
Progress = Callable[[str, int, int], object]


@dataclass(frozen=True, slots=True)
class AuditJob:
    """What to audit, as `onbeat audit` is asked for it."""

    scheduler: str
    policy: str = "auto"
    budget: Budget = "standard"
    seed: int = 0
    workload: str | None = None
    interval: int = 2
    own: bool = False
    stop_at: tuple[str, ...] = ()
    """End at the first violation of one of these."""


def audit_apart(
    job: AuditJob, progress: Progress = lambda what, done, total: None, limit_s: float | None = None
) -> AuditReport:
    """Audit a class in a process of its own.

    Args:
        job: what to audit.
        progress: told how far the audit is.
        limit_s: wall seconds; by default those of the budget.

    Raises:
        OnbeatError: whatever the audit raises: there is no such class, it cannot be driven, vLLM is missing.
    """
    limit = LIMIT_S[job.budget] if limit_s is None else limit_s
    began, known = monotonic(), AuditReport(job.scheduler, job.policy, job.budget, job.seed)
    with tempfile.TemporaryFile() as memory, tempfile.TemporaryFile() as words:
        memory.truncate(SIZE)
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "onbeat_proofs.audit.child", str(writing), str(memory.fileno())]
        with (
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=words, stderr=words, pass_fds=(writing, memory.fileno())
            ) as child,
            os.fdopen(reading, "rb", buffering=0) as results,
        ):
            os.close(writing)
            assert child.stdin is not None
            try:
                child.stdin.write(pickle.dumps(job))
                child.stdin.close()
                for kind, value in _messages(results, monotonic() + limit):
                    if kind == "progress":
                        progress(*value)
                    elif kind == "begun":
                        known = _report(value)
                    elif kind == "error":
                        raise value
                    else:
                        return _report(value)
                late = child.poll() is None and _still_runs(child)
            finally:
                if child.poll() is None:
                    child.kill()
        words.seek(0)
        said = words.read().decode(errors="replace").strip()[-SHOWN:]
        known.seconds = monotonic() - began
        return _dead(known, Journal(memory.fileno()).read(), _how(child.returncode, late, limit), said)


def _report(value: Any) -> AuditReport:
    assert isinstance(value, AuditReport)
    return value


def _still_runs(child: "subprocess.Popen[bytes]") -> bool:
    """Whether a process whose end of the pipe may be closed goes on."""
    try:
        child.wait(LAST_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _messages(results: BinaryIO | io.FileIO, deadline: float) -> Iterator[tuple[str, Any]]:
    """Yield what the child sends, until it closes its end or the time is up."""
    data = b""
    while (left := deadline - monotonic()) > 0:
        ready, _, _ = select([results], [], [], min(left, 1.0))
        if not ready:
            continue
        more = results.read(1 << 16)
        if not more:
            return
        data += more
        while len(data) >= 8 and len(data) >= 8 + (size := int.from_bytes(data[:8], "little")):
            message, data = data[8 : 8 + size], data[8 + size :]
            kind, value = pickle.loads(message)
            yield kind, value


def send(file: BinaryIO, kind: str, value: object) -> None:
    """Write one message."""
    data = pickle.dumps((kind, value), pickle.HIGHEST_PROTOCOL)
    file.write(len(data).to_bytes(8, "little") + data)
    file.flush()


def _how(code: int | None, late: bool, limit: float) -> str:
    if late:
        return f"the audit did not end within {limit:g} s"
    if code is not None and code < 0:
        return f"the process was killed by {signal.Signals(-code).name}"
    return f"the process exited with code {code}"


def _dead(report: AuditReport, journal: tuple[Config, tuple[Op, ...]] | None, how: str, said: str) -> AuditReport:
    """Report a class that took its process down, with the operations that led there."""
    if journal is None:
        last = said.splitlines()[-1] if said else ""
        raise NotAScheduler(
            f"scheduler {report.scheduler!r} cannot be imported and made: {how}" + (f": {last}" if last else "")
        )
    config, ops = journal
    message = f"{how} during the last of these operations"
    scenario = Scenario(f"no-crash: {report.scheduler}", invariants=("no-crash",), config=config, steps=ops)
    report.ended_early = True
    step = max(0, sum(isinstance(op, Schedule) for op in ops) - 1)
    report.findings.append(Finding("no-crash", message, step, "the watch over its process", scenario, ""))
    if said:
        report.notes.append(f"its last words: {said}")
    texts = [
        InvariantResult(id, "undecided", {}, 0, text, "policy") for id, text in STATEMENTS.items() if report.environment
    ]
    report.rows = texts + [
        InvariantResult(id, "violated" if id == "no-crash" else "undecided", {}, int(id == "no-crash"), entry.statement)
        for id, entry in CATALOGUE.items()
        if entry.scopes and id not in report.not_asked
    ]
    return report
