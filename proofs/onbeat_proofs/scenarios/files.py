"""Scenario files: read strictly against `scenario.schema.json` of the spec package, and written back."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os.path import realpath
from pathlib import Path
from typing import Any

from onbeat_proofs.scenarios.operations import (
    DEFAULT_MAX_TOKENS,
    Abort,
    Add,
    Bounds,
    Check,
    Deliver,
    Expectation,
    Ineligible,
    Located,
    Number,
    Op,
    Pause,
    RemoteDone,
    RemoteFailed,
    Repeat,
    ResetPrefixCache,
    Resume,
    Scenario,
    Schedule,
    Stop,
    flatten,
)
from onbeat_proofs.scenarios.schema import schema, validate
from onbeat_proofs.scenarios.strict_yaml import Document, KeyPath, documents, read
from onbeat_proofs.scenarios.writing import dump
from onbeat_spec.config import Config
from onbeat_spec.errors import ConfigError, ScenarioError

__all__ = [
    "load_path",
    "load_paths",
    "load_text",
    "dump",
    "schema",
    "Scenario",
    "Op",
    "Add",
    "Abort",
    "Stop",
    "Schedule",
    "RemoteDone",
    "RemoteFailed",
    "Pause",
    "Resume",
    "ResetPrefixCache",
    "Deliver",
    "Ineligible",
    "Repeat",
    "Check",
    "Expectation",
    "Bounds",
    "Number",
    "Located",
    "flatten",
]


def load_path(path: str | Path) -> list[Scenario]:
    """Return the scenarios of a file, or of all *.yaml files in a folder and below, in the order of their paths.

    Raises:
        ScenarioError: a file cannot be read, is no scenario file, or uses a name again; or there is none at all.
    """
    return load_paths([path])


def load_paths(paths: Iterable[str | Path], bad: Callable[[ScenarioError], object] | None = None) -> list[Scenario]:
    """Return the scenarios of several files and folders, as `load_path` does; a file met twice is read once.

    Args:
        paths: files and folders.
        bad: told why a file, or folder, is left out, instead of the error being raised; if nothing is left at all it
            is raised all the same.
    """
    scenarios: dict[str, Scenario] = {}
    loaded: set[str] = set()
    errors: list[ScenarioError] = []
    for path in paths:
        try:
            for file in _files(Path(path)):
                if (real := realpath(file)) not in loaded:
                    loaded.add(real)
                    try:
                        scenarios |= _unused(load_text(read(file), file), scenarios)
                    except ScenarioError as error:
                        errors.append(error)
                        if bad is None:
                            raise
        except ScenarioError as error:
            if bad is None:
                raise
            errors.append(error)
    if errors and not scenarios:
        raise errors[0]
    if bad is not None:
        for reason in errors:
            bad(reason)
    return list(scenarios.values())


def _unused(read: Iterable[Scenario], before: Mapping[str, Scenario]) -> dict[str, Scenario]:
    """Return the scenarios of a file by name, if no file before it has one of these names."""
    for scenario in read:
        if scenario.name in before:
            raise ScenarioError(
                f"{scenario.origin}: the name {scenario.name!r} is used in {before[scenario.name].origin} already; "
                "choose another"
            )
    return {scenario.name: scenario for scenario in read}


def load_text(text: str, origin: str | Path = "<text>") -> list[Scenario]:
    """Return the scenarios of a YAML text.

    Args:
        text: one or more documents.
        origin: names the text in messages; a `Path` becomes the scenarios' `origin`.

    Raises:
        ScenarioError: the text is not as the schema wants it, or has no document.
    """
    scenarios: list[Scenario] = []
    names: set[str] = set()
    for document in documents(text, str(origin)):
        validate(document)
        scenario = _scenario(document, origin if isinstance(origin, Path) else None)
        if scenario.name in names:
            raise document.error(("name",), f"{scenario.name!r} is used by another document already; choose another")
        names.add(scenario.name)
        scenarios.append(scenario)
    if not scenarios:
        raise ScenarioError(f"{origin}: holds no scenario")
    return scenarios


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    # Those of a group are another format, with a runner of its own.
    files = sorted(file for file in path.rglob("*.yaml") if file.is_file() and not file.name.endswith(".group.yaml"))
    if not files:
        raise ScenarioError(f"{path}: holds no *.yaml file")
    return files


# --- From YAML values to a scenario ----------------------------------------------------------------------------------

_NUMBERS = ("free_blocks", "prefill_tokens", "decode_tokens", "max_waiting")


def _scenario(document: Document, origin: Path | None) -> Scenario:
    raw = document.value
    try:
        config = Config(**raw.get("config", {}))
    except ConfigError as error:
        raise document.error(("config",), str(error)) from None
    return Scenario(
        name=raw["name"],
        case=raw.get("case"),
        source=raw.get("source"),
        invariants=tuple(raw.get("invariants", ())),
        violates=tuple(raw.get("violates", ())),
        config=config,
        steps=_steps(document, raw["steps"], ("steps",)),
        origin=origin,
    )


def _steps(document: Document, raw: list[Any], path: KeyPath) -> tuple[Op, ...]:
    return tuple(_op(document, step, (*path, position)) for position, step in enumerate(raw))


def _op(document: Document, step: Any, path: KeyPath) -> Op:
    if isinstance(step, str):
        step = {step: None}
    name, body = next(item for item in step.items() if item[0] != "expect")
    match name:
        case "add":
            return _add(document, body, (*path, name))
        case "abort":
            return Abort(body) if isinstance(body, str) else Abort(**body)
        case "stop":
            return Stop(body)
        case "schedule":
            return Schedule(**body or {}, expect=_expectation(step["expect"]) if "expect" in step else None)
        case "remote_done":
            return RemoteDone(body)
        case "remote_failed":
            return RemoteFailed(**body)
        case "pause":
            return Pause(body)
        case "resume":
            return Resume()
        case "reset_prefix_cache":
            return ResetPrefixCache()
        case "deliver":
            return Deliver(body)
        case "ineligible":
            return Ineligible(**body)
        case "repeat":
            return Repeat(body["times"], _steps(document, body["steps"], (*path, name, "steps")))
    return Check(_expectation(body))


def _add(document: Document, body: Mapping[str, Any], path: KeyPath) -> Add:
    prefix, remote, output = body.get("prefix"), body.get("remote", {}), body.get("output")
    if prefix is not None and prefix[1] > body["prompt"]:
        raise document.error((*path, "prefix"), f"is {prefix[1]} tokens long, the prompt only {body['prompt']}")
    return Add(
        id=body["id"],
        prompt=body["prompt"],
        max_tokens=body.get("max_tokens", DEFAULT_MAX_TOKENS),
        priority=body.get("priority", 0),
        prefix=None if prefix is None else (prefix[0], prefix[1]),
        remote_tokens=remote.get("tokens", 0),
        remote_mode=remote.get("mode", "async"),
        output=None if output is None else tuple(output),
    )


def _expectation(raw: Mapping[str, Any]) -> Expectation:
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, list):
            values[key] = tuple(value)
        elif isinstance(value, dict) and key not in _NUMBERS:
            values[key] = {id: _number(item) for id, item in value.items()}
        else:
            values[key] = _number(value)
    return Expectation(**values)


def _number(value: Any) -> Any:
    return Bounds(**value) if isinstance(value, dict) else value
