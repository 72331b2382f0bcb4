"""`onbeat spec`."""

import inspect

import click
from rich.console import Console
from rich.table import Table

from onbeat_proofs.play.suite import suite_path
from onbeat_proofs.protocol.scenario import load
from onbeat_proofs.protocol.theorems.group import THEOREMS
from onbeat_proofs.prove.claims import claims_of, markdown, strength_of
from onbeat_proofs.prove.coverage import KINDS, Coverage, matrix, suite
from onbeat_spec.catalogue import CATALOGUE, GROUP_CATALOGUE, Invariant
from onbeat_spec.errors import OnbeatError


@click.command()
@click.argument("invariant", required=False, metavar="[ID]")
@click.option("--claims", is_flag=True, help="Print every claim, its strength and what it leaves out, as Markdown.")
def command(invariant: str | None, claims: bool) -> int:
    """Print the catalogue of invariants, or everything about one.

    Exit code 0: every invariant has at least two kinds of check, a proof among them where the design asks for one.
    1: one has not. 2: there is no invariant of that id.
    """
    console = Console()
    rows = matrix()
    if claims:
        for line in markdown(rows):
            click.echo(line)
        return 0
    if invariant is None:
        console.print(_catalogue(rows))
        console.print()
        console.print(_matrix(rows))
        console.print()
        console.print(_group())
        lacking = [row.invariant.id for row in rows if not row.enough]
        if lacking:
            console.print(f"not checked enough: {', '.join(lacking)}", markup=False)
        return 1 if lacking else 0
    if invariant in GROUP_CATALOGUE:
        _print_group(console, GROUP_CATALOGUE[invariant])
        return 0
    if invariant not in CATALOGUE:
        raise OnbeatError(f"there is no invariant {invariant!r}; `onbeat spec` lists them")
    _print_one(console, next(row for row in rows if row.invariant.id == invariant))
    return 0


def _catalogue(rows: list[Coverage]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("invariant", no_wrap=True)
    table.add_column("statement")
    for row in rows:
        table.add_row(row.invariant.id, row.invariant.statement)
    return table


def _group() -> Table:
    """The invariants of a lock-step group; they have no place in the matrix, which is about one rank."""
    table = Table(box=None, pad_edge=False)
    table.add_column("of a group", no_wrap=True)
    table.add_column("statement; checked by onbeat protocol, on traces, or by both")
    for entry in GROUP_CATALOGUE.values():
        table.add_row(entry.id, entry.statement)
    return table


def _print_group(console: Console, entry: Invariant) -> None:
    _print_predicates(console, entry)
    console.print("checks", highlight=False)
    for theorem in [theorem for theorem in THEOREMS if theorem.invariant == entry.id]:
        strength = theorem.strength if not theorem.for_all else "for groups of any size"
        console.print(f"  for all     {theorem.id}: {strength}", highlight=False, soft_wrap=True)
    if entry.by_proof:
        console.print("  exhaustive  onbeat protocol: every state of groups of two and three", highlight=False)
    for scenario in load(suite_path() / "group"):
        if entry.id in scenario.invariants:
            console.print(f"  scenario    {scenario.name}", markup=False, highlight=False, soft_wrap=True)
    if entry.in_traces is not None:
        console.print("  trace       onbeat check-trace: every lock step of a recorded group", highlight=False)
    console.print(f"\ncases\n  {', '.join(entry.cases) or 'none: it is here for its own sake'}", highlight=False)


def _matrix(rows: list[Coverage]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("invariant", no_wrap=True)
    for kind in KINDS:
        table.add_column(kind, justify="right")
    for row in rows:
        cells = [str(len(row.checks[kind])) if row.checks[kind] else "." for kind in KINDS]
        table.add_row(row.invariant.id, *cells)
    return table


def _print_predicates(console: Console, entry: Invariant) -> None:
    console.print(f"{entry.id}\n  {entry.statement}", markup=False, highlight=False, soft_wrap=True)
    if not entry.scopes:
        console.print("\nno predicate over one thing: whole runs are compared\n", highlight=False)
        return
    console.print("\npredicates", highlight=False)
    for scope in entry.scopes:
        source = inspect.getsource(getattr(entry, scope))
        console.print(f"  over {_SCOPES[scope]}", markup=False, highlight=False)
        console.print(inspect.cleandoc(source), markup=False, highlight=False, soft_wrap=True)
        console.print()


def _print_one(console: Console, row: Coverage) -> None:
    """Print one invariant: statement, predicates, checks with their strength, cases."""
    entry = row.invariant
    _print_predicates(console, entry)
    console.print("checks", highlight=False)
    for claim in claims_of(entry.id):
        left_out = f"; leaves out: {'; '.join(claim.restrictions)}" if claim.restrictions else ""
        text = f"  proof       {claim.id}: {strength_of(claim)}{left_out}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    for kind in [kind for kind in KINDS if kind not in ("for all", "symbolic")]:
        for check in row.checks[kind]:
            console.print(f"  {kind:<11} {check}", markup=False, highlight=False, soft_wrap=True)
    cases = sorted({*entry.cases, *(s.case for s in suite() if s.case and entry.id in s.invariants)}, key=_case_number)
    console.print(
        f"\ncases\n  {', '.join(cases) or 'none: it is here for its own sake'}", markup=False, highlight=False
    )


def _case_number(case: str) -> int:
    return int(case.lstrip("B"))


_SCOPES = {
    "state": "one state",
    "step": "one step",
    "runs": "two runs from one state",
    "history": "a history",
    "group": "one lock step of a group",
    "call": "one call of a group's front end",
    "read": "one event that a rank has read",
}
