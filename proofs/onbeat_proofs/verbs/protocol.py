"""`onbeat prove --group`."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from onbeat_proofs.mutants import protocol
from onbeat_proofs.protocol import chart
from onbeat_proofs.protocol.decide import GroupProof, prove
from onbeat_proofs.protocol.drawing import page
from onbeat_proofs.protocol.explore import GroupExplored
from onbeat_proofs.protocol.replay import GroupReplay, replay
from onbeat_proofs.protocol.scenario import load, to_text
from onbeat_proofs.prove.theorem import FOR_ALL, Verdict

WIDTH = 130
"""Columns that the tables need, where no terminal says how many there are."""


def run(deep: bool, json_file: Path | None, scenarios: Path | None, html: Path | None) -> int:
    """Check the protocol, print what was found, and return the exit code.

    Args:
        deep: groups of three too.
        json_file: gets all of it.
        scenarios: a folder that gets the run of every planted fault, and of every violation, as a scenario file.
        html: gets the same runs, drawn.
    """
    console = _console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("group", total=None)
        proof = prove(deep, lambda what, done, total: bar.update(task, description=what, completed=done, total=total))
    for table in (_theorems(proof), _explored(proof), _planted(proof)):
        console.print(table)
        console.print()
    for found in proof.explored:
        if found.path:
            for shown in (chart.text(found), to_text(found, str(found.scope))):
                console.print(shown, markup=False, highlight=False, soft_wrap=True)
                console.print()
    wrong = list(proof.wrong())
    for kind, message in wrong:
        console.print(f"{kind.upper()}  {message}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{len(proof.theorems)} theorems, {sum(found.states for found in proof.explored):,} states, "
        f"{sum(found.moves for found in proof.explored):,} moves, "
        f"{len(proof.planted) + len(proof.unbalanced)} planted faults: "
        f"{len(wrong) or 'nothing'} wrong; {proof.seconds:.1f} s" + (f", {proof.mebibytes:,} MiB" if deep else ""),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(proof), indent=1) + "\n", encoding="utf-8")
    if scenarios is not None:
        scenarios.mkdir(parents=True, exist_ok=True)
        for name, says, found in _runs(proof):
            (scenarios / f"{name}.group.yaml").write_text(to_text(found, says), encoding="utf-8")
    if html is not None:
        html.write_text(page(_runs(proof)), encoding="utf-8")
    return proof.exit_code


def _runs(proof: GroupProof) -> list[tuple[str, str, GroupExplored]]:
    """Return every run that was found: a name for its file, what it shows, the run."""
    found = [(fault.case or "uncompared", fault.says, each) for fault, each in proof.planted if each.path]
    wrong = [each for each in proof.explored if each.path]
    return [*((f"violation-{number}", str(each.scope), each) for number, each in enumerate(wrong)), *found]


def replay_files(files: tuple[str, ...], json_file: Path | None) -> int:
    """Replay group scenarios, say which do not go as they say, and return the exit code."""
    console = _console()
    outcomes = [replay(scenario) for file in files for scenario in load(Path(file))]
    for outcome in outcomes:
        for line in _said(outcome):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    wrong = sum(not outcome.right for outcome in outcomes)
    console.print(f"{len(outcomes)} group scenarios, {len(outcomes) - wrong} as they say", highlight=False)
    if json_file is not None:
        values = [
            {"name": each.scenario.name, "right": each.right, "violations": each.violations, "failures": each.failures}
            for each in outcomes
        ]
        json_file.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


def _said(outcome: GroupReplay) -> list[str]:
    name = outcome.scenario.name
    lines = [f"{name}: step {step}: violates {invariant}: {message}" for step, invariant, message in outcome.violations]
    lines += [f"{name}: step {step}: {message}" for step, message in outcome.failures]
    missed = set(outcome.scenario.violates) - {invariant for _, invariant, _ in outcome.violations}
    lines += [f"{name}: does not violate {invariant}" for invariant in sorted(missed)]
    return [] if outcome.right else lines


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
        ]
        + [
            {
                "case": fault.case,
                "fault": fault.says,
                "violates": verdict.id if verdict.verdict == "refuted" else None,
                "message": verdict.message,
                "numbers": verdict.model,
            }
            for fault, verdict in proof.unbalanced
        ],
        "wrong": [{"kind": kind, "message": message} for kind, message in proof.wrong()],
    }


def _console() -> Console:
    """Return a console that is as wide as the tables where no terminal says otherwise: logs are not wrapped."""
    return Console() if sys.stdout.isatty() else Console(width=WIDTH)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        right = column in ("states", "moves", "depth", "time")
        table.add_column(
            column, justify="right" if right else "left", no_wrap=column not in ("fault", "every state of")
        )
    return table


def _mark(good: bool, text: str) -> str:
    return f"[green]{text}[/]" if good else f"[bold red]{text}[/]"


def _strength(verdict: Verdict) -> str:
    if verdict.strength == FOR_ALL:
        return "all sizes"
    return verdict.strength.removeprefix("for ").replace(":", ",")


def _theorems(proof: GroupProof) -> Table:
    table = _table("theorem", "for", "verdict")
    for verdict in proof.theorems:
        table.add_row(verdict.id, _strength(verdict), _mark(verdict.verdict == "proved", verdict.verdict))
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
    for wrong, verdict in proof.unbalanced:
        refuted = verdict.verdict == "refuted"
        table.add_row(wrong.case, wrong.says, "-", _mark(refuted, verdict.id if refuted else "nothing"))
    return table


def run_mutants(json_file: Path | None) -> int:
    """Try every mutant of the protocol, print what noticed them, and return 0 if none survived, else 1."""
    console = _console()
    results = protocol.run()
    table = _table("mutant", "change", "noticed by")
    for result in results:
        known = result.mutant.id in protocol.EQUIVALENT
        by = result.by or ("nothing: equivalent" if known else "NOTHING")
        change = f"{result.mutant.before} -> {result.mutant.after or 'nothing'}".replace("[", "\\[")
        table.add_row(f"{result.mutant.function}:{result.mutant.line}", change, by)
    console.print(table)
    counts = Counter(result.by or "nothing" for result in results)
    survivors = [r for r in results if not r.by and r.mutant.id not in protocol.EQUIVALENT]
    noticed = ", ".join(f"{by} {count}" for by, count in counts.most_common())
    console.print(f"\n{len(results)} mutants, {len(survivors)} survived; noticed by: {noticed}", highlight=False)
    if json_file is not None:
        values = [{"id": r.mutant.id, "by": r.by, "message": r.message} for r in results]
        json_file.write_text(json.dumps({"mutants": values}, indent=1) + "\n", encoding="utf-8")
    return 1 if survivors else 0
