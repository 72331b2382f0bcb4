"""Runs an audit in a process of its own: code under audit may print, hang, exit or crash, and is told on."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

from onbeat_proofs.delayer.audit import DelayerJob, DelayerReport, audit
from onbeat_proofs.delayer.decision import Misstep
from onbeat_proofs.delayer.graph import Graph, Rows
from onbeat_proofs.delayer.results import VIOLATED, DelayerResult, rerun
from onbeat_proofs.foreign.targets import where_raised
from onbeat_spec.errors import NotADelayer, OnbeatError, Undecided

SECONDS = 600.0
"""The whole audit takes no longer."""


def audit_apart(job: DelayerJob, seconds: float = SECONDS) -> DelayerReport:
    """Run `audit` in a process of its own.

    If the process ends without an answer, it is run again, this time writing every pass down before it is taken.

    Raises:
        OnbeatError: whatever `audit` raises.
        Undecided: it took too long.
    """
    answer, code = _run(job, seconds, "")
    if answer is None:
        with tempfile.TemporaryDirectory() as folder:
            diary = Path(folder, "pass")
            answer, again = _run(job, seconds, str(diary))
            if answer is None:
                answer = _died(job, again, diary)
            else:
                raise Undecided(f"{job.target}: its process {_ended(code)} once, and not when it was run again")
    if isinstance(answer, DelayerReport):
        return answer
    raise answer


def _run(job: DelayerJob, seconds: float, diary: str) -> tuple[DelayerReport | OnbeatError | None, int]:
    """Return what a child answered, or None, and its exit code."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(job, theirs, diary), daemon=True)
    process.start()
    theirs.close()
    answer: DelayerReport | OnbeatError | None = None
    try:
        if not ours.poll(seconds):
            raise Undecided(f"{job.target}: no verdict within {seconds:g} s; allow more, or give fewer ranks")
        answer = ours.recv()
    except EOFError:
        pass
    finally:
        ours.close()
        if process.is_alive():
            process.join(1)
        if process.is_alive():
            process.kill()
        process.join()
    return answer, process.exitcode or 0


def _child(job: DelayerJob, answers: Connection, diary: str) -> None:
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the report is the parent's; what the code prints is not part of it

    def write(graph: Graph, state: int, rows: Rows) -> None:
        with contextlib.suppress(Misstep):
            run = rerun(graph.decision, graph.path(state), failed=rows)
            Path(diary).write_bytes(pickle.dumps((graph.decision.name, run)))

    answer: DelayerReport | OnbeatError
    try:
        answer = audit(job, write if diary else None)
    except OnbeatError as error:
        answer = type(error)(str(error))
    except Exception as error:  # not the delayer's doing: its own errors are findings
        answer = Undecided(f"this is an error of onbeat itself, please report it: {where_raised(error)}")
    answers.send(answer)
    answers.close()


def _died(job: DelayerJob, code: int, diary: Path) -> DelayerReport | OnbeatError:
    if not diary.is_file():
        return NotADelayer(f"{job.target}: its process {_ended(code)} before any pass; it must be importable and made")
    name, run = pickle.loads(diary.read_bytes())
    detail = f"the process {_ended(code)} in the last pass"
    return DelayerReport(
        job, name, "", [DelayerResult("no-crash", len(run.initial), VIOLATED, "exhaustive", detail, run)]
    )


def _ended(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
