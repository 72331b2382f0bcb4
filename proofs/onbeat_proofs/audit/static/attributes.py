"""Attributes that a class reads and nobody sets (public case B31), found in its source."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

from onbeat_reference import Request, Scheduler
from onbeat_spec.config import Config
from onbeat_spec.records import Step

REQUESTS = frozenset({"request", "req", "victim", "candidate"})
"""Parameters and variables of these names hold requests, as in the reference."""
STEPS = frozenset({"step"})


@cache
def _of_requests() -> frozenset[str]:
    return frozenset(dir(Request))


def missing_attributes(cls: type, base: type = Scheduler) -> Iterator[tuple[str, str]]:
    """Yield place and message for every attribute that methods of `cls`, not of `base`, read and that does not exist.

    Only what can be told without running is told: attributes of `self`, of requests and of steps by their usual names,
    in classes whose source is at hand. A class that answers for unknown attributes (`__getattr__`) is left alone.
    """
    if hasattr(cls, "__getattr__"):
        return
    own = [part for part in cls.__mro__ if not issubclass(base, part)]
    trees = [(part, tree) for part in own if (tree := _source(part)) is not None]
    existing = {*dir(cls), *_instance(base), *(name for _, tree in trees for name in _assigned(tree))}
    if len(trees) < len(own):
        return
    for part, tree in trees:
        for method in tree.body:
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for name, attribute in sorted(_read(method)):
                where = f"{part.__name__}.{method.name}"
                if name == "self" and attribute not in existing:
                    yield where, f"reads self.{attribute}, which neither the class nor its base has"
                elif name in REQUESTS and attribute not in _of_requests():
                    yield where, f"reads {name}.{attribute}, which a request does not have"
                elif name in STEPS and not hasattr(Step, attribute):
                    yield where, f"reads {name}.{attribute}, which the record of a step does not have"


def _instance(base: type) -> list[str]:
    """The attributes that the base's constructor sets."""
    with suppress(Exception):
        scheduler: Any = base(Config())
        return list(vars(scheduler))
    return []


def _source(cls: type) -> ast.ClassDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return None
    return next((node for node in tree.body if isinstance(node, ast.ClassDef)), None)


def _assigned(tree: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _name(node) == "self":
            yield node.attr


def _read(method: ast.AST) -> set[tuple[str, str]]:
    return {
        (name, node.attr)
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and (name := _name(node)) is not None
    }


def _name(node: ast.Attribute) -> str | None:
    return node.value.id if isinstance(node.value, ast.Name) else None
