"""Holds what a scenario expects against what is seen of a scheduler."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from onbeat_proofs.play import history
from onbeat_proofs.play.driver import Driver
from onbeat_proofs.play.fake_model import Track
from onbeat_proofs.scenarios.operations import Bounds, Expectation, Number
from onbeat_spec.errors import ScenarioError


class Mismatch(NamedTuple):
    """One key of an expectation that was not met."""

    key: str
    expected: str
    seen: str


def compare(expect: Expectation, driver: Driver) -> list[Mismatch]:
    """Return what of an expectation is not met, in the order of the keys.

    Raises:
        ScenarioError: an id is named under which no request has been added.
    """
    mismatches = []
    for field in fields(expect):
        expected = getattr(expect, field.name)
        if expected is None:
            continue
        _require_known(field.name, expected, driver)
        actual = _seen(field.name, expected, driver)
        if not _meets(field.name, expected, actual):
            mismatches.append(Mismatch(field.name, show(expected), show(actual)))
    return mismatches


def show(value: Any) -> str:
    """Write a value as a scenario file would."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {show(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Bounds):
        return str(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(show, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return "nothing" if value is None else str(value)


def _require_known(key: str, expected: Any, driver: Driver) -> None:
    if not isinstance(expected, Bounds) and isinstance(expected, Mapping | tuple):
        unknown = [id for id in expected if id not in driver.tracks]
        if unknown:
            raise ScenarioError(f"{key}: no request {unknown[0]!r} has been added before")


def _seen(key: str, expected: Any, driver: Driver) -> Any:
    """Return what is there, as far as `expected` asks."""
    if key in _WHOLE:
        return _WHOLE[key](driver)
    look = _PER_REQUEST[key]
    ids = expected or driver.tracks
    records = {id: look(driver, driver.tracks[id][-1]) if driver.tracks[id] else None for id in ids}
    return records if expected else {id: value for id, value in records.items() if value}


def _meets(key: str, expected: Any, actual: Any) -> bool:
    if key in _UNORDERED:
        return sorted(expected) == sorted(actual)
    if key == "scheduled":
        return all(_is(expected.get(id, 0), actual.get(id, 0)) for id in expected.keys() | actual.keys())
    if isinstance(expected, Mapping):
        return expected.keys() == actual.keys() and all(_is(expected[id], actual[id]) for id in expected)
    return _is(expected, actual)


def _is(expected: Number | Any, actual: Any) -> bool:
    if not isinstance(expected, Bounds):
        return bool(expected == actual)
    if actual is None:
        return False
    most, least = expected
    return (most is None or actual <= most) and (least is None or actual >= least)


def _latest(driver: Driver, name: str) -> Any:
    return getattr(driver.history[-1].step, name) if driver.history else ()


def _ids(requests: Any) -> tuple[str, ...]:
    return tuple(request.id for request in requests)


def _reason(driver: Driver, track: Track) -> str | None:
    reason = track.request.finish_reason
    return None if reason is None else reason.value


_UNORDERED = ("preempted", "refused", "loading")
_WHOLE: dict[str, Callable[[Driver], Any]] = {
    "scheduled": lambda driver: dict(_latest(driver, "scheduled")),
    "preempted": lambda driver: tuple(eviction.victim for eviction in _latest(driver, "evictions")),
    "loading": lambda driver: tuple(_latest(driver, "loading")),
    "waiting": lambda driver: _ids(driver.scheduler.waiting),
    "running": lambda driver: _ids(driver.scheduler.running),
    "parked": lambda driver: _ids(driver.scheduler.parked),
    "saturated": lambda driver: driver.scheduler.saturated,
    "free_blocks": lambda driver: driver.scheduler.pool.free,
    "refused": lambda driver: tuple(driver.refused),
    "prefill_tokens": lambda driver: history.prefill_tokens(driver.history),
    "decode_tokens": lambda driver: history.decode_tokens(driver.history),
    "max_waiting": lambda driver: history.max_waiting(driver.history),
}
_PER_REQUEST: dict[str, Callable[[Driver, Track], Any]] = {
    "computed": lambda driver, track: track.request.num_computed,
    "outputs": lambda driver, track: track.delivered,
    "finished": _reason,
    "drafts": lambda driver, track: dict(_latest(driver, "drafts")).get(track.request.id, 0),
    "tokens": lambda driver, track: history.tokens(driver.history[track.since :], track.request.id),
    "preemptions": lambda driver, track: track.num_preemptions,
    "first_chunk": lambda driver, track: history.first_chunk(driver.history[track.since :], track.request.id),
    "first_output": lambda driver, track: history.first_output(driver.history[track.since :], track.request.id),
}
