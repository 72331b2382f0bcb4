"""The verb `onbeat check-trace`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onbeat_proofs.verbs.vacuous import allow_vacuous

if TYPE_CHECKING:
    from onbeat_proofs.traces.check import Progress, TraceFinding, TraceReport


@click.command("check-trace")
@click.argument("files", nargs=-1, required=True, metavar="FILE|FOLDER...")
@click.option("--context", default=0, metavar="N", type=click.IntRange(min=0), help="Show N steps around a violation.")
@allow_vacuous
@click.option("--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False), help="Write the results to FILE.")
def command(files: tuple[str, ...], *, context: int, allow_vacuous: tuple[str, ...], json_file: str | None) -> int:
    """Check recorded steps against the invariants, by rank and across a group.

    A trace consists of the files that a recorder wrote in one run, of one rank or of several. An invariant whose
    premise the trace never met is vacuous. What no trace can show, or none of a rank on its own, is not asked.

    Exits with 0 if everything holds, 1 if something is violated, 2 if a file cannot be read, no step is in them, or an
    invariant is vacuous that is not allowed to be.
    """
    from onbeat_proofs.traces.check import check_trace
    from onbeat_spec.trace_read import trace_paths

    with _progress() as progress:
        report = check_trace(trace_paths(files), context=context, allow_vacuous=allow_vacuous, progress=progress)
    click.echo("\n".join(lines(report)))
    if json_file is not None:
        Path(json_file).write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")
    return report.exit_code


@contextmanager
def _progress() -> "Iterator[Progress | None]":
    """Show how far the check is, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("reading", total=None)
        yield lambda done, total, steps: shown.update(task, description=f"{steps:,} steps", completed=done, total=total)


def lines(report: "TraceReport") -> Iterator[str]:
    """Yield the lines of a report."""
    ranks = ", ".join(map(str, report.ranks))
    rate = f" ({report.steps / report.seconds:,.0f}/s)" if report.seconds > 0 else ""
    yield (
        f"{report.files} file{'s' * (report.files != 1)}, rank{'s' * (len(report.ranks) != 1)} {ranks}: "
        f"{report.steps:,} steps{rate}, {report.lock_steps:,} lock steps compared, {report.bytes:,} bytes"
    )
    yield from (f"note       {note}" for note in report.notes)
    yield ""
    width = max((len(row.invariant) for row in report.rows), default=0)
    for row in report.rows:
        detail = row.why if row.verdict in ("vacuous", "not asked") else f"{row.met:>9,} times put to the test"
        if row.violations:
            detail = f"{row.met:>9,} times put to the test  {row.violations:,} violations"
        yield f"{row.verdict:<9}  {row.invariant:<{width}}  {detail}"
    for finding in report.findings:
        yield from _finding(finding)
    yield ""
    yield _summary(report)


def _finding(finding: "TraceFinding") -> Iterator[str]:
    from onbeat_proofs.play.table import step_text

    at = finding.at
    yield ""
    yield f"VIOLATED  {at.path}:{at.line}: rank {at.rank}, step {at.step}: {finding.invariant}: {finding.message}"
    if finding.ids:
        yield f"          requests: {', '.join(finding.ids)}"
    if finding.history:
        yield ""
        yield from (f"    {line}" for line in step_text(finding.history).splitlines())


def _summary(report: "TraceReport") -> str:
    if not report.steps:
        return "nothing was checked: there is no step in the trace"
    verdicts = [row.verdict for row in report.rows]
    parts = [f"{verdicts.count(v)} {v}" for v in ("holds", "violated", "vacuous", "not asked") if v in verdicts]
    shown = sum(row.violations for row in report.rows)
    more = f"; {len(report.findings):,} of {shown:,} violations shown" if shown > len(report.findings) else ""
    return f"{len(verdicts)} invariants: {', '.join(parts)} ({report.seconds:.1f} s){more}".replace(" holds", " hold")
