"""The audit in a process of its own: whatever the audited class does to that process, a report comes of it."""

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import TextIOBase
from time import monotonic
from typing import Any, NamedTuple

from onbeat_proofs.audit.adapters import AUTO, adapter_for
from onbeat_proofs.audit.findings import Key, named
from onbeat_proofs.audit.results import AuditReport, Budget, Finding, InvariantResult, Question
from onbeat_proofs.audit.run import audit
from onbeat_proofs.foreign.apart import Apart, Died, run_apart
from onbeat_proofs.foreign.location import source_of
from onbeat_proofs.foreign.targets import is_ours, load_scheduler, where_raised
from onbeat_proofs.foreign.watchdog import CALL_S, GUARD, PATIENCE, Guard
from onbeat_proofs.play.keeps_text import RULES
from onbeat_proofs.scenarios.files import dump
from onbeat_proofs.scenarios.operations import Scenario, Schedule
from onbeat_reference.workload import arrivals
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.errors import NotAScheduler, OnbeatError, Undecided
from onbeat_spec.records import Violation

LIMIT_S: dict[Budget, float] = {"quick": 400.0, "standard": 1500.0, "deep": 4 * 3600.0}
"""CPU seconds after which an audit is stopped, far more than it takes: who hangs in C gets there."""
SILENT_S: dict[Budget, float] = {"quick": 180.0, "standard": 600.0, "deep": 3600.0}
"""Wall seconds without a word of progress after which an audit is stopped: who sleeps in C gets there."""
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
    allow_vacuous: tuple[str, ...] = ()


def audit_apart(
    job: AuditJob,
    progress: Progress = lambda what, done, total: None,
    limit_s: float | None = None,
    silent_s: float | None = None,
) -> AuditReport:
    """Audit a class in a process of its own.

    An audit whose time is up leaves what was found until then; all else is undecided. That is no fault of the class,
    unless one of its calls had not returned for so long that it hangs.

    Args:
        job: what to audit.
        progress: told how far the audit is.
        limit_s: CPU seconds; by default those of the budget.
        silent_s: wall seconds without progress; by default those of the budget.

    Raises:
        OnbeatError: whatever the audit raises: there is no such class, it cannot be driven, vLLM is missing.
        Undecided: an error of ours.
    """
    began, report = monotonic(), AuditReport(job.scheduler, job.policy, job.budget, job.seed)
    found: dict[Key, Finding] = {}

    def receive(news: Any) -> None:
        nonlocal report
        if isinstance(news, AuditReport):
            report = news
        elif isinstance(news, _Found):
            found[news.key] = news.finding
        else:
            progress(*news)

    limit_s = LIMIT_S[job.budget] if limit_s is None else limit_s
    silent_s = SILENT_S[job.budget] if silent_s is None else silent_s
    answer = run_apart(_audit, job, limit_s, receive, silent_s=silent_s)
    if isinstance(answer, AuditReport):
        return answer
    report.seconds = monotonic() - began
    report.findings = list(found.values())
    return _dead(report, answer)


class _Found(NamedTuple):
    """News of a violation that was come upon."""

    key: Key
    finding: Finding


def _dead(report: AuditReport, died: Died) -> AuditReport:
    """Report an audit that ended without an answer, with the operations that led there."""
    how = f"{'the audit' if died.late else 'the process'} {died.how}"
    if died.journal is None:
        last = died.words.splitlines()[-1] if died.words else ""
        raise NotAScheduler(
            f"scheduler {report.scheduler!r} cannot be imported and made: {how}" + (f": {last}" if last else "")
        )
    report.ended_early = True
    hangs = died.under_way_s >= CALL_S * PATIENCE
    if not died.late or hangs:
        config, ops = died.journal
        message = f"a call did not return within {died.under_way_s:.0f} s: " if died.late else ""
        message += f"{how} during the last of these operations"
        scenario = Scenario(f"no-crash: {report.scheduler}", invariants=("no-crash",), config=config, steps=ops)
        step = max(0, sum(isinstance(op, Schedule) for op in ops) - 1)
        finding = Finding("no-crash", message, step, "the watch over its process", scenario, replayed="not tried")
        report.findings.append(finding)
    else:
        report.notes.append(f"{how}: what was not found by then is undecided; give it a smaller budget, or more CPU")
    if died.words:
        report.notes.append(f"its last words: {died.words}")
    found = {finding.invariant for finding in report.findings}
    texts: list[tuple[str, str, Question]] = [
        (id, text, "policy") for id, (text, _) in RULES.items() if report.environment
    ]
    invariants: list[tuple[str, str, Question]] = [
        (id, entry.statement, "quality")
        for id, entry in CATALOGUE.items()
        if entry.scopes and id not in report.not_asked
    ]
    report.rows = [
        InvariantResult(id, "violated" if id in found else "undecided", {}, int(id in found), text, question)
        for id, text, question in (*texts, *invariants)
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

    def found(key: Key, violation: Violation, scenario: Scenario, check: str) -> None:
        run = named(key[0], job.scheduler, scenario)
        shown = Finding(key[0], violation.message, violation.step, check, run, replayed="not tried")
        apart.tell(_Found(key, shown))

    try:
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
            allow_vacuous=job.allow_vacuous,
            progress=lambda what, done, total: apart.tell((what, done, total)),
            found=found,
        )
    except OnbeatError:
        raise
    except Exception as error:
        raised = where_raised(error)
        if is_ours(error):
            raise Undecided(f"this is an error of onbeat itself, please report it: {raised}") from error
        raise NotAScheduler(f"scheduler {job.scheduler!r} cannot be audited: it raises {raised}") from error
    note = chatter.note()
    if note is not None:
        report.notes.append(note)
    return report
