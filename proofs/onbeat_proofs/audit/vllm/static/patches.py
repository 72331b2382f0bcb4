"""Methods of vLLM's helpers that a class replaces on the instance: whether the replacement takes every call.

`manager = self.kv_cache_manager; manager.get_computed_blocks = observed` overrides a method without a subclass. Such a
replacement goes stale like an override does (public case B30), and no type checker sees it.
"""

import ast
import inspect
from collections.abc import Iterator

from onbeat_proofs.audit.static.signature import Misfit, bound, plain, refused
from onbeat_proofs.audit.vllm.static.calls import held_by
from onbeat_proofs.audit.vllm.static.class_text import Def, module_tree, own_parts, static

_KINDS = inspect.Parameter


def patch_misfits(cls: type) -> Iterator[Misfit]:
    """Yield replacements, in the modules of the class's own parts, that the installed vLLM cannot call."""
    held = held_by(cls)
    for module in dict.fromkeys(part.__module__ for part in own_parts(cls)):
        tree = module_tree(module)
        for scope in ast.walk(tree) if tree is not None else ():
            if isinstance(scope, Def):
                yield from _in_scope(scope, module, held)


def _in_scope(scope: Def, module: str, held: dict[str, type]) -> Iterator[Misfit]:
    """Yield replacements that one function makes with functions of its own."""
    local = {node.name: node.args for node in ast.walk(scope) if isinstance(node, Def) and node is not scope}
    for node in ast.walk(scope):
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute)):
            continue
        target, arguments = node.targets[0], _arguments(node.value, local)
        kind = held.get(ast.unparse(target.value).rpartition(".")[2])
        expected = None if kind is None else static(kind, target.attr)
        if arguments is None or not inspect.isfunction(plain(expected)):
            continue
        reason = refused(_signature(arguments), bound(expected))
        if reason is not None:
            where = f"{module.rpartition('.')[2]}.{scope.name}"
            yield Misfit(
                where, f"puts {ast.unparse(node.value)} in the place of {plain(expected).__qualname__}: {reason}", False
            )


def _arguments(value: ast.expr, local: dict[str, ast.arguments]) -> ast.arguments | None:
    if isinstance(value, ast.Lambda):
        return value.args
    return local.get(value.id) if isinstance(value, ast.Name) else None


def _signature(arguments: ast.arguments) -> inspect.Signature:
    """Return the signature that a text of parameters says; what they default to does not matter here."""
    in_place = [*arguments.posonlyargs, *arguments.args]
    required = len(in_place) - len(arguments.defaults)
    parameters = [
        _KINDS(
            argument.arg,
            _KINDS.POSITIONAL_ONLY if argument in arguments.posonlyargs else _KINDS.POSITIONAL_OR_KEYWORD,
            default=_KINDS.empty if place < required else None,
        )
        for place, argument in enumerate(in_place)
    ]
    if arguments.vararg:
        parameters.append(_KINDS(arguments.vararg.arg, _KINDS.VAR_POSITIONAL))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(_KINDS(argument.arg, _KINDS.KEYWORD_ONLY, default=_KINDS.empty if default is None else None))
    if arguments.kwarg:
        parameters.append(_KINDS(arguments.kwarg.arg, _KINDS.VAR_KEYWORD))
    return inspect.Signature(parameters)
