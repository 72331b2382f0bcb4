"""The verb `onbeat replay`."""

import json
import sys
from dataclasses import replace as replaced
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onbeat_proofs.verbs.vacuous import allow_vacuous

if TYPE_CHECKING:
    from onbeat_proofs.play.replay import Replay
    from onbeat_proofs.scenarios.operations import Scenario
    from onbeat_spec.policy import Policy

HOLDS, VIOLATED, UNDECIDED = 0, 1, 2
COLUMNS = 16
"""Steps in one table."""


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE|FOLDER...")
@click.option(
    "--scheduler",
    default="onbeat_reference:Scheduler",
    metavar="MODULE:CLASS",
    show_default=True,
    help="Scheduler class, of a family that has an adapter.",
)
@click.option("--policy", metavar="POLICY", help="Policy in place of the scenarios' own: a name or FILE.py:CLASS.")
@allow_vacuous
@click.option("--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False), help="Write the results to FILE.")
@click.option("-q/-v", "--quiet/--verbose", default=None, help="Only failures / a step table for every scenario.")
def command(
    paths: tuple[str, ...],
    scheduler: str,
    *,
    policy: str | None,
    allow_vacuous: tuple[str, ...],
    json_file: str | None,
    quiet: bool | None,
) -> int:
    """Run scenario files on a scheduler. Each step is checked against the files' expectations and every invariant.

    A scenario is vacuous if it has no step, or if an invariant that it names was never put to the test.

    Exits with 0 if everything holds, 1 if something does not, 2 if a file cannot be read or run, or is vacuous.
    """
    from onbeat_proofs.audit.adapters import adapter_for
    from onbeat_proofs.foreign.policies import policy_of
    from onbeat_proofs.foreign.targets import load_scheduler
    from onbeat_proofs.play.tally import require_known
    from onbeat_proofs.scenarios.files import load_paths
    from onbeat_spec.catalogue import CATALOGUE
    from onbeat_spec.errors import OnbeatError, PolicyError, ScenarioError

    _survive_any_name()
    require_known(allow_vacuous, CATALOGUE)
    cls = load_scheduler(scheduler)
    chosen = policy_of(policy) if policy is not None else None
    if chosen is None and adapter_for(cls).decides_itself:
        chosen = type(adapter_for(cls).policy(cls))
    outcomes: list[Replay] = []
    errors: list[str] = []

    def refuse(error: OnbeatError) -> None:
        errors.append(str(error))
        click.echo(f"ERROR   {error}")

    for read in load_paths(paths, bad=refuse):
        scenario = read if policy is None else replaced(read, config=replaced(read.config, policy=policy))
        try:
            outcomes.append(_replay(scenario, cls, chosen))
        except (ScenarioError, PolicyError) as error:
            refuse(error)
            continue
        _print(outcomes[-1], quiet, allow_vacuous)
    failed = sum(not outcome.holds for outcome in outcomes)
    vacuous = sum(outcome.holds and bool(_vacuous(outcome, allow_vacuous)) for outcome in outcomes)
    click.echo(_summary(len(outcomes) - failed - vacuous, failed, vacuous, len(errors)))
    if json_file is not None:
        shown = [_json(outcome, allow_vacuous) for outcome in outcomes]
        report = {"scheduler": scheduler, "scenarios": shown, "errors": errors}
        Path(json_file).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return VIOLATED if failed else UNDECIDED if errors or vacuous else HOLDS


def _survive_any_name() -> None:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name that the terminal cannot show is no reason to stop


def _replay(scenario: "Scenario", cls: type, chosen: "type[Policy] | None") -> "Replay":
    """Run one scenario on a class, under a policy chosen for all of them or its own."""
    from onbeat_proofs.audit.adapters import adapter_for
    from onbeat_proofs.play.two_runs import compares, replay_runs
    from onbeat_spec.errors import ScenarioError

    adapter = adapter_for(cls)
    prepared = adapter.prepare(cls, scenario)
    if prepared is None:
        raise ScenarioError(f"{scenario.name}: it speaks of what schedulers of this family do not have")
    compared = compares(prepared) or adapter.decides_itself
    decides = chosen() if chosen is not None else None
    most = None if compared else 0
    return replay_runs(prepared, adapter.factory(cls), decides, most=most, rests=compared)


def _vacuous(outcome: "Replay", allowed: tuple[str, ...]) -> list[str]:
    """Say what a scenario never put to the test."""
    from onbeat_proofs.play.tally import never_seen

    if not outcome.history and not outcome.violations:
        return ["it has no step"]
    return [
        f"{id} was never put to the test ({never_seen(id, alone=True)})" for id in outcome.vacuous if id not in allowed
    ]


def _print(outcome: "Replay", quiet: bool | None, allowed: tuple[str, ...]) -> None:
    from onbeat_proofs.play.replay import window

    if outcome.holds:
        vacuous = _vacuous(outcome, allowed)
        if vacuous:
            click.echo(f"VACUOUS {outcome.scenario.name}: {'; '.join(vacuous)}")
        elif quiet is not True:
            click.echo(f"ok      {outcome.scenario.name}")
        if quiet is False:
            for start in range(0, len(outcome.history), COLUMNS):
                _table(outcome.history[start : start + COLUMNS])
        return
    first, *others = outcome.complaints()
    click.echo(f"FAILED  {outcome.scenario.name}: {first}")
    for line in others[:9]:
        click.echo(f"        {line}")
    if others[9:]:
        click.echo(f"        and {len(others) - 9} more")
    if quiet is not True:
        _table(window(outcome.history, outcome.first, COLUMNS))


def _table(history: Any) -> None:
    from rich.console import Console

    from onbeat_proofs.play.table import LEGEND, step_table, step_text

    if not history:
        return
    console, table = Console(), step_table(history)
    if console.is_terminal and console.measure(table).maximum <= console.width:
        console.print(table)
        console.print(f"({LEGEND})", style="dim", markup=False)
    else:
        click.echo("\n".join(f"        {line}" for line in step_text(history).splitlines()))


def _summary(hold: int, failed: int, vacuous: int, unread: int) -> str:
    count = hold + failed + vacuous + unread
    parts = [f"{hold} hold", f"{failed} failed"]
    if vacuous:
        parts.append(f"{vacuous} vacuous")
    if unread:
        parts.append(f"{unread} could not be run")
    return f"{count} scenario{'' if count == 1 else 's'}: {', '.join(parts)}"


def _json(outcome: "Replay", allowed: tuple[str, ...]) -> dict[str, Any]:
    scenario = outcome.scenario
    return {
        "name": scenario.name,
        "case": scenario.case,
        "file": None if scenario.origin is None else str(scenario.origin),
        "holds": outcome.holds,
        "vacuous": _vacuous(outcome, allowed),
        "steps": len(outcome.history),
        "failures": [failure._asdict() for failure in outcome.failures],
        "violations": [violation._asdict() for violation in outcome.violations],
    }
