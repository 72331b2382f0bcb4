"""Group scenarios: read from *.group.yaml files, and written from a path of the checker."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from onbeat_proofs.protocol.explore import GroupExplored
from onbeat_proofs.protocol.state import Begun, GroupMember
from onbeat_proofs.protocol.world import GroupWorld
from onbeat_proofs.scenarios.schema import validate
from onbeat_proofs.scenarios.strict_yaml import Document, documents, read
from onbeat_spec.errors import ScenarioError
from onbeat_spec.protocol import GroupSettings

SUFFIX = ".group.yaml"


@dataclass(frozen=True)
class GroupScenario:
    """A scenario of a deployment; the steps are plain values, as the schema has them."""

    name: str
    ranks: int
    settings: tuple[GroupSettings, ...]
    holds: bool = False
    coupled: bool = True
    case: str | None = None
    source: str | None = None
    invariants: tuple[str, ...] = ()
    violates: tuple[str, ...] = ()
    steps: tuple[dict[str, Any], ...] = ()


def load(path: Path) -> list[GroupScenario]:
    """Return the scenarios of a file, or of all *.group.yaml files in a folder and below.

    Raises:
        ScenarioError: one cannot be read, or is not as the schema wants it.
    """
    files = sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]
    scenarios = [scenario for file in files for scenario in load_text(read(file), str(file))]
    if not scenarios:
        raise ScenarioError(f"{path}: holds no group scenario (*{SUFFIX})")
    return scenarios


def load_text(text: str, origin: str = "<text>") -> list[GroupScenario]:
    """Return the scenarios of a YAML text.

    Raises:
        ScenarioError: it is not as the schema wants it.
    """
    return [_scenario(document) for document in documents(text, origin)]


def _scenario(document: Document) -> GroupScenario:
    validate(document, "group_scenario.schema.json")
    raw: dict[str, Any] = document.value
    config = raw["config"]
    sync, ranks = config.get("sync", GroupSettings().sync), config["ranks"]
    if isinstance(sync, list) and len(sync) != ranks:
        raise document.error(("config", "sync"), f"has {len(sync)} items, and there are {ranks} ranks")
    syncs = sync if isinstance(sync, list) else [sync]
    settings = [GroupSettings(config.get("interval", 1), value) for value in syncs]
    for position, step in enumerate(raw["steps"]):
        for rank in _ranks_in(step):
            if rank >= ranks:
                raise document.error(("steps", position), f"names rank {rank}; there are {ranks}, from 0")
    return GroupScenario(
        raw["name"],
        ranks,
        tuple(settings),
        config.get("holds", False),
        config.get("coupled", True),
        raw.get("case"),
        raw.get("source"),
        tuple(raw.get("invariants", ())),
        tuple(raw.get("violates", ())),
        tuple(raw["steps"]),
    )


def _ranks_in(step: dict[str, Any]) -> Iterator[int]:
    (kind, body) = next(iter(step.items()))
    if kind in ("remove", "die", "abort", "gone"):
        yield body
    for key, value in (body if isinstance(body, dict) else {}).items():
        if key in ("rank", "to"):
            yield value
        elif isinstance(value, dict):
            yield from map(int, value)
        elif key in ("only", "busy", "asleep", "ended"):
            yield from value


# --- From a path of the checker --------------------------------------------------------------------------------------


def to_text(explored: GroupExplored, name: str) -> str:
    """Return the run that a check found as a scenario file that violates the same."""
    scope, world = explored.scope, explored.world
    config: dict[str, Any] = {"ranks": scope.ranks, "interval": scope.settings[0].interval}
    syncs = [setting.sync for setting in scope.settings]
    config["sync"] = syncs[0] if len(syncs) == 1 else syncs
    config |= {"holds": True} if scope.holds else {}
    config |= {} if scope.coupled else {"coupled": False}
    steps: list[dict[str, Any]] = []
    state = world.start()
    for move in explored.path:
        steps += _steps(world, world.members_of(state), world.members_of(move.state), move.label)
        state = move.state
    steps.append({"settle": None})
    head: dict[str, Any] = {"name": name, "violates": [explored.invariant], "config": config}
    lines = [f"# {explored.message}"] + [f"{key}: {_flow(value)}" for key, value in head.items()] + ["steps:"]
    return "\n".join([*lines, *(f"  - {_flow(step)[1:-1]}" for step in steps)]) + "\n"


def _flow(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).removesuffix("...\n").strip()


def _steps(
    world: GroupWorld, before: list[GroupMember], after: list[GroupMember], label: tuple[Any, ...]
) -> Iterator[dict[str, Any]]:
    kind, *detail = label
    if kind == "request":
        yield {"request": {"rank": detail[0], "becomes": detail[1]}}
    elif kind == "turn":
        taking = [place for place, member in enumerate(before) if not member.gone]
        begun = {place: world.begun.values[number] for place, number in zip(taking, detail[0], strict=True)}
        yield from _reads(before, begun)
        ended = {str(p): e.member.work - after[p].work for p, e in begun.items() if e.member.work != after[p].work}
        yield {"turn": {"finish": ended} if ended else None}
    elif kind == "alone":
        yield from _reads(before, {detail[0]: detail[1]})
        yield {"turn": {"only": [detail[0]], "tokens": {str(detail[0]): 0}}}
    elif kind in ("pause", "remove", "die", "abort", "gone"):
        yield {kind: detail[0]}
    elif kind in ("resume", "sleep", "rouse", "restart", "withdraw", "orphan"):
        yield {kind: None}


def _reads(before: list[GroupMember], begun: dict[int, Begun]) -> Iterator[dict[str, Any]]:
    for place, beginning in begun.items():
        for event in before[place].channel[: beginning.reads]:
            yield {"deliver": {"to": place, "message": event.kind}}
