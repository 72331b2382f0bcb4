"""Values of a trace's lines, taken out of JSON with a complaint that names the key where one is of a wrong type."""

from collections.abc import Callable, Collection
from typing import Any, cast

from onbeat_spec.records import Eviction

MISSING: Any = object()


class Wrong(Exception):
    """What is wrong with a line."""


class Keys:
    """Takes the keys of an object, one by one, and complains about those that are left over."""

    def __init__(self, packed: object, where: str) -> None:
        if not isinstance(packed, dict):
            raise Wrong(f"{where} is {show(packed)}; it must be an object")
        self.packed = packed
        self.where = where
        self.taken = 0

    def take(self, key: str, kind: Callable[[object, str], Any], default: Any = MISSING) -> Any:
        value = self.packed.get(key, MISSING)
        if value is MISSING:
            if default is MISSING:
                raise Wrong(f"{self.where} has no {key!r}")
            return default
        self.taken += 1
        return kind(value, f"{self.where}.{key}")

    def done(self, allowed: Collection[str]) -> None:
        if self.taken != len(self.packed):
            unknown = next(key for key in self.packed if key not in allowed)
            raise Wrong(f"{self.where} has the unknown key {unknown!r}")


def show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def of_type(kind: type, name: str) -> Callable[[object, str], Any]:
    def read(value: object, where: str) -> Any:
        if type(value) is not kind:  # a bool is no number here
            raise Wrong(f"{where} is {show(value)}; it must be {name}")
        return value

    return read


integer, boolean, string = of_type(int, "an integer"), of_type(bool, "true or false"), of_type(str, "a string")


def number(value: object, where: str) -> float:
    if type(value) not in (int, float):
        raise Wrong(f"{where} is {show(value)}; it must be a number")
    return float(cast(float, value))


def list_of(kind: Callable[[object, str], Any]) -> Callable[[object, str], list[Any]]:
    def read(value: object, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise Wrong(f"{where} is {show(value)}; it must be a list")
        return [kind(item, f"{where}[{index}]") for index, item in enumerate(value)]

    return read


def map_of(kind: Callable[[object, str], Any]) -> Callable[[object, str], dict[str, Any]]:
    def read(value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Wrong(f"{where} is {show(value)}; it must be an object")
        for key, item in value.items():
            kind(item, f"{where}[{key!r}]")
        return value

    return read


def one_of(*names: str) -> Callable[[object, str], str]:
    def read(value: object, where: str) -> str:
        if value not in names:
            raise Wrong(f"{where} is {show(value)}; it must be one of {', '.join(names)}")
        return value

    return read


strings, counts = list_of(string), map_of(integer)


def eviction(value: object, where: str) -> Eviction:
    if not isinstance(value, list) or len(value) != 3:
        raise Wrong(f"{where} is {show(value)}; it must be [victim, cause, released]")
    victim, cause, released = value
    return Eviction(string(victim, where), string(cause, where), integer(released, where))


def flight(value: object, where: str) -> tuple[int, dict[str, int]]:
    if not isinstance(value, list) or len(value) != 2:
        raise Wrong(f"{where} is {show(value)}; it must be [step, tokens per request]")
    return integer(value[0], where), counts(value[1], where)


def no_constant(name: str) -> float:
    raise Wrong(f"{name} is no JSON")
