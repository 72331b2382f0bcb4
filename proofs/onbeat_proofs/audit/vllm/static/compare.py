"""What a scheduler class of vLLM's family gets wrong beside the installed vLLM, found without running it.

The base is the nearest class of the MRO that is vLLM's own. Compared with it: what overrides take (B25, B26, B30, B31)
and return (B29), what becomes of the throttle flag, which attributes and helpers the class still counts on, whether it
fits the engine's mode (B32), and whose loop it copied (B34, B36).
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from typing import Any

from onbeat_proofs.audit.static.signature import NOT_COMPARED, Misfit, bound, compare, owner_of, plain
from onbeat_proofs.audit.vllm.static.annotations import callback_misfits, shape_misfits
from onbeat_proofs.audit.vllm.static.calls import call_misfits
from onbeat_proofs.audit.vllm.static.class_text import (
    Method,
    from_vllm,
    methods_of,
    module_tree,
    own_parts,
    static,
    tree_of,
)
from onbeat_proofs.audit.vllm.static.copied import LOOPS, copy_misfits
from onbeat_proofs.audit.vllm.static.flag import base_calls, flag_misfits
from onbeat_proofs.audit.vllm.static.patches import patch_misfits
from onbeat_proofs.audit.vllm.static.reads import read_misfits
from onbeat_proofs.audit.vllm.static.returns import return_misfits
from onbeat_spec.errors import NotAScheduler

ENGINE = frozenset({"schedule", "update_from_output", "add_request", "finish_requests"})
"""Without these nothing runs."""
CONSTRUCTED = (
    *("vllm_config", "kv_cache_config", "structured_output_manager"),
    *("include_finished_set", "log_stats", "block_size", "hash_block_size"),
)
"""What the engine gives the constructor, by name, where the installed base knows it."""
_INTERFACE = "vllm.v1.core.sched.interface"
_SCHEDULER = "vllm.v1.core.sched.scheduler"
_CONFIG = "vllm.config.scheduler"


def misfits_of_vllm(cls: type) -> list[Misfit]:
    """Compare a class with the installed vLLM's, in whose environment this runs.

    Args:
        cls: a subclass of any scheduler class of vLLM, or one that only has its interface.

    Returns:
        Faults and warnings, in the order of the checks; the stock classes have no fault.

    Raises:
        NotAScheduler: the class has no base in vLLM, and vLLM's interface is not loaded either.
    """
    base = installed_base(cls)
    misfits = [*_abstract(cls), *_constructor(cls, base)]
    for name in _overridden(cls):
        expected = static(base, name)
        if expected is not None and static(cls, name) is not expected:
            misfits += _taken(cls, base, name)
    for method in (method for part in own_parts(cls) for method in methods_of(part)):
        misfits += _text(method, cls)
    misfits += [*call_misfits(cls), *callback_misfits(cls), *patch_misfits(cls), *read_misfits(cls), *_mode(cls)]
    return list(dict.fromkeys(misfits))


def installed_base(cls: type) -> type:
    """Return the class of the installed vLLM that another stands in for.

    Raises:
        NotAScheduler: there is none.
    """
    base = next((part for part in cls.__mro__ if from_vllm(part)), None)
    if base is None:
        base = getattr(sys.modules.get(_INTERFACE), "SchedulerInterface", None)
    if base is None:
        raise NotAScheduler(
            f"{cls.__module__}.{cls.__qualname__} has no base in vLLM, and vLLM's scheduler interface is not loaded; "
            "derive from it, or import vllm first"
        )
    return base


def _overridden(cls: type) -> Iterator[str]:
    """Yield the names that own parts of a class define."""
    names = (name for part in own_parts(cls) for name in vars(part) if name not in NOT_COMPARED)
    yield from dict.fromkeys(names)


def _abstract(cls: type) -> Iterator[Misfit]:
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        yield Misfit(cls.__name__, f"is abstract: the installed vLLM also wants {missing}", True)


def _constructor(cls: type, base: type) -> Iterator[Misfit]:
    """The engine makes a scheduler with arguments by name."""
    chain = [*cls.__mro__, *base.__mro__]
    named = next((vars(p)["__init__"] for p in chain if from_vllm(p) and _known(vars(p).get("__init__"))), None)
    signature = bound(static(cls, "__init__")) if inspect.isfunction(static(cls, "__init__")) else None
    if named is None or signature is None:
        return
    names = [name for name in CONSTRUCTED if name in inspect.signature(named).parameters]
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        where = f"{owner_of(cls, '__init__').__name__}.__init__"
        yield Misfit(where, f"the engine calls it with ({', '.join(f'{name}=...' for name in names)}): {error}", True)


def _known(value: Any) -> bool:
    """Whether a constructor names its parameters."""
    return inspect.isfunction(value) and "vllm_config" in inspect.signature(value).parameters


# --- What overrides take ---------------------------------------------------------------------------------------------


def _taken(cls: type, base: type, name: str) -> Iterator[Misfit]:
    """Compare what an override takes with what the base takes, and with how the base itself calls it."""
    signature = bound(static(cls, name)) if inspect.isfunction(plain(static(cls, name))) else None
    if signature is not None:
        takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        for keyword, caller in _keywords(base, name):
            if not takes_any and keyword not in signature.parameters:
                where = f"{owner_of(cls, name).__name__}.{name}"
                yield Misfit(
                    where,
                    f"does not take {keyword}=, with which {caller} of the installed vLLM calls it",
                    name in ENGINE,
                )
                return
    yield from compare(cls, base, name, name in ENGINE, renamed=False)


def _keywords(base: type, name: str) -> Iterator[tuple[str, str]]:
    """Yield keywords that methods of the base give when they call `self.name`, and those methods."""
    for method in (method for part in base.__mro__ if from_vllm(part) for method in methods_of(part)):
        for node in ast.walk(method.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == f"{method.self_name}.{name}":
                yield from ((keyword.arg, method.where) for keyword in node.keywords if keyword.arg)


# --- What their text says --------------------------------------------------------------------------------------------


def _text(method: Method, cls: type) -> Iterator[Misfit]:
    """Check one method of the class by its text, beside the method of the installed base that it overrides."""
    base = _overridden_method(method, cls)
    if base is None:
        return
    if method.name == "schedule":
        yield from flag_misfits(method, cls.__mro__)
    yield from list(return_misfits(method, base)) or shape_misfits(method, base)
    if method.name in LOOPS and not list(base_calls(method, cls.__mro__)):
        yield from copy_misfits(method, base)


def _overridden_method(method: Method, cls: type) -> Method | None:
    """Return vLLM's method of the same name that has a body; one of the interface if no other has."""
    interface = None
    for part in [*cls.__mro__, *installed_base(cls).__mro__]:
        value = vars(part).get(method.name)
        function = inspect.unwrap(plain(value)) if from_vllm(part) and inspect.isfunction(plain(value)) else None
        tree = None if function is None else tree_of(function)
        if function is None or tree is None:
            continue
        overridden = Method(part, method.name, function, tree)
        if not getattr(value, "__isabstractmethod__", False):
            return overridden
        interface = interface or overridden
    return interface


# --- The engine's mode -----------------------------------------------------------------------------------------------


def _mode(cls: type) -> Iterator[Misfit]:
    """Warn of a synchronous class where the engine overlaps steps by default (B32)."""
    scheduler = getattr(sys.modules.get(_SCHEDULER), "Scheduler", None)
    names = {part.__name__ for part in cls.__mro__ if from_vllm(part)}
    if from_vllm(cls) or scheduler is None or not issubclass(cls, scheduler) or "AsyncScheduler" in names:
        return
    reason = _default_mode()
    if reason is not None:
        yield Misfit(
            cls.__name__,
            f"class is sync, engine expects async: {reason}; derive from AsyncScheduler, or turn it off",
            False,
            warning=True,
        )


def _default_mode() -> str | None:
    """Say what the installed vLLM does when nobody chooses; None: it is synchronous, or that cannot be told."""
    tree = module_tree(_CONFIG)
    fields = (node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)) if tree is not None else ()
    defaults = (field.value for field in fields if ast.unparse(field.target) == "async_scheduling")
    default = next((ast.unparse(value) for value in defaults if value is not None), None)
    vllm = f"the installed vLLM {getattr(sys.modules.get('vllm'), '__version__', '')}".rstrip()
    if default == "None":
        return f"async scheduling of {vllm} is on unless something rules it out"
    return f"async scheduling of {vllm} is on by default" if default == "True" else None
