"""The source of a class of vLLM's family: whose parts are whose, what a method's text says, what a name in it means.

Nothing here runs the class, and what has no source is left alone.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from onbeat_proofs.audit.static.signature import plain

Def = ast.FunctionDef | ast.AsyncFunctionDef
BROAD = {"TypeError", "AttributeError", "Exception", "BaseException", "NotImplementedError"}
ADAPTIVE = ("hasattr", "getattr", "signature", "version", "VERSION")
"""Words in a condition that tell one release of vLLM from another."""


class Method(NamedTuple):
    """A method that somebody wrote, and its text."""

    owner: type
    name: str
    function: Any
    """A plain function; mypy would bind it, were it told."""
    tree: Def

    @property
    def where(self) -> str:
        """Class and method, as misfits give it."""
        return f"{self.owner.__name__}.{self.name}"

    @property
    def self_name(self) -> str | None:
        """What the method calls the scheduler; None: it has none (a static or class method)."""
        if isinstance(vars(self.owner).get(self.name), staticmethod | classmethod):
            return None
        arguments = [*self.tree.args.posonlyargs, *self.tree.args.args]
        return arguments[0].arg if arguments else None


def from_vllm(part: type) -> bool:
    """Whether a class is vLLM's own."""
    return part.__module__.partition(".")[0] == "vllm"


def own_parts(cls: type) -> list[type]:
    """Return the classes of the MRO that are somebody else's than vLLM's or Python's, nearest first."""
    return [
        part
        for part in cls.__mro__
        if not from_vllm(part) and part.__module__.partition(".")[0] not in sys.stdlib_module_names
    ]


def methods_of(part: type) -> Iterator[Method]:
    """Yield the methods (and property getters) that a class itself defines and that have source."""
    for name, value in vars(part).items():
        function = inspect.unwrap(value.fget) if isinstance(value, property) and value.fget else plain(value)
        if inspect.isfunction(function) and (tree := tree_of(function)) is not None:
            yield Method(part, name, function, tree)


@cache
def tree_of(function: FunctionType) -> Def | None:
    """Return the text of a function; None: there is none."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    node = tree.body[0] if tree.body else None
    return node if isinstance(node, Def) else None


def module_tree(name: str) -> ast.Module | None:
    """Return the text of a module that is loaded; None: there is none."""
    module = sys.modules.get(name)
    return None if module is None else _text(module)


@cache
def _text(module: ModuleType) -> ast.Module | None:
    try:
        return ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return None


def static(cls: type, name: str) -> Any:
    """Return an attribute of a class as it is written there; None: it has none."""
    return inspect.getattr_static(cls, name, None)


def after(cls: type, part: type, name: str) -> Any:
    """Return what `super().name` is for an instance of `cls` in a method of `part`; None: nothing."""
    mro = cls.__mro__
    following = mro[mro.index(part) + 1 :]
    return next((vars(other)[name] for other in following if name in vars(other)), None)


def resolve(node: ast.AST, function: FunctionType) -> Any:
    """Return what a dotted name means in a function; None: it cannot be told."""
    if isinstance(node, ast.Attribute):
        owner = resolve(node.value, function)
        return inspect.getattr_static(owner, node.attr, None) if inspect.ismodule(owner) else None
    if not isinstance(node, ast.Name) or node.id in function.__code__.co_varnames:
        return None
    if node.id in function.__code__.co_freevars:
        return _cell(function, node.id)
    return function.__globals__.get(node.id)


def _cell(function: FunctionType, name: str) -> Any:
    cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None


def super_start(node: ast.AST, method: Method) -> type | None:
    """Return the class after which `super()` or `super(X, self)` looks; None: the node is no such call."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"):
        return None
    if not node.args:
        return method.owner
    start = resolve(node.args[0], method.function)
    return start if isinstance(start, type) else None


def parents_of(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    """Return each node's parent."""
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def guarded(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a node only runs where somebody asked for the version first, or is ready for it to fail."""
    child = node
    while child in parents:
        parent = parents[child]
        if isinstance(parent, ast.Try) and child in parent.body and any(map(_broad, parent.handlers)):
            return True
        if isinstance(parent, ast.If | ast.IfExp | ast.While) and child is not parent.test and adaptive(parent.test):
            return True
        if isinstance(parent, ast.BoolOp) and any(adaptive(value) for value in parent.values):
            return True
        if _after_a_question(child, parent):
            return True
        child = parent
    return False


def _after_a_question(node: ast.AST, parent: ast.AST) -> bool:
    """Whether a statement is only reached by one answer to a question for the version: the other one ends before it."""
    for _, block in ast.iter_fields(parent):
        if isinstance(block, list) and node in block:
            before = [each for each in block[: block.index(node)] if isinstance(each, ast.If) and adaptive(each.test)]
            return any(_ends(each.body) or _ends(each.orelse) for each in before)
    return False


def _ends(block: list[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def adaptive(test: ast.AST) -> bool:
    """Whether a condition asks which release of vLLM it meets."""
    text = ast.unparse(test)
    return any(word in text for word in ADAPTIVE)


def _broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(node, ast.Name) and node.id in BROAD for node in types)


def own_nodes(tree: Def) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of functions and classes inside it."""
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


def unquoted(annotation: ast.expr) -> ast.expr:
    """Return an annotation; the expression in it, if it is written as a text."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation
