"""What stands for torch where SGLang's file asks for it: a table of ints with the few tensor calls that it makes.

The elements may be symbolic: `min`, `max` and `sum` only add and compare them.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from onbeat_spec.errors import NotADelayer


class Scalar:
    """One number, as a tensor without dimensions."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        """Return the number."""
        return self.value


class Column:
    """A field of all ranks."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def min(self) -> Scalar:
        """Return the least."""
        return Scalar(min(self.values))

    def max(self) -> Scalar:
        """Return the greatest."""
        return Scalar(max(self.values))

    def sum(self) -> Scalar:
        """Return the sum."""
        return Scalar(sum(self.values))


class IntTable:
    """Rows of numbers, one a rank; `table[:, field]` is a column."""

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        self.rows = rows

    def __getitem__(self, key: Any) -> Column:
        if isinstance(key, tuple) and len(key) == 2 and key[0] == slice(None) and isinstance(key[1], int):
            return Column([row[key[1]] for row in self.rows])
        raise NotADelayer(f"the gathered rows were asked for [{key!r}], which the stand-in for tensors has not")


class Nothing:
    """Stands for whatever must exist and is never used: a buffer, a process group, a device."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotADelayer(f"the file called {self._name}, which has no stand-in here; this version is not supported")

    def __repr__(self) -> str:
        return f"<no {self._name}>"


class StandIn(ModuleType):
    """A module of which every name can be imported, and whose unknown functions refuse to be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(f"{self.__name__}.{name}")


def torch() -> ModuleType:
    """Return a module that has as much of torch as a delayer needs to be made."""
    module = StandIn("torch")
    module.empty = lambda *args, **kwargs: Nothing("torch.empty()")  # type: ignore[attr-defined]  # a made-up module
    return module
