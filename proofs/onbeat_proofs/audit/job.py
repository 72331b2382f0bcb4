"""The audit in a process of its own: whatever the audited class does to that process, a report comes of it."""

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import TextIOBase
from time import monotonic
from typing import Any

from onbeat_proofs.audit.adapters import AUTO, adapter_for
from onbeat_proofs.audit.results import AuditReport, Budget, Finding, InvariantResult
from onbeat_proofs.audit.run import audit
from onbeat_proofs.foreign.apart import Apart, Died, run_apart
from onbeat_proofs.foreign.location import source_of
from onbeat_proofs.foreign.targets import load_scheduler
from onbeat_proofs.foreign.watchdog import GUARD, Guard
from onbeat_proofs.play.keeps_text import RULES
from onbeat_proofs.scenarios.files import dump
from onbeat_proofs.scenarios.operations import Scenario, Schedule
from onbeat_reference.workload import arrivals
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.errors import NotAScheduler

LIMIT_S: dict[Budget, float] = {"quick": 180.0, "standard": 600.0, "deep": 3 * 3600.0}
"""Wall seconds after which an audit is stopped, far more than it takes: who sleeps, or hangs in C, gets there."""
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
    began, report = monotonic(), AuditReport(job.scheduler, job.policy, job.budget, job.seed)

    def receive(news: Any) -> None:
        nonlocal report
        if isinstance(news, AuditReport):
            report = news
        else:
            progress(*news)

    answer = run_apart(_audit, job, LIMIT_S[job.budget] if limit_s is None else limit_s, receive)
    if isinstance(answer, AuditReport):
        return answer
    report.seconds = monotonic() - began
    return _dead(report, answer)


def _dead(report: AuditReport, died: Died) -> AuditReport:
    """Report a class that took its process down, with the operations that led there."""
    how = f"{'the audit' if died.late else 'the process'} {died.how}"
    if died.journal is None:
        last = died.words.splitlines()[-1] if died.words else ""
        raise NotAScheduler(
            f"scheduler {report.scheduler!r} cannot be imported and made: {how}" + (f": {last}" if last else "")
        )
    config, ops = died.journal
    message = f"{how} during the last of these operations"
    scenario = Scenario(f"no-crash: {report.scheduler}", invariants=("no-crash",), config=config, steps=ops)
    report.ended_early = True
    step = max(0, sum(isinstance(op, Schedule) for op in ops) - 1)
    report.findings.append(Finding("no-crash", message, step, "the watch over its process", scenario, ""))
    if died.words:
        report.notes.append(f"its last words: {died.words}")
    texts = [
        InvariantResult(id, "undecided", {}, 0, text, "policy") for id, (text, _) in RULES.items() if report.environment
    ]
    report.rows = texts + [
        InvariantResult(id, "violated" if id == "no-crash" else "undecided", {}, int(id == "no-crash"), entry.statement)
        for id, entry in CATALOGUE.items()
        if entry.scopes and id not in report.not_asked
    ]
    return report


# --- In the process of its own ---------------------------------------------------------------------------------------


class Chatter(TextIOBase):
    """Standard output of a class that should not write to it."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard
        self.writes = 0
        self.first = ""

    def write(self, text: str) -> int:
        """Count it; remember the first, and what was going on."""
        if text.strip():
            if not self.writes:
                self.first = f"{text.strip()!r}{self._when()}"
            self.writes += 1
        return len(text)

    def _when(self) -> str:
        if self._guard.latest is None:
            return " while it was imported or made"
        config, ops = self._guard.latest
        return " in the last step of:\n" + dump(Scenario("the class prints", config=config, steps=ops))

    def note(self) -> str | None:
        """Say what was written, if anything was."""
        return f"prints to standard output ({self.writes} times), first {self.first}" if self.writes else None


def _begun(cls: type, job: AuditJob) -> AuditReport:
    """What is known of a class before it runs."""
    adapter = adapter_for(cls)
    policy = adapter.policy(cls).name if job.policy == AUTO else job.policy
    report = AuditReport(job.scheduler, policy, job.budget, job.seed, own=job.own, not_asked=adapter.lacks())
    report.environment, report.signature, report.source = adapter.environment(), adapter.misfits(cls), source_of(cls)
    return report


def _audit(job: AuditJob, apart: Apart) -> AuditReport:
    """Audit, and tell what is known beforehand, then how far it is."""
    guard = Guard(apart.journal)
    GUARD.set(guard)
    sys.stdout = chatter = Chatter(guard)
    cls = load_scheduler(job.scheduler)
    apart.tell(_begun(cls, job))
    loads = None if job.workload is None else arrivals(job.workload, job.seed)
    # What is imported by now stays: no collection needs to look at it again.
    gc.collect()
    gc.freeze()
    report = audit(
        cls,
        job.policy,
        job.budget,
        job.seed,
        name=job.scheduler,
        arrivals=loads,
        interval=job.interval,
        own=job.own,
        stop_at_first=job.stop_at,
        progress=lambda what, done, total: apart.tell((what, done, total)),
    )
    note = chatter.note()
    if note is not None:
        report.notes.append(note)
    return report
