"""`onbeat demo`: the main job on real input, in one table."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from onbeat_proofs.audit.results import AuditReport
from onbeat_proofs.audit.run import audit
from onbeat_proofs.foreign.targets import load_scheduler
from onbeat_proofs.prove.claims import proved_for
from onbeat_proofs.prove.decide import Proof, prove
from onbeat_reference.workload import arrivals
from onbeat_spec.catalogue import CATALOGUE, Invariant
from onbeat_spec.policy import POLICIES

REFERENCE = "onbeat_reference:Scheduler"


@click.command()
@click.option(
    "--workload",
    metavar="FILE|builtin",
    default="builtin",
    show_default=True,
    help="Arrivals: a trace (Azure CSV, Mooncake JSONL), or the built-in generator.",
)
@click.option("--interval", type=click.IntRange(min=1), default=2, show_default=True, help="Prefill step cadence.")
def command(workload: str, interval: int) -> int:
    """Prove the policies, run the suite, and audit the reference scheduler with arrivals.

    Exit code 0: everything holds. 1: something does not. 2: something could not be decided or run.
    """
    trace = arrivals(workload)  # refuse a bad one before any work
    scheduler = load_scheduler(REFERENCE)
    with _progress() as show:
        proof = prove(tuple(POLICIES), progress=lambda what, done, total: show(f"proving {what}", done, total))
        report = audit(scheduler, name=REFERENCE, arrivals=trace, interval=interval, progress=show)
    console = Console()
    console.print(_table(proof, report))
    console.print()
    for line in _summary(proof, report):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return max(proof.exit_code, report.exit_code, key=lambda code: (code == 1, code))


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("demo", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield show


def _table(proof: Proof, report: AuditReport) -> Table:
    """A row for each invariant: how it is proved, and how often each test met its premises."""
    table = Table(box=None, pad_edge=False)
    table.add_column("invariant", no_wrap=True)
    table.add_column("proved for", no_wrap=True)
    for check in ("suite", "search", "random"):
        table.add_column(check, justify="right")
    table.add_column("trace", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    rows = {row.invariant: row for row in report.rows}
    for entry in CATALOGUE.values():
        proofs = [v for v in proof.verdicts if v.policy == "onbeat" and v.id.split("/")[0] == entry.id]
        row = rows[entry.id]
        holds = row.verdict == "holds" and all(verdict.as_expected for verdict in proofs)
        counts = [f"{row.counts.get(check, 0):,}" for check in ("suite", "search", "random")]
        verdict = (
            "[green]holds[/]" if holds else f"[bold red]{row.verdict if row.verdict != 'holds' else 'unproved'}[/]"
        )
        table.add_row(entry.id, proved_for(proofs), *counts, _trace(entry, report), verdict)
    return table


def _trace(entry: Invariant, report: AuditReport) -> str:
    if report.workload is None or set(entry.scopes) == {"runs"}:
        return "-"
    count = sum(violation.invariant == entry.id for violation in report.workload.violations)
    return f"{count} violations" if count else "clean"


def _summary(proof: Proof, report: AuditReport) -> Iterator[str]:
    expected = [v for v in proof.verdicts if v.as_expected and v.verdict == "refuted"]
    yield (
        f"proofs: {len(proof.verdicts)} verdicts on {len(POLICIES)} policies, "
        f"{sum(v.as_expected for v in proof.verdicts)} as expected, {len(expected)} of them the expected refutations "
        f"of pr44558 and local-work ({proof.seconds:.1f} s)"
    )
    if report.suite is not None:
        yield f"suite: {report.suite.scenarios} scenarios, {len(report.suite.failures)} failed"
    if report.workload is not None:
        run = report.workload
        yield (
            f"trace: {run.requests:,} requests, {run.finished:,} finished, {run.refused:,} refused, {run.lost:,} lost, "
            f"{run.steps:,} steps, {run.held_steps:,} of them held, {len(run.violations):,} violations, "
            f"{run.blocks_missing:,} blocks missing at the end ({run.wall_s:.1f} s)"
        )
