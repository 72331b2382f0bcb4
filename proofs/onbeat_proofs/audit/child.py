"""The process in which `isolate` runs an audit: `python -m onbeat_proofs.audit.child`, and the numbers of two files."""

import gc
import os
import pickle
import sys
from io import TextIOBase

from onbeat_proofs.audit.adapters import AUTO, adapter_for
from onbeat_proofs.audit.isolate import AuditJob, send
from onbeat_proofs.audit.report import AuditReport
from onbeat_proofs.audit.run import audit
from onbeat_proofs.foreign.location import source_of
from onbeat_proofs.foreign.targets import load_scheduler
from onbeat_proofs.foreign.watchdog import GUARD, Guard, Journal
from onbeat_proofs.scenarios.files import dump
from onbeat_proofs.scenarios.operations import Scenario
from onbeat_reference.workload import arrivals
from onbeat_spec.errors import OnbeatError


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
        return " in the last step of:\n" + dump(Scenario("the class prints", config=config, steps=tuple(ops)))

    def note(self) -> str | None:
        """Say what was written, if anything was."""
        return f"prints to standard output ({self.writes} times), first {self.first}" if self.writes else None


def begun(cls: type, job: AuditJob) -> AuditReport:
    """What is known of a class before it runs."""
    adapter = adapter_for(cls)
    policy = adapter.policy(cls).name if job.policy == AUTO else job.policy
    report = AuditReport(job.scheduler, policy, job.budget, job.seed, own=job.own, not_asked=adapter.lacks())
    report.environment, report.signature, report.source = adapter.environment(), adapter.misfits(cls), source_of(cls)
    return report


def main() -> None:
    """Audit, send progress and the report."""
    with os.fdopen(int(sys.argv[1]), "wb") as results:
        job = pickle.load(sys.stdin.buffer)
        assert isinstance(job, AuditJob)
        guard = Guard(Journal(int(sys.argv[2])))
        GUARD.set(guard)
        sys.stdout = chatter = Chatter(guard)
        try:
            cls = load_scheduler(job.scheduler)
            send(results, "begun", begun(cls, job))
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
                progress=lambda what, done, total: send(results, "progress", (what, done, total)),
            )
        except OnbeatError as error:
            send(results, "error", error)
            return
        note = chatter.note()
        if note is not None:
            report.notes.append(note)
        send(results, "report", report)


if __name__ == "__main__":
    main()
