"""Attributes of the scheduler and of requests that a class reads and that the installed vLLM no longer has (B31)."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from onbeat_proofs.audit.static.signature import Misfit
from onbeat_proofs.audit.vllm.static.class_text import Method, guarded, methods_of, module_tree, own_parts, parents_of

REQUESTS = frozenset({"request", "req"})
"""Parameters and variables of these names hold requests, upstream and in what is copied from there."""


def read_misfits(cls: type) -> Iterator[Misfit]:
    """Yield attributes that own methods of a class read and that nothing sets.

    What counts as there: everything in the namespace of any class of the MRO, every attribute that their source sets
    on anything, and what the modules of the class's own parts set on anything (`scheduler.extra = ...`).
    """
    own = own_parts(cls)
    trees = {part: _text_of(part) for part in cls.__mro__ if part is not object}
    existing = {*dir(cls), *_declared(cls.__mro__), *_set_in(trees.values())}
    free = any(_sets_by_name(method.tree) for part in own for method in methods_of(part))
    complete = not free and not hasattr(cls, "__getattr__") and all(trees[part] is not None for part in own)
    requests = _of_requests(trees.values())
    tested = {name for part in own for name in _asked(trees[part])}
    for method in (method for part in own for method in methods_of(part)):
        reported = set[tuple[str, str]]()
        for node, name, attribute in _read(method):
            if attribute in tested or (name, attribute) in reported or attribute.startswith("__"):
                continue
            if name == method.self_name and complete and attribute not in existing:
                message = f"reads self.{attribute}, which neither the class nor the installed vLLM sets"
            elif name in REQUESTS and requests is not None and attribute not in requests:
                message = f"reads {name}.{attribute}, which a request of the installed vLLM does not have"
            else:
                continue
            if not guarded(node, parents_of(method.tree)):
                reported.add((name, attribute))
                elsewhere = _set_elsewhere(attribute, method.owner)
                patched = (
                    f"; {elsewhere} of the same package sets one of that name: is that a patch, and is it in force?"
                )
                yield Misfit(method.where, message + (patched if elsewhere else ""), False, warning=bool(elsewhere))


def _sets_by_name(tree: ast.AST) -> bool:
    """Whether a method sets attributes by names that only running it tells: setattr, vars(), __dict__."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "vars"):
            if node.func.id == "vars" or len(node.args) < 2 or not isinstance(node.args[1], ast.Constant):
                return True
        elif isinstance(node, ast.Attribute) and node.attr == "__dict__":
            return True
    return False


def attributes_set(cls: type) -> set[str]:
    """Return the names of attributes that classes of the MRO set on instances."""
    return {*_set_in(_text_of(part) for part in cls.__mro__ if part is not object)}


def _text_of(part: type) -> ast.AST | None:
    """Return the text in which attributes of a class are set: its module's."""
    return module_tree(part.__module__)


def _set_elsewhere(attribute: str, part: type) -> str | None:
    """Return a file of the package of a class that sets an attribute on something; plugins patch vLLM's classes."""
    package = sys.modules.get(part.__module__.partition(".")[0])
    pattern = re.compile(rf"\.{attribute}\s*(:[^=\n]+)?=[^=]")
    for folder in map(Path, getattr(package, "__path__", ())):
        for file in sorted(folder.rglob("*.py")):
            if pattern.search(file.read_text("utf-8", errors="replace")):
                return file.relative_to(folder).as_posix()
    return None


def _declared(mro: Iterable[type]) -> Iterator[str]:
    for part in mro:
        yield from vars(part).get("__annotations__", {})
        slots = vars(part).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _set_in(trees: Iterable[ast.AST | None], of: frozenset[str] | None = None) -> Iterator[str]:
    """Yield attributes that a text sets, on anything or on variables of some names."""
    for node in (node for tree in set(trees) if tree is not None for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if of is None or (isinstance(node.value, ast.Name) and node.value.id in of):
                yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("setattr", "__setattr__"):
            yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


def _asked(tree: ast.AST | None) -> Iterator[str]:
    """Yield attributes that somebody asks for before reading them."""
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("hasattr", "getattr") and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def _of_requests(trees: Iterable[ast.AST | None]) -> set[str] | None:
    """Return what requests of the installed vLLM have; None: it cannot be told."""
    module = sys.modules.get("vllm.v1.request")
    request = getattr(module, "Request", None)
    if not isinstance(request, type) or hasattr(request, "__getattr__"):
        return None
    texts = [_text_of(part) for part in request.__mro__ if part is not object]
    if None in texts:
        return None
    return {*dir(request), *_declared(request.__mro__), *_set_in(texts), *_set_in(trees, REQUESTS)}


def _read(method: Method) -> Iterator[tuple[ast.Attribute, str, str]]:
    """Yield reads of attributes of self and of requests, outside classes inside the method."""
    names = {method.self_name} | (REQUESTS - _others(method))
    todo: list[ast.AST] = list(method.tree.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.ClassDef):
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = node.value.id if isinstance(node.value, ast.Name) else None
            if owner in names and owner is not None:
                yield node, owner, node.attr
        todo += ast.iter_child_nodes(node)


def _others(method: Method) -> set[str]:
    """Return names of requests that hold something else here, by their annotation or by what they are taken from."""
    arguments = method.tree.args
    others = set[str]()
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        if (
            argument.annotation is not None
            and ast.unparse(argument.annotation).strip("'\"").rpartition(".")[2] != "Request"
        ):
            others.add(argument.arg)
    for node in ast.walk(method.tree):
        source: ast.AST | None = None
        if isinstance(node, ast.For | ast.comprehension):
            target, source = node.target, node.iter
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, source = node.targets[0], node.value
        if source is not None and "scheduled_new_reqs" in ast.unparse(source):
            others |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    return others
