"""Whether a class can take the calls that its base takes, found out without running it.

A scheduler that overrides a method keeps working as long as every call that the base accepts is accepted still. What
breaks in practice (public cases B25, B26, B30, B31): a throttle flag that `schedule` does not take, a keyword that a
hook does not know, a stale parameter list that only some feature reaches, an attribute that no longer exists.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from onbeat_proofs.audit.static.attributes import missing_attributes
from onbeat_proofs.foreign.families import Factory, methods
from onbeat_reference import Scheduler
from onbeat_reference.schedulable import Schedulable
from onbeat_spec.config import Config
from onbeat_spec.policy import Policy

CALLERS = methods(Schedulable)
"""Methods that are called from outside. One of these that cannot take its calls makes a run pointless."""
_Calls = Callable[[inspect.Signature], Iterator[tuple[list[str], list[str]]]]
"""Ways to call: names given in place, and names given by name."""
NOT_COMPARED = frozenset({"__init__", "__new__", "__init_subclass__", "__class_getitem__", "__module__", "__doc__"})


class Misfit(NamedTuple):
    """Something that a class gets wrong before it runs."""

    where: str
    """Class and method or attribute."""
    message: str
    fatal: bool
    """The class cannot be driven at all."""
    warning: bool = False
    """Worth knowing, and no fault by itself: no reason to fail."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


def misfits_of(cls: type, base: type = Scheduler) -> list[Misfit]:
    """Compare a class with the base it stands in for.

    Args:
        cls: a subclass of `base`, or any class with its interface.
        base: the class that callers were written for.

    Returns:
        Nothing for a class that takes every call; misfits in the order of the class otherwise.
    """
    misfits = list(_constructor(cls))
    derived = issubclass(cls, base)
    for name in dict.fromkeys((*CALLERS, *(_overridden(cls, base) if derived else ()))):
        expected, actual = _static(base, name), _static(cls, name)
        if expected is not None and actual is not expected:
            misfits += compare(cls, base, name, name in CALLERS)
    if derived:
        misfits += [Misfit(where, message, False) for where, message in missing_attributes(cls, base)]
    return misfits


def probe(factory: Factory, policy: Policy) -> Misfit | None:
    """Step an idle scheduler, and see whether its step counter rises by one for each step (public case B27)."""
    try:
        scheduler = factory(Config(), policy)
        steps = [scheduler.num_steps]
        for _ in range(3):
            scheduler.update(scheduler.schedule(False), {})
            steps.append(scheduler.num_steps)
    except Exception:
        return None  # found, and told properly, by every other check
    if steps == [0, 1, 2, 3]:
        return None
    return Misfit(
        f"{type(scheduler).__name__}.num_steps",
        f"is {', '.join(map(str, steps))} after 0 to 3 steps; clocks and deadlines count by it, "
        "one for each schedule()",
        False,
    )


def _overridden(cls: type, base: type) -> Iterator[str]:
    """Yield the names that classes between `cls` and `base` define and `base` has too."""
    for part in cls.__mro__:
        if not issubclass(base, part):
            yield from (name for name in vars(part) if hasattr(base, name) and name not in NOT_COMPARED)


def _static(cls: type, name: str) -> Any:
    return inspect.getattr_static(cls, name, None)


def compare(cls: type, base: type, name: str, fatal: bool, renamed: bool = True) -> Iterator[Misfit]:
    """Hold one attribute against the base's.

    Args:
        cls: the class.
        base: what its callers were written for.
        name: an attribute of `base`.
        fatal: the class cannot be driven without it.
        renamed: parameters of other names are a misfit, not only a warning.
    """
    expected, actual = _static(base, name), _static(cls, name)
    where = f"{owner_of(cls, name).__name__}.{name}"
    if isinstance(expected, property):
        if inspect.isfunction(actual):
            yield Misfit(where, "is a method; in the base it is a property, read without a call", fatal)
        return
    if not callable(getattr(base, name)) or not inspect.isfunction(plain(expected)):
        return
    if actual is None:
        yield Misfit(where, "is missing", fatal)
    elif isinstance(actual, property) or not callable(getattr(cls, name)):
        yield Misfit(where, f"is a {type(actual).__name__}; in the base it is a method, and it is called", fatal)
    elif inspect.iscoroutinefunction(plain(actual)) or inspect.isasyncgenfunction(plain(actual)):
        yield Misfit(where, "is a coroutine function; its callers do not await it", fatal)
    else:
        own_signature, base_signature = bound(actual), bound(expected)
        reason = refused(own_signature, base_signature)
        by_name = None if reason else _cannot_take(own_signature, base_signature, _by_name)
        if renamed:
            reason, by_name = reason or by_name, None
        if reason and name == "schedule":
            yield Misfit(
                where,
                f"missing throttle flag: {reason}; the engine calls schedule(throttle_prefills) with one positional "
                "argument, so take it and hand it on: def schedule(self, throttle_prefills=False)",
                fatal,
            )
        elif reason:
            yield Misfit(where, f"{reason}; take {_shown(name, expected)}, or *args and **kwargs", fatal)
        elif by_name:
            message = f"a call by name fails: its parameters have other names than those of {_shown(name, expected)}"
            yield Misfit(where, message, False, warning=True)


def owner_of(cls: type, name: str) -> type:
    """Return the class of the MRO that has the attribute."""
    return next((part for part in cls.__mro__ if name in vars(part)), cls)


def plain(value: Any) -> Any:
    """Return the function of a static or class method."""
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def bound(value: Any) -> inspect.Signature | None:
    """Return the signature as callers of an instance see it; None: it cannot be known."""
    try:
        signature = inspect.signature(plain(value))
    except (TypeError, ValueError):
        return None
    if isinstance(value, staticmethod):
        return signature
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)


def refused(callee: inspect.Signature | None, expected: inspect.Signature | None) -> str | None:
    """Return why a call in place that `expected` takes cannot be made on `callee`; None: all can, or not known."""
    return _cannot_take(callee, expected, _in_place)


def _cannot_take(callee: inspect.Signature | None, expected: inspect.Signature | None, calls: _Calls) -> str | None:
    """Return why a call that `expected` takes cannot be made on `callee`; None: all can."""
    if callee is None or expected is None:
        return None
    for positional, keywords in calls(expected):
        try:
            callee.bind(*(object() for _ in positional), **dict.fromkeys(keywords))
        except TypeError as error:
            call = ", ".join([*positional, *(f"{name}=..." for name in keywords)])
            return f"it is called with ({call}): {error}"
    return None


def _in_place(signature: inspect.Signature) -> Iterator[tuple[list[str], list[str]]]:
    """Yield calls with as little as possible, and with all in place."""
    in_place, by_name = _parameters(signature)
    required = [p.name for p in in_place if p.default is inspect.Parameter.empty]
    yield required, [p.name for p in by_name if p.default is inspect.Parameter.empty]
    yield [p.name for p in in_place], [p.name for p in by_name]


def _by_name(signature: inspect.Signature) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the call with all by name."""
    in_place, by_name = _parameters(signature)
    first = [p.name for p in in_place if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    yield first, [p.name for p in in_place if p.name not in first] + [p.name for p in by_name]


def _parameters(signature: inspect.Signature) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    kinds = inspect.Parameter
    parameters = list(signature.parameters.values())
    in_place = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    return in_place, [p for p in parameters if p.kind is kinds.KEYWORD_ONLY]


def _constructor(cls: type) -> Iterator[Misfit]:
    """An audit makes the scheduler from (config, policy), an engine from (config)."""
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        return
    for arguments in (("config",), ("config", "policy")):
        try:
            signature.bind(*arguments)
        except TypeError as error:
            yield Misfit(f"{cls.__name__}.__init__", f"it is called with ({', '.join(arguments)}): {error}", True)
            return


def _shown(name: str, function: Callable[..., object]) -> str:
    signature = inspect.signature(plain(function))
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return f"{name}{signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)}"
