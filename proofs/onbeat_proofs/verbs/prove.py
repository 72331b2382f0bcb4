"""`onbeat prove`: prove the theorems about policies."""

import json
from dataclasses import asdict
from os.path import relpath
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from onbeat_proofs.prove.claims import strength_of
from onbeat_proofs.prove.decide import Proof, prove
from onbeat_proofs.prove.theorem import TheoremVerdict
from onbeat_proofs.verbs.progress import progress
from onbeat_spec.policy import POLICIES

MOVED = {
    "--group": "run `onbeat protocol` (`onbeat mutate protocol` for its mutants)",
    "--mutants": "run `onbeat mutate` (`onbeat mutate protocol` for mutants of the protocol)",
    "--html": "run `onbeat protocol --html FILE` to draw runs of a group",
}
"""Options that became verbs, and how to run those."""
MARKS = {"proved": "proved", "refuted": "refuted", "unknown": "UNKNOWN"}


def _moved(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    """Refuse an option that became a verb of its own."""
    if value:
        raise click.UsageError(f"there is no option {parameter.opts[0]}; {MOVED[parameter.opts[0]]}")


@click.command()
@click.argument("policies", nargs=-1, metavar="[POLICY]...")
@click.option("--deep", is_flag=True, help="Larger states too: 2+2 and 3+1 requests (some minutes).")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all verdicts here.")
@click.option(
    "--scenarios", type=click.Path(file_okay=False, path_type=Path), help="Write each refutation to this folder."
)
@click.option(
    "--show/--no-show", default=None, help="Print each refutation as a scenario. [default: own policies only]"
)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Number of processes.")
@click.option("--group", is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_moved)
@click.option("--mutants", is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_moved)
@click.option("--html", hidden=True, is_eager=True, expose_value=False, callback=_moved)
def command(  # noqa: PLR0917  (click passes one parameter per option)
    policies: tuple[str, ...],
    deep: bool,
    json_file: Path | None,
    scenarios: Path | None,
    show: bool | None,
    workers: int,
) -> int:
    """Prove every theorem under each policy, and find the refutations that are expected.

    POLICY is onbeat, pr44558, local-work, module:Class or file.py:Class; by default the three built in.
    Exit code 0: all verdicts are as the ledger states them (proved, for a policy of your own). 1: one is not.
    2: something could not be decided or run.
    """
    names = policies or tuple(POLICIES)
    console = Console()
    with progress("proving") as show_progress:
        proof = prove(names, deep=deep, workers=workers, progress=show_progress)
    console.print(verdict_table(proof))
    _report(console, proof, show)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(proof), indent=1) + "\n", encoding="utf-8")
    if scenarios is not None:
        _write_scenarios(proof, scenarios)
    return proof.exit_code


def as_json(proof: Proof) -> dict[str, Any]:
    """Return all verdicts in plain values."""
    return {"seconds": round(proof.seconds, 3), "theorems": [asdict(verdict) for verdict in proof.verdicts]}


def verdict_table(proof: Proof) -> Table:
    """A row for each theorem, a column for each policy; what is not as expected is marked with `!`."""
    policies = list(dict.fromkeys(verdict.policy for verdict in proof.verdicts))
    table = Table(box=None, pad_edge=False)
    table.add_column("theorem", no_wrap=True)
    table.add_column("for", no_wrap=True)
    for policy in policies:
        table.add_column(policy, no_wrap=True)
    by_key = {(verdict.id, verdict.policy): verdict for verdict in proof.verdicts}
    for id in dict.fromkeys(verdict.id for verdict in proof.verdicts):
        row = [by_key[id, policy] for policy in policies]
        table.add_row(id, strength_of(row[0]), *[_mark(verdict) for verdict in row])
    return table


def _mark(verdict: TheoremVerdict) -> str:
    text = MARKS[verdict.verdict]
    if not verdict.as_expected:
        return f"[bold red]{text} ![/]"
    return f"[yellow]{text}[/]" if verdict.verdict == "refuted" else f"[green]{text}[/]"


def _report(console: Console, proof: Proof, show: bool | None) -> None:
    """Say what was refuted, with its scenario, and add everything up."""
    for verdict in proof.verdicts:
        own = verdict.policy not in POLICIES
        if verdict.verdict == "proved" and verdict.as_expected:
            continue
        if verdict.as_expected and not show:
            continue
        console.print()
        console.print(
            f"{verdict.policy}: {verdict.id}: {verdict.verdict}: {verdict.message}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        if verdict.scenario and (show or (show is None and own)):
            console.print(verdict.scenario, markup=False, highlight=False, soft_wrap=True)
            console.print(verdict.table, markup=False, highlight=False, soft_wrap=True)
        elif verdict.model and not verdict.scenario:
            console.print(f"numbers: {verdict.model}", markup=False, highlight=False, soft_wrap=True)
    wrong = [verdict for verdict in proof.verdicts if not verdict.as_expected]
    unknown = sum(verdict.verdict == "unknown" for verdict in proof.verdicts)
    refuted = sum(verdict.verdict == "refuted" and verdict.as_expected for verdict in proof.verdicts)
    steps = {(v.policy, v.paths, v.queries) for v in proof.verdicts if v.id.endswith("/step")}
    others = [v for v in proof.verdicts if not v.id.endswith("/step")]
    console.print()
    console.print(
        f"{len(proof.verdicts)} verdicts, {len(proof.verdicts) - len(wrong)} as expected ({refuted} of them expected "
        f"refutations), {unknown} undecided; {sum(p for _, p, _ in steps) + sum(v.paths for v in others):,} paths, "
        f"{sum(q for _, _, q in steps) + sum(v.queries for v in others):,} solver queries, {proof.seconds:.1f} s",
        markup=False,
        highlight=False,
    )


def _write_scenarios(proof: Proof, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for verdict in proof.verdicts:
        if verdict.scenario:
            name = f"{verdict.policy}-{verdict.id.replace('/', '-')}.yaml"
            text, here = verdict.scenario, verdict.loaded_from
            if here.partition(":")[0].endswith(".py"):
                # A scenario names its policy's file relative to itself.
                text = text.replace(f"policy: {here}\n", f"policy: {relpath(here, folder)}\n")
            (folder / name).write_text(text, encoding="utf-8")
