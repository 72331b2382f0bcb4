"""What a method gives back, as far as its text tells: nothing, sometimes nothing, or a tuple of a length (case B29)."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from onbeat_proofs.audit.static.signature import Misfit
from onbeat_proofs.audit.vllm.static.class_text import Def, Method, own_nodes, unquoted

LEAVING = ("exit", "abort", "fail", "raise", "error", "unreachable", "assert_never")
"""Words in the name of a function that may never come back."""


class Returned(NamedTuple):
    """What the text of a function says about its results."""

    stub: bool
    """Nothing is said: the body is empty, or only raises."""
    nothing: bool
    """It never returns a value."""
    always: bool
    """It returns a value, other than None, wherever it ends."""
    length: int | None
    """The length of the tuples it returns, where that is one number; no tuple, or no one number: None."""


def returned_by(tree: Def) -> Returned:
    """Read a function's returns; its annotation counts where it says more."""
    nodes = list(own_nodes(tree))
    values = [node.value for node in nodes if isinstance(node, ast.Return)]
    returned = [value for value in values if value is not None and not _is_none(value)]
    generates = isinstance(tree, ast.AsyncFunctionDef) or any(isinstance(n, ast.Yield | ast.YieldFrom) for n in nodes)
    stub = not returned and (generates or _says_nothing(tree))
    annotated = _annotated_length(tree.returns)
    lengths = {_length(value) for value in returned}
    return Returned(
        stub=stub,
        nothing=not returned and not stub,
        always=bool(returned) and len(returned) == len(values) and _ends(tree.body) and not _optional(tree.returns),
        length=annotated if annotated is not None else next(iter(lengths)) if len(lengths) == 1 else None,
    )


def return_misfits(method: Method, base: Method) -> Iterator[Misfit]:
    """Compare what an override returns with what the method of the installed base returns."""
    ours, theirs = returned_by(method.tree), returned_by(base.tree)
    expected = _expected(base)
    if ours.stub or theirs.nothing or (theirs.stub and not _promises(base.tree.returns)):
        return
    if ours.nothing:
        yield Misfit(method.where, f"returns nothing; {expected}, and its callers use that", False)
        return
    if (theirs.always or (theirs.stub and not _optional(base.tree.returns))) and not _always(method.tree):
        yield Misfit(method.where, f"may end without a value; {expected}, wherever it ends", False)
    if theirs.length is None and _single(base.tree.returns) and ours.length is not None:
        yield Misfit(method.where, f"returns a tuple of {ours.length}; {expected}", False)
    literals = {_length(node.value) for node in own_nodes(method.tree) if isinstance(node, ast.Return) and node.value}
    wrong = sorted(length for length in literals if length is not None and length != theirs.length)
    if theirs.length is not None and wrong:
        yield Misfit(
            method.where,
            f"returns {' or '.join(map(str, wrong))} values; {base.where} of the installed vLLM {theirs.length}",
            False,
        )


def _expected(base: Method) -> str:
    shape = f" ({ast.unparse(base.tree.returns)})" if base.tree.returns is not None else ""
    return f"{base.where} of the installed vLLM returns a value{shape}"


def _always(tree: Def) -> bool:
    values = [node.value for node in own_nodes(tree) if isinstance(node, ast.Return)]
    return _ends(tree.body) and not any(value is None or _is_none(value) for value in values)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _length(node: ast.expr | None) -> int | None:
    if not isinstance(node, ast.Tuple) or any(isinstance(part, ast.Starred) for part in node.elts):
        return None
    return len(node.elts)


def _annotated_length(node: ast.expr | None) -> int | None:
    node = None if node is None else unquoted(node)
    if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)):
        return None
    parts = node.slice.elts
    endless = any(isinstance(part, ast.Constant) and part.value is ... for part in parts)
    return None if endless or ast.unparse(node.value).lower().rpartition(".")[2] != "tuple" else len(parts)


def _promises(annotation: ast.expr | None) -> bool:
    """Whether an annotation promises a value."""
    return annotation is not None and not _is_none(annotation)


def _optional(annotation: ast.expr | None) -> bool:
    if annotation is None:
        return False
    text = ast.unparse(annotation)
    return "None" in text.split("[")[0] or text.endswith("| None") or "Optional" in text or "Any" in text.split("[")[0]


def _single(annotation: ast.expr | None) -> bool:
    """Whether an annotation promises one plain value: no tuple, and nothing that a tuple could be."""
    if annotation is None:
        return False
    heads = ast.unparse(annotation).strip("'\"").replace(" ", "").split("|")
    return {head.partition("[")[0] for head in heads} <= {"bool", "int", "float", "str", "dict", "list", "set", "None"}


def _says_nothing(tree: Def) -> bool:
    body = [node for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    return all(isinstance(node, ast.Pass | ast.Raise) for node in body)


def _ends(body: list[ast.stmt]) -> bool:
    """Whether a block never runs past its end, as far as can be told; in doubt it does not."""
    if not body:
        return False
    match body[-1]:
        case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
            return True
        case ast.If(body=then, orelse=otherwise):
            return _ends(then) and _ends(otherwise)
        case ast.With(body=inner) | ast.AsyncWith(body=inner):
            return _ends(inner)
        case ast.While(test=ast.Constant(value=value)) if value:
            return True
        case ast.Try(body=inner, handlers=handlers, orelse=otherwise, finalbody=final):
            tried = _ends(otherwise) if otherwise else _ends(inner)
            return _ends(final) or (tried and all(_ends(handler.body) for handler in handlers))
        case ast.Match():
            return True  # whether its cases are all there are cannot be told here
        case ast.Assert(test=ast.Constant(value=False)):
            return True
        case ast.Expr(value=ast.Call(func=called)):
            return any(word in ast.unparse(called).lower() for word in LEAVING)
    return False
