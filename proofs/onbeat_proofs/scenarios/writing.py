"""Scenarios, written as YAML."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import yaml

from onbeat_proofs.scenarios.operations import (
    Abort,
    Add,
    Bounds,
    Check,
    Deliver,
    Expectation,
    Ineligible,
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
)
from onbeat_proofs.scenarios.strict_yaml import FLOAT
from onbeat_spec.config import CONFIG_KEYS, Config


def dump(scenario: Scenario, header: str = "") -> str:
    """Return the YAML text of a scenario: `load_text(dump(scenario)) == [scenario]`.

    Args:
        scenario: what to write; of its configuration only what is not default.
        header: text of a comment above it.
    """
    lines = [f"# {_printable(line)}".rstrip() for line in header.splitlines()]
    lines.append(f"name: {_flow(scenario.name)}")
    for key in ("case", "source"):
        if getattr(scenario, key) is not None:
            lines.append(f"{key}: {_flow(getattr(scenario, key))}")
    for key in ("invariants", "violates"):
        if getattr(scenario, key):
            lines.append(f"{key}: {_flow(getattr(scenario, key))}")
    config = _changed(scenario.config)
    if config:
        lines += ["config:", *(f"  {key}: {_flow(value)}" for key, value in config.items())]
    lines.append("steps:" if scenario.steps else "steps: []")
    for op in scenario.steps:
        lines += _step(op, "  ")
    return "\n".join(lines) + "\n"


def _step(op: Op, indent: str) -> Iterator[str]:
    """Yield the lines of one operation."""
    match op:
        case Repeat(times, steps):
            yield f"{indent}- repeat:"
            yield f"{indent}    times: {times}"
            yield f"{indent}    steps:" if steps else f"{indent}    steps: []"
            for inner in steps:
                yield from _step(inner, indent + " " * 6)
        case Resume():
            yield f"{indent}- resume"
        case ResetPrefixCache():
            yield f"{indent}- reset_prefix_cache"
        case Schedule(expect=expect):
            yield f"{indent}- schedule: {_flow(_given(op, throttle=None, budget=None, accept=None))}"
            if expect is not None:
                yield f"{indent}  expect: {_flow(_asked(expect))}"
        case _:
            name, body = _plain(op)
            yield f"{indent}- {name}: {_flow(body)}"


def _plain(op: Op) -> tuple[str, Any]:
    """Return the name of an operation that fits on one line, and what it is given."""
    match op:
        case Add():
            return "add", _add(op)
        case Abort(id, instance):
            return "abort", id if instance is None else {"id": id, "instance": instance}
        case Stop(id):
            return "stop", id
        case RemoteDone(id):
            return "remote_done", id
        case RemoteFailed():
            return "remote_failed", {"id": op.id, **_given(op, from_block=0)}
        case Pause(mode):
            return "pause", mode
        case Deliver(count):
            return "deliver", count
        case Ineligible(id, steps):
            return "ineligible", {"id": id, "steps": steps}
        case Check(expect):
            return "check", _asked(expect)
    raise TypeError(op)


def _add(op: Add) -> dict[str, Any]:
    body = {"id": op.id, "prompt": op.prompt, "max_tokens": op.max_tokens}
    body |= _given(op, priority=0, prefix=None, output=None)
    if (op.remote_tokens, op.remote_mode) != (0, "async"):
        body["remote"] = {"tokens": op.remote_tokens, "mode": op.remote_mode}
    return body


def _given(op: Op, **defaults: object) -> dict[str, Any]:
    """Return those of an operation's values that are not their defaults."""
    return {key: getattr(op, key) for key, default in defaults.items() if getattr(op, key) != default}


def _changed(config: Config) -> dict[str, Any]:
    default = Config()
    return {key: getattr(config, key) for key in CONFIG_KEYS if getattr(config, key) != getattr(default, key)}


def _asked(expect: Expectation) -> dict[str, Any]:
    return {f.name: value for f in fields(expect) if (value := getattr(expect, f.name)) is not None}


class _Dumper(yaml.SafeDumper):
    """Quotes what any reader of YAML 1.1, and what ours, would take for something else than text."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{FLOAT.pattern})$", FLOAT.flags), None)


def _flow(value: Any) -> str:
    """Write a value on one line."""
    text: str = yaml.dump(
        _bare(value), Dumper=_Dumper, default_flow_style=True, width=float("inf"), sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _bare(value: Any) -> Any:
    """Return a value in the types that YAML knows."""
    if isinstance(value, Bounds):
        return {key: bound for key, bound in value._asdict().items() if bound is not None}
    if isinstance(value, tuple):
        return [_bare(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _bare(item) for key, item in value.items()}
    return value


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
