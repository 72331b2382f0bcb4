"""`onbeat prove --mutants`."""

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from onbeat_proofs.mutants import notice


def run(json_file: Path | None, workers: int) -> int:
    """Run every mutant, print which check killed which, and return 0 if none survived, else 1."""
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("mutants", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

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
    if json_file is not None:
        json_file.write_text(json.dumps({"mutants": [asdict(r) for r in results]}, indent=1) + "\n", encoding="utf-8")
    return 1 if verdicts["survived"] else 0
