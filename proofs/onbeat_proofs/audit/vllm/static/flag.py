"""Whether an override of schedule() hands its throttle flag on, as it came (public cases B25, B26)."""

import ast
from collections.abc import Iterator

from onbeat_proofs.audit.static.signature import Misfit
from onbeat_proofs.audit.vllm.static.class_text import Method, guarded, parents_of, resolve, super_start

FLAG = "throttle_prefills"
"""What the flag is called upstream, in all versions that have it."""


def flag_misfits(method: Method, mro: tuple[type, ...]) -> Iterator[Misfit]:
    """Yield where an override of schedule() drops its flag or changes it; one that takes none is told elsewhere."""
    arguments = method.tree.args
    in_place = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]][1:]
    name, var = next(iter(in_place), None), arguments.vararg.arg if arguments.vararg else None
    if (name is None and var is None) or _reads_all(method.tree):
        return
    calls = list(base_calls(method, mro))
    constants = {values[0].value for _, values in calls if values and isinstance(values[0], ast.Constant)}
    if constants >= {True, False} and _used(method.tree, {name, var}):
        return  # one call for each value
    parents = parents_of(method.tree)
    for call, values in calls:
        if guarded(call, parents):
            continue  # another branch may be the one for the installed release
        problem = _told(call, values, name, var, method)
        if problem is not None:
            yield Misfit(method.where, problem[0], False, warning=problem[1])
            return
    if not calls and not _stub(method) and not _used(method.tree, {name, var}):
        yield Misfit(
            method.where, f"throttle flag is swallowed: it takes {name or '*' + str(var)} and never uses it", False
        )


def base_calls(method: Method, mro: tuple[type, ...]) -> Iterator[tuple[ast.Call, list[ast.expr]]]:
    """Yield calls of the same method on a base, and what is given in place: super().m(...) or Base.m(self, ...)."""
    for node in ast.walk(method.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method.name):
            continue
        if super_start(node.func.value, method) is not None:
            yield node, node.args
        elif node.args and resolve(node.func.value, method.function) in mro:
            yield node, node.args[1:]


def _told(
    call: ast.Call, values: list[ast.expr], name: str | None, var: str | None, method: Method
) -> tuple[str, bool] | None:
    """Return what is wrong with one call of the base, and whether that is only a warning."""
    shown = ast.unparse(call)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    first = values[0] if values else keywords.get(FLAG, keywords.get(name or FLAG))
    if isinstance(first, ast.Starred):
        whole = isinstance(first.value, ast.Name) and first.value.id == var
        if name is None and whole and var not in _stored(method.tree):
            return None
        return (None if name is None else (f"{shown} hands on *{var}, and the flag is {name}", True)) or (
            f"{shown} hands on something else than *{var} as it came",
            True,
        )
    if first is None:
        if None in keywords:  # **mapping: what is in it cannot be told
            return None
        return f"throttle flag is not forwarded: {shown} leaves it out, so the base never holds a prefill", False
    if isinstance(first, ast.Constant):
        return f"throttle flag is not forwarded: {shown} gives a constant instead", False
    if name is not None and _verbatim(first, name, method.tree):
        return None
    return f"{shown} hands on {ast.unparse(first)}, not the throttle flag as it came", True


def _verbatim(node: ast.expr, name: str, tree: ast.AST) -> bool:
    """Whether an expression is the parameter, by itself, by one other name, or as bool() of it."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "bool" and len(node.args) == 1:
        return _verbatim(node.args[0], name, tree)
    if not isinstance(node, ast.Name):
        return False
    stored = _stored(tree)
    if node.id == name:
        return name not in stored
    values = stored.get(node.id, [])
    return len(values) == 1 and values[0] is not None and _verbatim(values[0], name, tree)


def _stored(tree: ast.AST) -> dict[str, list[ast.expr | None]]:
    """Return names that are assigned, each with its values; None: something that is no plain assignment."""
    stored: dict[str, list[ast.expr | None]] = {}
    plain: set[ast.AST] = set()
    for node in ast.walk(tree):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name):
                plain.add(target)
                stored.setdefault(target.id, []).append(getattr(node, "value", None))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in plain:
            stored.setdefault(node.id, []).append(None)
    return stored


def _used(tree: ast.AST, names: set[str | None]) -> bool:
    return any(isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in names for n in ast.walk(tree))


def _reads_all(tree: ast.AST) -> bool:
    """Whether it asks for locals(): then nothing can be told."""
    return any(isinstance(n, ast.Call) and ast.unparse(n.func) == "locals" for n in ast.walk(tree))


def _stub(method: Method) -> bool:
    body = [n for n in method.tree.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    return all(isinstance(n, ast.Pass | ast.Raise) for n in body)
