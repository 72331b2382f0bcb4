"""What annotations say of a result's shape: of an override or a callback, and of the installed method."""

import ast
import inspect
from collections.abc import Iterator
from typing import Any

from onbeat_proofs.audit.static.signature import Misfit, plain
from onbeat_proofs.audit.vllm.static.calls import held_by
from onbeat_proofs.audit.vllm.static.class_text import (
    Def,
    Method,
    after,
    from_vllm,
    methods_of,
    own_parts,
    static,
    super_start,
    tree_of,
    unquoted,
)

MANY = {"list", "set", "frozenset", "Sequence", "Iterable", "Iterator", "Collection"}
MAPS = {"dict", "Mapping", "MutableMapping", "defaultdict"}
PLAIN = {"bool", "int", "float", "str", "bytes"}


def shape_misfits(method: Method, base: Method) -> Iterator[Misfit]:
    """Compare the result that an override promises with the one that the installed base promises."""
    if _differ(method.tree.returns, base.tree.returns):
        yield Misfit(
            method.where,
            f"returns {_shown(method.tree)}; {base.where} of the installed vLLM {_shown(base.tree)}",
            False,
        )


def callback_misfits(cls: type) -> Iterator[Misfit]:
    """Yield methods of vLLM that the class hands to helpers of its own, which expect another result of them."""
    held = held_by(cls, everybody=True)
    for method in (method for part in own_parts(cls) for method in methods_of(part)):
        for call in (node for node in ast.walk(method.tree) if isinstance(node, ast.Call)):
            callee = _callee(call.func, method, cls, held)
            for expected, argument in () if callee is None else _handed(call, callee):
                handed = _vllm_method(argument, method, cls)
                if handed is not None and _differ(_result(expected), handed.returns):
                    call_text = f"hands {ast.unparse(argument)} to {ast.unparse(call.func)}(), which expects of it"
                    installed = f"the installed vLLM's returns {_shown(handed)}"
                    yield Misfit(
                        method.where, f"{call_text} {ast.unparse(_result(expected) or expected)}; {installed}", False
                    )


def _callee(func: ast.expr, method: Method, cls: type, held: dict[str, type]) -> Def | None:
    """Return the text of self.helper or self.held.helper."""
    if not isinstance(func, ast.Attribute):
        return None
    match func.value:
        case ast.Name(id=name) if name == method.self_name:
            owner: type | None = cls
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == method.self_name:
            owner = held.get(attribute)
        case _:
            return None
    return None if owner is None else _text(static(owner, func.attr))


def _handed(call: ast.Call, callee: Def) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield annotations of parameters and what is given for them."""
    parameters = [*callee.args.posonlyargs, *callee.args.args][1:]
    by_name = {parameter.arg: parameter for parameter in [*parameters, *callee.args.kwonlyargs]}
    pairs = [(parameter, value) for parameter, value in zip(parameters, call.args, strict=False)]
    pairs += [(by_name[k.arg], k.value) for k in call.keywords if k.arg in by_name]
    for parameter, value in pairs:
        if parameter.annotation is not None:
            yield parameter.annotation, value


def _vllm_method(node: ast.expr, method: Method, cls: type) -> Def | None:
    """Return the text of super().m or self.m, where that is vLLM's; not of its call."""
    if not isinstance(node, ast.Attribute):
        return None
    start = super_start(node.value, method)
    if start is not None and start in cls.__mro__:
        value = after(cls, start, node.attr)
    elif isinstance(node.value, ast.Name) and node.value.id == method.self_name:
        value = static(cls, node.attr)
    else:
        return None
    ours = any(node.attr in vars(part) and vars(part)[node.attr] is value for part in cls.__mro__ if from_vllm(part))
    return _text(value) if ours else None


def _text(value: Any) -> Def | None:
    function = plain(value)
    return tree_of(inspect.unwrap(function)) if inspect.isfunction(function) else None


def _result(annotation: ast.expr) -> ast.expr | None:
    """Return R of Callable[[...], R]."""
    node = unquoted(annotation)
    if isinstance(node, ast.Subscript) and _head(node) == "Callable" and isinstance(node.slice, ast.Tuple):
        return node.slice.elts[-1]
    return None


def _differ(first: ast.expr | None, second: ast.expr | None) -> bool:
    """Whether two annotations cannot both be true of one value. In doubt they can."""
    one, other = _shape(first), _shape(second)
    if one is None or other is None:
        return False
    (kind, parts), (other_kind, other_parts) = one, other
    if kind != other_kind:
        return True
    if kind == "tuple":
        return len(parts) != len(other_parts) or any(map(_differ, parts, other_parts))
    return kind == "many" and any(map(_differ, parts, other_parts))


def _shape(annotation: ast.expr | None) -> tuple[str, list[ast.expr]] | None:
    """Return whether a value is a tuple, many, a mapping or one thing, and the annotations of its parts."""
    node = None if annotation is None else unquoted(annotation)
    if isinstance(node, ast.Name) and node.id in PLAIN | {"Request"}:
        return "one", []
    if not isinstance(node, ast.Subscript):
        return None
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    head = _head(node)
    if head in ("tuple", "Tuple"):
        endless = any(isinstance(part, ast.Constant) and part.value is ... for part in parts)
        return None if endless else ("tuple", parts)
    if head in MANY:
        return "many", parts
    return ("map", []) if head in MAPS else None


def _head(node: ast.Subscript) -> str:
    return ast.unparse(node.value).rpartition(".")[2]


def _shown(tree: Def) -> str:
    return "nothing" if tree.returns is None else ast.unparse(tree.returns)
