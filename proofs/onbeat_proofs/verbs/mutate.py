"""`onbeat mutate`: change one statement at a time, and report which check notices."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from onbeat_proofs.mutants import notice, protocol
from onbeat_proofs.verbs.progress import progress
from onbeat_proofs.verbs.tables import plain_table, wide_console

Mutants = list[dict[str, Any]]
"""What became of every mutant, in plain values."""


@click.command()
@click.argument("text", type=click.Choice(["policy", "protocol", "all"]), default="policy")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results here.")
@click.option(
    "--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes for mutants of the policy."
)
@click.pass_context
def command(ctx: click.Context, text: str, json_file: Path | None, workers: int) -> int:
    """Change one statement of the checked code at a time, and report which check notices.

    TEXT names the code that is changed: policy (the default), which is the policy, the reference scheduler's step and
    the balancing of requests; protocol, the data-parallel protocol; or all, which is both. Takes some minutes.
    Exit code 0: every mutant was noticed, or is known to be equivalent. 1: one survived.
    2: something could not be decided or run.
    """
    if text == "protocol" and ctx.get_parameter_source("workers") is not ParameterSource.DEFAULT:
        raise click.UsageError("--workers has no effect on mutants of the protocol; leave it out")
    survived, written = 0, {}
    if text != "protocol":
        survived, written["policy"] = _policy(workers)
    if text != "policy":
        more, written["protocol"] = _protocol()
        survived += more
    if json_file is not None:
        values = written if text == "all" else {"mutants": written[text]}
        json_file.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    return 1 if survived else 0


def _policy(workers: int) -> tuple[int, Mutants]:
    """Run the mutants of the policy and the step; return how many survived, and all."""
    console = Console()
    with progress("mutants") as show:
        results = notice.run(progress=show, workers=workers)
    table = Table(box=None, pad_edge=False)
    for column in ("mutant", "change", "verdict", "by"):
        table.add_column(column, overflow="fold")
    for result in results:
        colour = "bold red" if result.verdict == "survived" else "green"
        change = f"{result.before} -> {result.after}".replace("[", "\\[")
        table.add_row(
            f"{Path(result.file).name}:{result.line} {result.function}",
            change,
            f"[{colour}]{result.verdict}[/]",
            result.killed_by,
        )
    console.print(table)
    verdicts = Counter(result.verdict for result in results)
    killers = Counter(result.killed_by.split(":")[0] for result in results if result.verdict == "killed")
    console.print()
    console.print(
        f"{len(results)} mutants: " + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()),
        markup=False,
        highlight=False,
    )
    console.print(
        "killed by " + ", ".join(f"{check} {count}" for check, count in killers.most_common()), highlight=False
    )
    return verdicts["survived"], [asdict(result) for result in results]


def _protocol() -> tuple[int, Mutants]:
    """Run the mutants of the protocol; return how many survived, and all."""
    console = wide_console()
    with progress("mutants") as show:
        results = protocol.run(show)
    table = plain_table("mutant", "change", "noticed by")
    for result in results:
        known = result.mutant.id in protocol.EQUIVALENT
        by = result.by or ("nothing: equivalent" if known else "NOTHING")
        change = f"{result.mutant.before} -> {result.mutant.after or 'nothing'}".replace("[", "\\[")
        table.add_row(f"{result.mutant.function}:{result.mutant.line}", change, by)
    console.print(table)
    counts = Counter(result.by or "nothing" for result in results)
    survived = sum(not result.by and result.mutant.id not in protocol.EQUIVALENT for result in results)
    noticed = ", ".join(f"{by} {count}" for by, count in counts.most_common())
    console.print(f"\n{len(results)} mutants, {survived} survived; noticed by: {noticed}", highlight=False)
    return survived, [{"id": result.mutant.id, "by": result.by, "message": result.message} for result in results]
