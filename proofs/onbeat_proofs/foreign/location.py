"""Where a class is written, for reports that point there."""

import inspect
from typing import NamedTuple


class Location(NamedTuple):
    """A class in its file. Lines count from 1."""

    file: str
    """Absolute path."""
    line: int
    """Of the class."""
    methods: dict[str, int]
    """The methods that the class itself defines, with their lines."""


def source_of(target: object) -> Location | None:
    """Return where a class, or a function, is written; None: that cannot be known."""
    if not isinstance(target, type):
        target = inspect.unwrap(target) if callable(target) else target
        code = getattr(target, "__code__", None)
        return None if code is None else Location(code.co_filename, code.co_firstlineno, {})
    try:
        file = inspect.getsourcefile(target)
        _, line = inspect.getsourcelines(target)
    except (OSError, TypeError):
        return None
    methods = {}
    for name, value in vars(target).items():
        plain = value.fget if isinstance(value, property) else inspect.unwrap(getattr(value, "__func__", value))
        code = getattr(plain, "__code__", None)
        if code is not None and code.co_filename == file:
            methods[name] = code.co_firstlineno
    return None if file is None else Location(file, line, methods)
