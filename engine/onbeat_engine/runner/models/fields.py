"""Reads values out of a mapping that somebody else wrote, and says what is wrong with one."""

from collections.abc import Mapping
from typing import Any, NoReturn

from onbeat_engine.wire.errors import ModelError


class Fields:
    """The values of a mapping.

    Args:
        values: the mapping.
        where: what it was read from, for messages.
        prefix: of its keys in there.
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.values = values
        self.where = where
        self.prefix = prefix

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number.

        Raises:
            ModelError: it is missing, or something else; likewise the next.
        """
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            self._wrong(key, value, "a number")
        return float(value)

    def flag(self, key: str) -> bool:
        """Return true or false; false where it is missing."""
        value = self._get(key, False)
        if not isinstance(value, bool):
            self._wrong(key, value, "true or false")
        return value

    def text(self, key: str) -> str | None:
        """Return a string, or None."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            self._wrong(key, value, "a string")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """Return token ids or layers, given as one number, a list, or not at all."""
        value = self.values.get(key)
        listed = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(entry, bool) or not isinstance(entry, int) for entry in listed):
            self._wrong(key, value, "a whole number or a list of them")
        return tuple(listed)

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.where} lacks {self.prefix}{key}")
        return value

    def _wrong(self, key: str, value: Any, rule: str) -> NoReturn:
        raise ModelError(f"{self.prefix}{key} in {self.where} is {value!r}; it must be {rule}")
