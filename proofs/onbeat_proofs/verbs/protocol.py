"""`onbeat protocol`: check the data-parallel protocol, or replay scenarios of it."""

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from onbeat_proofs.protocol import chart
from onbeat_proofs.protocol.decide import GroupProof, prove
from onbeat_proofs.protocol.drawing import page
from onbeat_proofs.protocol.explore import GroupExplored
from onbeat_proofs.protocol.replay import GroupReplay, replay
from onbeat_proofs.protocol.scenario import load, to_text
from onbeat_proofs.prove.theorem import FOR_ALL, TheoremVerdict
from onbeat_proofs.verbs.progress import progress
from onbeat_proofs.verbs.tables import mark, plain_table, wide_console


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER]...")
@click.option("--deep", is_flag=True, help="Groups of three ranks too (some minutes).")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results here.")
@click.option(
    "--scenarios",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the run of each violation and of each planted fault to this folder, as a scenario.",
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Draw the same runs in this file.")
def command(
    files: tuple[str, ...], deep: bool, json_file: Path | None, scenarios: Path | None, html: Path | None
) -> int:
    """Prove the data-parallel protocol: theorems, and every state of small groups of ranks.

    Planted faults show that a wrong protocol is found. Given files or folders of group scenarios (*.group.yaml),
    these are replayed instead.
    Exit code 0: all verdicts are as expected, or every scenario goes as it says. 1: one does not.
    2: something could not be decided or run.
    """
    if not files:
        return run(deep, json_file, scenarios, html)
    options = {"--deep": deep, "--scenarios": scenarios, "--html": html}
    if given := [name for name, value in options.items() if value]:
        raise click.UsageError(f"{', '.join(given)} has no effect on scenarios that are replayed; leave it out")
    return replay_files(files, json_file)


def run(deep: bool, json_file: Path | None, scenarios: Path | None, html: Path | None) -> int:
    """Check the protocol, print the results, and return the exit code.

    Args:
        deep: groups of three too.
        json_file: gets all of it.
        scenarios: a folder that gets the run of every planted fault, and of every violation, as a scenario file.
        html: gets the same runs, drawn.
    """
    console = wide_console()
    with progress("protocol") as show:
        proof = prove(deep, show)
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
    found = [(fault.name, fault.says, each) for fault, each in proof.planted if each.path]
    wrong = [each for each in proof.explored if each.path]
    return [*((f"violation-{number}", str(each.scope), each) for number, each in enumerate(wrong)), *found]


def replay_files(files: tuple[str, ...], json_file: Path | None) -> int:
    """Replay group scenarios, say which do not go as they say, and return the exit code."""
    console = wide_console()
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


def _strength(verdict: TheoremVerdict) -> str:
    if verdict.strength == FOR_ALL:
        return "all sizes"
    return verdict.strength.removeprefix("for ").replace(":", ",")


def _theorems(proof: GroupProof) -> Table:
    table = plain_table("theorem", "for", "verdict")
    for verdict in proof.theorems:
        table.add_row(verdict.id, _strength(verdict), mark(verdict.verdict == "proved", verdict.verdict))
    return table


def _explored(proof: GroupProof) -> Table:
    table = plain_table("every state of", "states", "moves", "depth", "time", "violated")
    for found in proof.explored:
        row = (str(found.scope), f"{found.states:,}", f"{found.moves:,}", str(found.depth), f"{found.seconds:.1f} s")
        table.add_row(*row, mark(not found.invariant, found.invariant or "nothing"))
    return table


def _planted(proof: GroupProof) -> Table:
    table = plain_table("planted", "fault", "moves", "violates")
    for fault, found in proof.planted:
        violates = mark(found.invariant == fault.finds, found.invariant or "nothing")
        table.add_row(fault.case or "-", fault.says, str(len(found.path)), violates)
    for wrong, verdict in proof.unbalanced:
        refuted = verdict.verdict == "refuted"
        table.add_row(wrong.case, wrong.says, "-", mark(refuted, verdict.id if refuted else "nothing"))
    return table
