"""Small changes of the policy text and of the step, each of which some check has to notice.

A mutant is one function with one change in it, made on its syntax tree. To put it in place, its code object takes the
place of the original's in the function object that everybody has imported; nothing on disk changes. That asks for an
operator that gives trees of single functions, in this process: cosmic-ray gives texts of whole modules (and brings
sqlalchemy, aiohttp and a git client), mutmut runs pytest, and neither drops a conjunct, a guard or a statement.

The operators are those of `operators.py`. Left alone are docstrings, annotations, error texts, assertions, `__repr__`,
what constructors set up (its numbers apart), and tests of the protocol that only raise, but for those of `add_request`.
"""

import ast
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from inspect import getsource
from types import CodeType, FunctionType
from typing import Any

from onbeat_proofs.mutants.operators import Kinds, Signatures, Slot, variants

MODULES = (
    "onbeat_spec.policy",
    "onbeat_spec.cadence",
    "onbeat_spec.balance",
    "onbeat_reference.scheduler",
    "onbeat_reference.pool",
)
"""The policy text, and the step with the pool arithmetic that it decides by."""

_Function = ast.FunctionDef


@dataclass(frozen=True, slots=True, eq=False)
class Mutant:
    """One function with one change.

    Attributes:
        id: file, function, operator, and the text of the change. It stays the same when lines move.
        function: qualified name.
        before: the statement that changes, or what stands at its head.
        place: number of that statement in its function, from 0; see `traced`.
    """

    id: str
    module: str
    function: str
    line: int
    operator: str
    before: str
    after: str
    place: int
    code: CodeType = field(repr=False)
    defaults: tuple[Any, ...] | None = field(repr=False)
    kwdefaults: dict[str, Any] | None = field(repr=False)

    @property
    def file(self) -> str:
        """Path of the module from its import root on."""
        return f"{self.module.replace('.', '/')}.py"

    def install(self) -> None:
        """Put this mutant in place, for the rest of this process."""
        function = function_of(self.module, self.function)
        function.__code__ = self.code
        function.__defaults__, function.__kwdefaults__ = self.defaults, self.kwdefaults


def function_of(module: str, qualname: str) -> FunctionType:
    """Return the function object behind a qualified name, that of a property included."""
    value: Any = import_module(module)
    for name in qualname.split("."):
        value = vars(value)[name]
    function = value.fget if isinstance(value, property) else value
    assert isinstance(function, FunctionType)
    return function


# --- Making them -----------------------------------------------------------------------------------------------------


@cache
def mutants(modules: tuple[str, ...] = MODULES) -> tuple[Mutant, ...]:
    """Return every mutant, in the order of the text."""
    all_mutants: list[Mutant] = []
    for module in modules:
        all_mutants += _of_module(module)
    return tuple(_numbered(all_mutants))


def _numbered(mutants: Sequence[Mutant]) -> Iterator[Mutant]:
    """Tell mutants apart that change the same text in two places of a function."""
    counts: dict[str, int] = {}
    for mutant in mutants:
        count = counts[mutant.id] = counts.get(mutant.id, 0) + 1
        if count > 1:
            object.__setattr__(mutant, "id", f"{mutant.id} #{count}")
        yield mutant


def _of_module(module: str) -> Iterator[Mutant]:
    for qualname, cls, function in functions(module):
        original, texts = function_of(module, qualname), {ast.unparse(function)}
        places = {id(statement): place for place, statement in enumerate(_statements(function))}
        for slot in list(_slots(function)):
            before, line = _head(slot.statement), getattr(slot.node, "lineno", function.lineno)
            for operator, variant in list(variants(slot, function, _signatures())):
                if function.name == "__init__" and operator not in ("constant", "flag"):
                    continue  # an attribute that is missing stops the first call
                slot.put(ast.fix_missing_locations(ast.copy_location(variant, slot.node)))
                text = ast.unparse(function)
                if text not in texts:
                    texts.add(text)
                    code, defaults, kwdefaults = _compiled(module, cls, function)
                    after = "" if slot.node is slot.statement else _head(slot.statement)
                    if slot.node is slot.statement and not isinstance(variant, ast.Pass):
                        after = _head(variant)
                    inside = isinstance(slot.statement, ast.Break | ast.Continue | ast.Return) and len(slot.heads) > 1
                    where = f"{slot.heads[-1]} " if inside else ""
                    if slot.statement is None:
                        before, after = f"{slot.name} {ast.unparse(slot.node)}", ast.unparse(variant)
                    if code.co_freevars == original.__code__.co_freevars:
                        change = f"{where}{before} -> {after or 'nothing'}"
                        yield Mutant(
                            f"{module.rpartition('.')[2]}.py:{qualname}:{operator}: {change}",
                            module,
                            qualname,
                            line,
                            operator,
                            f"{where}{before}",
                            after,
                            places.get(id(slot.statement), 0),
                            code,
                            defaults,
                            kwdefaults,
                        )
                slot.put(slot.node)


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(getsource(import_module(module)))


def functions(module: str) -> Iterator[tuple[str, str | None, _Function]]:
    """Yield every function of a module that may be changed: qualified name, class, tree."""
    for node in _tree(module).body:
        if isinstance(node, _Function):
            yield node.name, None, node
        elif isinstance(node, ast.ClassDef) and not any(ast.unparse(base) == "Protocol" for base in node.bases):
            for inner in node.body:
                if isinstance(inner, _Function) and inner.name != "__repr__":
                    yield f"{node.name}.{inner.name}", node.name, inner


def _compiled(
    module: str, cls: str | None, function: _Function
) -> tuple[CodeType, tuple[Any, ...] | None, dict[str, Any] | None]:
    """Compile one function, as a member of its class; return code and default values."""
    body: ast.stmt = function
    if cls is not None:
        body = ast.ClassDef(name=cls, bases=[], keywords=[], body=[function], decorator_list=[])
        body = ast.copy_location(body, function)
    file = import_module(module).__file__
    assert file is not None
    code = compile(ast.Module(body=[body], type_ignores=[]), file, "exec")
    for name in (cls, function.name) if cls is not None else (function.name,):
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    arguments = function.args
    named = {
        arg.arg: ast.literal_eval(value)
        for arg, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if value is not None
    }
    return code, tuple(ast.literal_eval(value) for value in arguments.defaults) or None, named or None


def _slots(function: _Function) -> Iterator[Slot]:
    """Yield every place in a function where something may change."""
    arguments = function.args
    for name, values in (("defaults", arguments.defaults), ("kw_defaults", arguments.kw_defaults)):
        for index, value in enumerate(values):
            if value is not None:
                yield Slot(arguments, name, index, value, None, (function.name,))
    start = 1 if ast.get_docstring(function, clean=False) is not None else 0
    for index, statement in enumerate(function.body[start:], start):
        yield from _below(Slot(function, "body", index, statement, statement, (function.name,)))


def _below(slot: Slot) -> Iterator[Slot]:
    node = slot.node
    if isinstance(node, ast.Assert | ast.JoinedStr | ast.Raise) or (_refuses(node) and slot.heads[0] != "add_request"):
        return
    yield slot
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "func") and not isinstance(value, ast.Attribute):
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST):
                continue
            where = index if isinstance(value, list) else None
            if isinstance(child, ast.stmt):
                yield from _below(Slot(node, name, where, child, child, (*slot.heads, _head(node))))
            else:
                yield from _below(Slot(node, name, where, child, slot.statement, slot.heads))


def _refuses(node: ast.AST) -> bool:
    """Whether a statement only tells callers that they broke the protocol."""
    return isinstance(node, ast.If) and any(isinstance(inner, ast.Raise) for inner in ast.walk(node))


def _head(node: ast.AST | None) -> str:
    """Return the text of a statement, of a compound one without its blocks."""
    return ast.unparse(node).split(":\n")[0] if node is not None else ""


def _statements(function: _Function) -> Iterator[ast.stmt]:
    for slot in _slots(function):
        if slot.node is slot.statement:
            yield slot.statement


@cache
def _signatures() -> Signatures:
    """Return the annotations of the parameters of every function that is changed here, by its plain name."""
    signatures = {}
    for module in MODULES:
        for _, cls, function in functions(module):
            arguments = function.args
            in_place = tuple(_annotation(argument) for argument in arguments.args[1 if cls is not None else 0 :])
            signatures[function.name] = Kinds(
                in_place, {argument.arg: _annotation(argument) for argument in arguments.kwonlyargs}
            )
    return signatures


def _annotation(argument: ast.arg) -> str:
    return ast.unparse(argument.annotation) if argument.annotation else ""


# --- Which statements a check runs -----------------------------------------------------------------------------------


Ran = tuple[str, str, int]
"""Module, function, and number of a statement."""


def trace(ran: set[Ran]) -> None:
    """From now on, in this process, note every statement that runs in any function that may be changed."""
    for target, code in traced():
        target.__code__ = code
        target.__globals__[_NOTE] = ran.add


@cache
def traced() -> tuple[tuple[FunctionType, CodeType], ...]:
    pairs = []
    for module in MODULES:
        for qualname, cls, function in functions(module):
            copy = deepcopy(function)
            places = {id(statement): place for place, statement in enumerate(_statements(copy))}
            for block in [*_blocks(copy)]:
                block[:] = [noted for statement in block for noted in _noted(statement, places, module, qualname)]
            code = _compiled(module, cls, ast.fix_missing_locations(copy))[0]
            pairs.append((function_of(module, qualname), code))
    return tuple(pairs)


_NOTE = "_note_of_the_mutants"


def _blocks(function: _Function) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _noted(statement: ast.stmt, places: dict[int, int], module: str, qualname: str) -> list[ast.stmt]:
    place = places.get(id(statement))
    if place is None:
        return [statement]
    key = ast.Constant(value=(module, qualname, place))  # type: ignore[arg-type]  # any constant compiles
    note = ast.Expr(value=ast.Call(func=ast.Name(id=_NOTE, ctx=ast.Load()), args=[key], keywords=[]))
    return [ast.copy_location(note, statement), statement]
