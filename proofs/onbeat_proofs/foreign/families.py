"""Kinds of schedulers that are driven: what each must have, and what some have beside it."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from onbeat_proofs.scenarios.operations import Op
from onbeat_reference.schedulable import Schedulable
from onbeat_spec.config import Config
from onbeat_spec.policy import Policy

Factory = Callable[[Config, Policy], Schedulable]
"""Makes the scheduler: a class with the interface of the reference's `Scheduler`, or a function."""


class TakesPolicy(Protocol):
    """A scheduler that asks the policy that it was given."""

    policy: Policy


class DecidesItself(Protocol):
    """A scheduler of a family that has its policy built in, and differs from the reference in a few ways."""

    aside: Collection[str]
    """Waiting requests that the saturation flag does not count in the step that was scheduled last."""
    loads_hold_slots: bool
    """A request takes its slot when its remote load starts, not when it runs."""

    @property
    def counted_as_chunks(self) -> Collection[str] | None:
        """Running requests that the policy text takes for chunks, whatever their local work; None: it asks that."""

    def flip_flag(self) -> None:
        """Set the saturation flag to what it is not: a step without the throttle must not care."""

    def cannot(self, op: Op) -> str | None:
        """Return why an operation means nothing to the family; None: it does."""

    def shape(self, names: Mapping[str, int]) -> tuple[Any, ...]:
        """Return what the future depends on, requests named by numbers. Raises ValueError: it cannot be said."""


def members(protocol: type) -> tuple[str, ...]:
    """Return the names of what a protocol asks for: methods, then everything else."""
    parts = [part for part in reversed(protocol.__mro__) if part not in (object, Protocol)]
    names = [name for part in parts for name in (*vars(part), *vars(part).get("__annotations__", ()))]
    public = dict.fromkeys(name for name in names if not name.startswith("_") and name != "Generic")
    called = methods(protocol)
    return (*called, *(name for name in public if name not in called))


def methods(protocol: type) -> tuple[str, ...]:
    """Return the names of the methods that a protocol asks for."""
    parts = [part for part in reversed(protocol.__mro__) if part is not Protocol]
    return tuple(
        name for part in parts for name, value in vars(part).items() if inspect.isfunction(value) and name[0] != "_"
    )


def lacks(scheduler: object, protocol: type = Schedulable) -> list[str]:
    """Return what an object has not of what a protocol asks for; by default, to be driven at all.

    Not `isinstance`: from Python 3.12 on that does not see what `__getattr__` gives.
    """
    return [name for name in members(protocol) if not hasattr(scheduler, name)]


def lacks_methods(cls: type, protocol: type) -> list[str]:
    """Return the methods of a protocol that a class has not."""
    return [name for name in methods(protocol) if not callable(getattr(cls, name, None))]
