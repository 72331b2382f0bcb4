"""Calls that a class makes of what vLLM has: whether the installed vLLM takes them, and gives what they use.

The other half of a half-synchronised copy (public cases B29, B30): a helper that lost a parameter, that returns one
value more, or that returns nothing any more, and a subclass that still calls the old one, perhaps only where some
feature is on.
"""

import ast
import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple

from onbeat_proofs.audit.static.signature import Misfit, bound, plain
from onbeat_proofs.audit.vllm.static.class_text import (
    Method,
    after,
    from_vllm,
    guarded,
    methods_of,
    own_parts,
    parents_of,
    resolve,
    static,
    super_start,
    tree_of,
)
from onbeat_proofs.audit.vllm.static.reads import attributes_set
from onbeat_proofs.audit.vllm.static.returns import returned_by


class _Target(NamedTuple):
    """What a call calls."""

    value: Any
    """As it is written in its class or module."""
    unbound: bool = False
    """The instance is given by the caller."""


def call_misfits(cls: type) -> Iterator[Misfit]:
    """Yield own methods' calls that the installed vLLM does not take, or whose results it does not give."""
    instance, held = attributes_set(cls), held_by(cls)
    for method in (method for part in own_parts(cls) for method in methods_of(part)):
        parents = parents_of(method.tree)
        messages = set[str]()
        for node in ast.walk(method.tree):
            if isinstance(node, ast.Call):
                shown = ast.unparse(node.func)
                target = _target(node.func, method, cls, instance, held)
                message = None if target is None else _wrong(node, shown, target, parents)
                if message and message not in messages and not guarded(node, parents):
                    messages.add(message)
                    yield Misfit(method.where, message, False)


def _target(func: ast.expr, method: Method, cls: type, instance: set[str], held: dict[str, type]) -> _Target | None:
    """Return what is called, where it is vLLM's or the class's own; None: it cannot be told."""
    if not isinstance(func, ast.Attribute):
        value = resolve(func, method.function)
        if inspect.isclass(value) and not inspect.isabstract(value) and any(map(from_vllm, value.__mro__)):
            return _Target(value)
        vllm_function = inspect.isfunction(value) and value.__module__.partition(".")[0] == "vllm"
        return _Target(value) if vllm_function else None
    receiver, name = func.value, func.attr
    if isinstance(receiver, ast.Name) and receiver.id == method.self_name and method.self_name is not None:
        return None if name in instance else _member(static(cls, name))
    start = super_start(receiver, method)
    if start is not None:
        return _member(after(cls, start, name) or _Missing) if start in cls.__mro__ else None
    if isinstance(receiver, ast.Attribute) and isinstance(receiver.value, ast.Name):
        kind = held.get(receiver.attr) if receiver.value.id == method.self_name else None
        return None if kind is None or hasattr(kind, "__getattr__") else _member(static(kind, name))
    owner = resolve(receiver, method.function)
    if isinstance(owner, type) and owner in cls.__mro__:
        return _member(static(owner, name), unbound=True)
    return None


class _Missing:
    """What super() does not have."""


def _member(value: Any, unbound: bool = False) -> _Target | None:
    if value is _Missing:
        return _Target(value)
    return _Target(value, unbound) if inspect.isfunction(plain(value)) else None


def held_by(cls: type, everybody: bool = False) -> dict[str, type]:
    """Return attributes that always hold an instance of one class, and that class.

    Args:
        cls: the class.
        everybody: also those that others than vLLM set.
    """
    kinds: dict[str, set[type | None]] = {}
    for method in (m for part in cls.__mro__ if everybody or from_vllm(part) for m in methods_of(part)):
        for node in ast.walk(method.tree):
            if isinstance(node, ast.Assign):
                constructed = resolve(node.value.func, method.function) if isinstance(node.value, ast.Call) else None
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == method.self_name:
                        kinds.setdefault(target.attr, set()).add(constructed if isinstance(constructed, type) else None)
    return {name: kind for name, (kind, *more) in kinds.items() if kind is not None and not more}


def _wrong(call: ast.Call, shown: str, target: _Target, parents: dict[ast.AST, ast.AST]) -> str | None:
    """Return what is wrong with a call; None: nothing that can be told."""
    if target.value is _Missing:
        return None if shown.endswith(("__init__", "__init_subclass__")) else f"calls {shown}, which no base has"
    reason = _not_taken(call, target)
    if reason is not None:
        return f"calls {_short(call)}: {reason}; the installed vLLM has {_signature(target.value)}"
    function = plain(target.value)
    tree = tree_of(inspect.unwrap(function)) if isinstance(function, FunctionType) else None
    if tree is None or (len(tree.decorator_list) and not isinstance(target.value, staticmethod | classmethod)):
        return None
    returned, parent = returned_by(tree), parents.get(call)
    if isinstance(parent, ast.Assign) and parent.value is call and returned.length is not None:
        targets = {length for node in parent.targets if (length := _values(node)) is not None}
        if targets and targets != {returned.length}:
            return f"takes {min(targets)} values from {shown}(); the installed vLLM's returns {returned.length}"
    if returned.nothing and _nothing(tree.returns) and _used(call, parents):
        return f"uses what {shown}() returns; the installed vLLM's returns nothing, so this is always None"
    return None


def _not_taken(call: ast.Call, target: _Target) -> str | None:
    """Return the TypeError that a call would raise; None: it binds, or cannot be told."""
    try:
        signature = inspect.signature(target.value) if _free(target.value) else bound(target.value)
    except (TypeError, ValueError):
        return None
    if signature is None:
        return None
    starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    arguments = [] if starred else list(call.args)[1 if target.unbound else 0 :]
    keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg is not None}
    partly = starred or len(keywords) < len(call.keywords)
    try:
        (signature.bind_partial if partly else signature.bind)(*arguments, **keywords)
    except TypeError as error:
        return str(error)
    return None


def _free(value: Any) -> bool:
    return isinstance(value, type) or (inspect.isfunction(value) and "." not in value.__qualname__)


def _signature(value: Any) -> str:
    signature = inspect.signature(value) if _free(value) else bound(value)
    name = getattr(plain(value), "__name__", "")
    names = [] if signature is None else [str(p.replace(annotation=p.empty)) for p in signature.parameters.values()]
    return f"{name}({', '.join(names)})"


def _short(call: ast.Call) -> str:
    text = ast.unparse(call)
    return text if len(text) <= 100 else f"{ast.unparse(call.func)}(...)"


def _values(node: ast.expr) -> int | None:
    """Return into how many names a value is taken apart; None: it is not, or into any number."""
    if not isinstance(node, ast.Tuple | ast.List) or any(isinstance(part, ast.Starred) for part in node.elts):
        return None
    return len(node.elts)


def _nothing(annotation: ast.expr | None) -> bool:
    return annotation is None or (isinstance(annotation, ast.Constant) and annotation.value is None)


def _used(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether the value of an expression matters; handing it on as one's own result does not count."""
    parent = parents.get(node)
    if isinstance(parent, ast.BoolOp | ast.IfExp) and not (isinstance(parent, ast.IfExp) and parent.test is node):
        if isinstance(parent, ast.BoolOp) and parent.values[-1] is not node:
            return True
        return _used(parent, parents)
    return not isinstance(parent, ast.Expr | ast.Return | ast.Lambda | ast.Await | ast.Yield) and parent is not None
