"""The operators of the mutants: what may stand in a place of a syntax tree instead of what stands there."""

import ast
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple, TypeGuard


class Kinds(NamedTuple):
    """The annotations of a function's parameters."""

    in_place: tuple[str, ...]
    by_name: Mapping[str, str]
    """Of those that are given by name only."""


Signatures = Mapping[str, Kinds]
"""By a function's plain name."""

_BOUNDARY: dict[type, type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_OPPOSITE: dict[type, type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OTHER_SIGN: dict[type, type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
_OTHER_CALL = {"any": "all", "all": "any"}


class Slot(NamedTuple):
    """Where a node hangs, and the statement around it."""

    parent: ast.AST
    name: str
    position: int | None
    node: ast.AST
    statement: ast.stmt | None
    heads: tuple[str, ...]
    """What stands at the heads of the blocks around the statement."""

    def put(self, node: ast.AST) -> None:
        if self.position is None:
            setattr(self.parent, self.name, node)
        else:
            getattr(self.parent, self.name)[self.position] = node


def variants(slot: Slot, function: ast.FunctionDef, signatures: Signatures) -> Iterator[tuple[str, ast.AST]]:
    """Yield what may stand in a place instead, each with the name of the operator.

    Args:
        slot: the place.
        function: the function around it.
        signatures: of the functions whose arguments may be exchanged.
    """
    node = slot.node
    if slot.name in ("test", "ifs") and not _is_guard(slot.parent):
        yield "negate", _negation(node)
    match node:
        case ast.BoolOp():
            for index in range(len(node.values)):
                rest = node.values[:index] + node.values[index + 1 :]
                yield "drop", rest[0] if len(rest) == 1 else ast.BoolOp(op=node.op, values=rest)
        case ast.Compare(ops=[op]) if type(op) in _BOUNDARY:
            yield "boundary", ast.Compare(left=node.left, ops=[_BOUNDARY[type(op)]()], comparators=node.comparators)
        case ast.Compare(ops=[op, *_]) if len(node.ops) > 1:
            for index, comparison in enumerate(node.ops):
                ops = [*node.ops[:index], _BOUNDARY[type(comparison)](), *node.ops[index + 1 :]]
                yield "boundary", ast.Compare(left=node.left, ops=ops, comparators=node.comparators)
        case ast.Constant(value=bool(value)):
            yield "flag", ast.Constant(value=not value)
        case ast.Constant(value=int(value)) if not isinstance(slot.parent, ast.AugAssign | ast.UnaryOp):
            yield "constant", ast.Constant(value=value + 1)
            if value > 0:
                yield "constant", ast.Constant(value=value - 1)
        case ast.BinOp(op=op) if type(op) in _OTHER_SIGN:
            yield "sign", ast.BinOp(left=node.left, op=_OTHER_SIGN[type(op)](), right=node.right)
        case ast.IfExp():
            yield "side", node.body
            yield "side", node.orelse
        case ast.Call():
            yield from _calls(node, signatures)
        case ast.Return(value=ast.expr() as value) if function.returns is not None:
            if ast.unparse(function.returns) == "bool" and not isinstance(value, ast.Constant):
                yield "answer", ast.Return(value=ast.Constant(value=True))
                yield "answer", ast.Return(value=ast.Constant(value=False))
        case ast.Break():
            yield "loop", ast.Continue()
        case ast.Continue():
            yield "loop", ast.Break()
    if isinstance(node, ast.stmt) and _may_go(node, function):
        yield "delete", ast.Pass()


def _calls(node: ast.Call, signatures: Signatures) -> Iterator[tuple[str, ast.AST]]:
    """Vary a call: another victim, one bound less, two arguments of a kind exchanged."""
    name = ast.unparse(node.func).rpartition(".")[2]
    if name in ("min", "max") and len(node.args) > 1:
        for index in range(len(node.args)):
            rest = node.args[:index] + node.args[index + 1 :]
            yield "unbound", rest[0] if len(rest) == 1 else ast.Call(func=node.func, args=rest, keywords=[])
    elif name == "reversed":
        yield "order", node.args[0]
    elif name in _OTHER_CALL:
        yield "quantify", ast.Call(func=ast.Name(id=_OTHER_CALL[name], ctx=ast.Load()), args=node.args, keywords=[])
    if name in signatures:
        yield from (("exchange", call) for call in _exchanged(node, signatures[name]))


def _exchanged(node: ast.Call, kinds: Kinds) -> Iterator[ast.Call]:
    """Yield a call with two arguments of a kind exchanged, whether they are given in place or by name."""
    arguments = [*zip(kinds.in_place, node.args, strict=False)]
    arguments += [
        (kinds.by_name[k.arg], k.value) for k in node.keywords if k.arg is not None and k.arg in kinds.by_name
    ]
    for (kind, one), (other_kind, other) in combinations(arguments, 2):
        if kind == other_kind and ast.unparse(one) != ast.unparse(other):
            instead = {id(one): other, id(other): one}
            yield ast.Call(
                func=node.func,
                args=[instead.get(id(value), value) for value in node.args],
                keywords=[ast.keyword(arg=k.arg, value=instead.get(id(k.value), k.value)) for k in node.keywords],
            )


def _negation(node: ast.AST) -> ast.AST:
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Compare(ops=[op]):
            return ast.Compare(left=node.left, ops=[_OPPOSITE[type(op)]()], comparators=node.comparators)
    assert isinstance(node, ast.expr)
    return ast.UnaryOp(op=ast.Not(), operand=node)


def _may_go(statement: ast.stmt, function: ast.FunctionDef) -> bool:
    """Whether a statement can be deleted without leaving a name undefined, or nothing but a `pass`."""
    match statement:
        case ast.AugAssign() | ast.Delete() | ast.Break() | ast.Continue():
            return True
        case ast.Expr(value=ast.Call()):
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() | ast.Tuple(elts=[ast.Attribute(), *_])]):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return _is_set_before(name, statement, function)
    return _is_guard(statement) and not isinstance(statement.body[0], ast.Break | ast.Continue)


def _is_guard(node: ast.AST) -> TypeGuard[ast.If]:
    """Whether a statement only leaves under a condition; without it nothing does."""
    match node:
        case ast.If(body=[ast.Return() | ast.Raise() | ast.Break() | ast.Continue()], orelse=[]):
            return True
    return False


def _is_set_before(name: str, statement: ast.stmt, function: ast.FunctionDef) -> bool:
    """Whether a name is a parameter, or set at the top of the function or of the loop around, before a statement."""
    if any(argument.arg == name for argument in (*function.args.args, *function.args.kwonlyargs)):
        return True
    blocks = [function.body, *(node.body for node in ast.walk(function) if isinstance(node, ast.For))]
    for block in blocks:
        inside = next((i for i, top in enumerate(block) if statement in ast.walk(top)), 0)
        for top in block[:inside]:
            targets = top.targets if isinstance(top, ast.Assign) else []
            if any(isinstance(n, ast.Name) and n.id == name for target in targets for n in ast.walk(target)):
                return True
    return False
