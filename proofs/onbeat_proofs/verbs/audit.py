"""The verb `onbeat audit`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onbeat_proofs.audit.reports import outputs
from onbeat_proofs.verbs.vacuous import allow_vacuous

if TYPE_CHECKING:
    from onbeat_proofs.audit.results import AuditReport, Finding, InvariantResult
    from onbeat_proofs.audit.run import Progress
    from onbeat_proofs.audit.search import Explored

MOST = 5
"""Violations shown of a workload."""


@click.command()
@click.argument("scheduler", metavar="MODULE:CLASS")
@click.option(
    "--policy",
    default="auto",
    metavar="POLICY",
    show_default=True,
    help="Policy that the class is given or should keep: a name, FILE.py:CLASS, or auto, its family's own.",
)
@click.option(
    "--budget",
    type=click.Choice(["quick", "standard", "deep"]),
    default="standard",
    show_default=True,
    help="Extent of the search, in CPU time: half a minute to two minutes, three to ten minutes, or more than that.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the random histories.")
@outputs.options
@click.option(
    "--workload",
    metavar="FILE|builtin",
    help="Also drive the class with arrivals: a trace (Azure CSV, Mooncake JSONL), or the built-in generator.",
)
@click.option(
    "--interval",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Prefill step cadence of the workload.",
)
@click.option(
    "--findings",
    metavar="FOLDER",
    help="Write each finding into FOLDER: a scenario, and a pytest file that needs only the family's own package.",
)
@click.option("--own", is_flag=True, help="Set apart violations that the base class has in the same scenario.")
@allow_vacuous
@click.option(
    "--in-process", is_flag=True, help="Run the class in this process, for a debugger; a crash ends the audit."
)
def command(
    scheduler: str,
    *,
    policy: str,
    budget: Any,
    seed: int,
    workload: str | None,
    interval: int,
    findings: str | None,
    own: bool,
    allow_vacuous: tuple[str, ...],
    in_process: bool,
    **files: str | None,
) -> int:
    """Search a scheduler class for a run that violates an invariant.

    The class has the interface of onbeat_reference:Scheduler, or derives from vLLM's SchedulerInterface; MODULE may
    also be a file.py. It runs in a process of its own. Every violation is printed as a scenario for `onbeat replay`,
    made small.

    Exits with 0 if every invariant holds, 1 if one is violated, 2 if one was never put to the test or not decided.
    """
    from onbeat_proofs.audit.job import AuditJob, audit_apart
    from onbeat_proofs.audit.reports.folder import require_folder, write_findings
    from onbeat_proofs.audit.run import audit
    from onbeat_proofs.foreign.targets import load_scheduler
    from onbeat_reference.workload import arrivals

    written = outputs.ReportFiles({name.removesuffix("_file"): file for name, file in files.items()})
    if findings is not None:
        require_folder(Path(findings))
    with _progress() as progress:
        if in_process:
            loads = None if workload is None else arrivals(workload, seed)
            report = audit(
                load_scheduler(scheduler),
                policy,
                budget,
                seed,
                name=scheduler,
                arrivals=loads,
                interval=interval,
                own=own,
                allow_vacuous=allow_vacuous,
                progress=progress,
            )
        else:
            job = AuditJob(scheduler, policy, budget, seed, workload, interval, own, allow_vacuous=allow_vacuous)
            report = audit_apart(job, progress)
    click.echo("\n".join(lines(report)))
    written.write(report)
    if findings is not None:
        write_findings(Path(findings), report)
    return report.exit_code


@contextmanager
def _progress() -> "Iterator[Progress]":
    """Show how far the audit is, on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as shown:
        task = shown.add_task("audit", total=None)
        yield lambda what, done, total: shown.update(task, description=what, completed=done, total=total or None)


# --- As text ---------------------------------------------------------------------------------------------------------


def lines(report: "AuditReport") -> Iterator[str]:
    """Yield the lines of a report."""
    yield f"{report.scheduler}, policy {report.policy}, budget {report.budget}, seed {report.seed}"
    yield ""
    yield from _checks(report)
    yield ""
    if report.environment:
        yield from (f"{name} {version}" for name, version in report.environment.items())
        yield ""
    width = max((len(row.invariant) for row in report.rows), default=0)
    text = [row for row in report.rows if row.question == "policy"]
    for question, rows in (
        (f"Does it keep the policy text that it should have ({report.policy})?", text),
        ("Which invariants does it violate?", [row for row in report.rows if row.question == "quality"]),
    ):
        if text:
            yield question
        yield from (f"{row.verdict:<9}  {row.invariant:<{width}}  {_counts(row)}" for row in rows)
        if text and rows is text:
            yield ""
    for id, why in report.not_asked.items():
        yield f"not asked  {id:<{width}}  {why}"
    for note in report.notes:
        yield from f"\nNOTE  {note}".splitlines()
    for misfit in report.signature:
        yield f"\n{'WARNING' if misfit.warning else 'SIGNATURE'}  {misfit}"
    if report.suite is not None:
        for scenario, failure in report.suite.failures:
            yield f"\nSUITE  {scenario.name}: {failure}"
    yield from _workload(report)
    for finding in report.findings:
        yield from _finding(finding)
    for finding in report.not_reproduced:
        yield ""
        yield f"NOT REPRODUCED  {finding.invariant} at step {finding.step}, found by {finding.check}: {finding.message}"
        yield f"          {len(finding.scenario.steps)} operations, which did not show it when they were replayed"
    yield ""
    yield _summary(report)


def _checks(report: "AuditReport") -> Iterator[str]:
    warnings = sum(misfit.warning for misfit in report.signature)
    misfits = len(report.signature) - warnings
    verdict = _number(misfits, "misfit") if misfits else "takes every call"
    yield f"signature  {verdict}{', ' + _number(warnings, 'warning') if warnings else ''}"
    if report.search:
        explored = report.search
        seconds = sum(scope.seconds for scope in explored)
        yield (
            f"search     {len(explored)} scopes, {sum(scope.states for scope in explored):,} states, "
            f"{_steps(sum(scope.steps for scope in explored), seconds)}"
        )
        yield from (f"             {scope.scope:<9} {_extent(scope)}, {scope.states:,} states" for scope in explored)
    if report.random is not None:
        done = report.random
        yield (
            f"random     {done.histories:,} histories, {done.operations:,} operations, "
            f"{_steps(done.steps, done.seconds)}"
        )
    if report.suite is not None:
        suite = report.suite
        failed = f", {len(suite.failures)} failed" if suite.failures else ""
        yield f"suite      {suite.scenarios} scenarios{failed}, {_steps(suite.steps, suite.seconds)}"
    if report.workload is not None:
        run = report.workload
        yield (
            f"workload   {run.requests:,} requests: {run.finished:,} finished, {run.refused:,} refused, "
            f"{run.lost:,} lost; {run.steps:,} steps, {len(run.violations):,} violations, {run.wall_s:.1f} s"
        )


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _extent(scope: "Explored") -> str:
    if scope.closed:
        return f"all sequences of any length: no new state after {scope.depth} operations"
    cut = "" if scope.complete else ", cut off there"
    number = f"{scope.sequences:,}" if scope.sequences < 10**12 else f"some 10^{len(str(scope.sequences)) - 1}"
    return f"all {number} sequences of {scope.depth} operations{cut}"


def _steps(steps: int, seconds: float) -> str:
    rate = f" ({steps / seconds:,.0f}/s)" if seconds > 0 else ""
    return f"{steps:,} steps in {seconds:.1f} s{rate}"


def _counts(row: "InvariantResult") -> str:
    from onbeat_proofs.play.tally import never_seen

    if row.reason:
        return row.reason
    if not any(row.counts.values()):
        return never_seen(row.invariant) if row.verdict == "vacuous" else ""
    counts = "  ".join(f"{check} {count:>7,}" for check, count in row.counts.items())
    return f"{counts}  {row.violations:,} violations" if row.violations else counts


def _workload(report: "AuditReport") -> Iterator[str]:
    """Yield what went wrong in the workload."""
    if report.workload_error is not None:
        yield f"\nWORKLOAD  no-crash: {report.workload_error}"
    if report.workload is None or report.workload.clean:
        return
    run = report.workload
    if run.lost or run.blocks_missing or run.blocks_promised:
        given_up = ", given up: nothing came of its work any more" if run.stalled else ""
        yield (
            f"\nWORKLOAD  {run.lost:,} requests lost, {run.blocks_missing:,} blocks missing and "
            f"{run.blocks_promised:,} still promised at the end{given_up}"
        )
    for violation in run.violations[:MOST]:
        yield f"\nWORKLOAD  step {violation.step}: violates {violation.invariant}: {violation.message}"


def _finding(finding: "Finding") -> Iterator[str]:
    yield ""
    yield f"VIOLATED  {finding.invariant} at step {finding.step}, found by {finding.check}: {finding.message}"
    if finding.replayed == "not tried":
        yield "          as it was found: it was not made small"
    if finding.also:
        yield f"          the same run violates {', '.join(finding.also)}"
    yield ""
    yield from finding.yaml.splitlines()
    if finding.table:
        yield ""
        yield from (f"    {line}" for line in finding.table.splitlines())


def _summary(report: "AuditReport") -> str:
    verdicts = [row.verdict for row in report.rows]
    parts = [
        f"{verdicts.count(v)} {v}" for v in ("holds", "violated", "inherited", "vacuous", "undecided") if v in verdicts
    ]
    failed = len(report.suite.failures) if report.suite is not None else 0
    if failed:
        parts.append(f"{failed} scenario{'s' if failed > 1 else ''} of the suite failed")
    return f"{len(verdicts)} invariants: {', '.join(parts)} ({report.seconds:.1f} s)".replace(" holds", " hold")
