"""The audit of a delayer in a process of its own: code under audit may print, hang, exit or crash, and is told on."""

from contextlib import suppress

from onbeat_proofs.delayer.audit import DelayerJob, DelayerReport, audit
from onbeat_proofs.delayer.decision import Misstep
from onbeat_proofs.delayer.graph import Graph, Rows
from onbeat_proofs.delayer.results import VIOLATED, DelayerResult, rerun
from onbeat_proofs.foreign.apart import Apart, Died, run_apart
from onbeat_proofs.foreign.targets import where_raised
from onbeat_spec.errors import NotADelayer, OnbeatError, Undecided

SECONDS = 600.0
"""CPU seconds that the whole audit takes at most."""


def audit_apart(job: DelayerJob, seconds: float = SECONDS) -> DelayerReport:
    """Run `audit` in a process of its own.

    If the process ends without an answer, it is run again, this time writing every pass down before it is taken.

    Raises:
        OnbeatError: whatever `audit` raises.
        Undecided: it took too long.
    """
    first = _run(job, seconds, noted=False)
    if isinstance(first, DelayerReport):
        return first
    again = _run(job, seconds, noted=True)
    if isinstance(again, DelayerReport):
        raise Undecided(f"{job.target}: its process {first.how} once, and not when it was run again")
    return _dead(job, again)


def _run(job: DelayerJob, seconds: float, *, noted: bool) -> DelayerReport | Died:
    answer = run_apart(_audit, (job, noted), seconds)
    if isinstance(answer, Died) and answer.late:
        raise Undecided(f"{job.target}: no verdict within {seconds:g} s of CPU time; allow more, or give fewer ranks")
    return answer


def _audit(task: tuple[DelayerJob, bool], apart: Apart) -> DelayerReport:
    """Audit in the process of its own; with True, write every pass down before it is taken."""
    job, noted = task

    def write(graph: Graph, state: int, rows: Rows) -> None:
        with suppress(Misstep):
            apart.journal.write((graph.decision.name, rerun(graph.decision, graph.path(state), failed=rows)))

    try:
        return audit(job, write if noted else None)
    except OnbeatError:
        raise
    except Exception as error:  # not the delayer's doing: its own errors are findings
        raise Undecided(f"this is an error of onbeat itself, please report it: {where_raised(error)}") from error


def _dead(job: DelayerJob, died: Died) -> DelayerReport:
    if died.journal is None:
        raise NotADelayer(f"{job.target}: its process {died.how} before any pass; it must be importable and made")
    name, run = died.journal
    detail = f"the process {died.how} in the last pass"
    return DelayerReport(
        job, name, "", [DelayerResult("no-crash", len(run.initial), VIOLATED, "exhaustive", detail, run)]
    )
