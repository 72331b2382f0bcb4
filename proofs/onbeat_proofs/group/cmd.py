"""`onbeat prove --group`."""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from onbeat_proofs.group import chart
from onbeat_proofs.group.prove import GroupProof, prove


def run(deep: bool, json_file: Path | None, scenarios: Path | None, html: Path | None) -> int:
    """Check the protocol, print what was found, and return the exit code."""
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("group", total=None)
        proof = prove(deep, lambda what, done, total: bar.update(task, description=what, completed=done, total=total))
    for table in (_theorems(proof), _explored(proof), _planted(proof)):
        console.print(table)
        console.print()
    for found in proof.explored:
        if found.path:
            console.print(chart.text(found), markup=False, highlight=False, soft_wrap=True)
            console.print()
    wrong = list(proof.wrong())
    for kind, message in wrong:
        console.print(f"{kind.upper()}  {message}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{len(proof.theorems)} theorems, {sum(found.states for found in proof.explored):,} states, "
        f"{sum(found.moves for found in proof.explored):,} moves, {len(proof.planted)} planted faults: "
        f"{len(wrong) or 'nothing'} wrong; {proof.seconds:.1f} s, {proof.mebibytes} MiB",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(proof), indent=1) + "\n", encoding="utf-8")
    return proof.exit_code


def as_json(proof: GroupProof) -> dict[str, Any]:
    """Return everything in plain values."""
    return {
        "seconds": round(proof.seconds, 3),
        "mebibytes": proof.mebibytes,
        "theorems": [
            {"id": v.id, "verdict": v.verdict, "strength": v.strength, "statement": v.statement, "message": v.message}
            for v in proof.theorems
        ],
        "scopes": [
            {
                "scope": str(found.scope),
                "states": found.states,
                "moves": found.moves,
                "depth": found.depth,
                "seconds": round(found.seconds, 3),
                "violates": found.invariant or None,
                "message": found.message,
            }
            for found in proof.explored
        ],
        "planted": [
            {
                "case": fault.case or None,
                "fault": fault.says,
                "scope": str(found.scope),
                "violates": found.invariant or None,
                "message": found.message,
                "states": found.states,
                "chart": chart.text(found),
            }
            for fault, found in proof.planted
        ],
        "wrong": [{"kind": kind, "message": message} for kind, message in proof.wrong()],
    }


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        right = column in ("states", "moves", "depth", "time")
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "fault")
    return table


def _mark(good: bool, text: str) -> str:
    return f"[green]{text}[/]" if good else f"[bold red]{text}[/]"


def _theorems(proof: GroupProof) -> Table:
    table = _table("theorem", "for", "verdict")
    for verdict in proof.theorems:
        strength = "all groups" if verdict.strength.endswith("sizes") else "3 ranks, all values"
        table.add_row(verdict.id, strength, _mark(verdict.verdict == "proved", verdict.verdict))
    return table


def _explored(proof: GroupProof) -> Table:
    table = _table("every state of", "states", "moves", "depth", "time", "violated")
    for found in proof.explored:
        row = (str(found.scope), f"{found.states:,}", f"{found.moves:,}", str(found.depth), f"{found.seconds:.1f} s")
        table.add_row(*row, _mark(not found.invariant, found.invariant or "nothing"))
    return table


def _planted(proof: GroupProof) -> Table:
    table = _table("planted", "fault", "moves", "violates")
    for fault, found in proof.planted:
        mark = _mark(found.invariant == fault.finds, found.invariant or "nothing")
        table.add_row(fault.case or "-", fault.says, str(len(found.path)), mark)
    return table
