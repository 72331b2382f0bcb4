"""Loops copied from a release of vLLM, and whose policy text they carry (public cases B34, B36)."""

import ast
from collections.abc import Iterator
from difflib import SequenceMatcher

from onbeat_proofs.audit.static.signature import Misfit
from onbeat_proofs.audit.vllm.static.class_text import Def, Method

LOOPS = ("schedule", "update_from_output")
ALIKE = 0.4
"""Share of equal statements above which a loop is a copy. Unrelated loops share a few initialisations."""
OLDEST = "before 0.24.0"
LEAST = 10
"""Statements of a loop that is worth comparing."""


def copy_misfits(method: Method, base: Method) -> Iterator[Misfit]:
    """Warn of an override that repeats the loop of the installed base, with other statements in it."""
    ours, theirs = list(_statements(method.tree)), list(_statements(base.tree))
    if min(len(ours), len(theirs)) < LEAST or ours == theirs:
        return
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    alike = matcher.ratio()
    if alike < ALIKE:
        return
    equal = sum(block.size for block in matcher.get_matching_blocks())
    text = policy_text(method.tree) if method.name == "schedule" else None
    installed = policy_text(base.tree) if method.name == "schedule" else None
    message = (
        f"copies the loop of {base.where} ({alike:.0%} alike): {len(ours) - equal} of its {len(ours)} statements are "
        f"not the installed vLLM's, and {len(theirs) - equal} of those {len(theirs)} are not in it"
    )
    if text is not None:
        message += f"; its policy text is that of {text}{', without a throttle' if text == OLDEST else ''}"
        message += f"; the installed one's is that of {installed}" if installed not in (None, text) else ""
    yield Misfit(method.where, message, False, warning=True)


def policy_text(tree: Def) -> str | None:
    """Return which releases' throttle a loop has, by what its conditions ask; None: it cannot be told.

    0.24.0 holds what has nothing computed, 0.25.0 what has more than one token left; 0.31.0 counts the waiting to raise
    the flag; 0.33.0 has a cadence of its own.
    """
    texts = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.Assign | ast.AugAssign)]
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if "local_prefill_interval" in names:
        return "0.33.0"
    if "prefill_capacity_bound" not in names and not _throttles(tree):
        return OLDEST
    if "self.prefill_capacity_bound = num_waiting > len(self.deferred_waiting)" in texts:
        return "0.31.0 or 0.32.0"
    conditions = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.BoolOp) and _throttles(node)]
    if any("request.num_computed_tokens == 0" in text for text in conditions):
        return "0.24.0"
    if any("num_computed_tokens < request.num_tokens - 1" in text for text in conditions):
        return "0.25.0 to 0.30.0"
    return None


def _throttles(tree: ast.AST) -> bool:
    """Whether a text asks for the throttle."""
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.id in ("throttle_prefills", "defer_prefills")
        for node in ast.walk(tree)
    )


def _in_order(tree: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _in_order(node)


def _statements(tree: Def) -> Iterator[str]:
    """Yield each statement of a function as one line of text: without what is inside it, annotations and docstrings."""
    for node in _in_order(tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.AnnAssign(target=target, value=value):
                yield f"{ast.unparse(target)} = {'' if value is None else ast.unparse(value)}"
            case ast.If(test=test) | ast.While(test=test):
                yield f"{type(node).__name__} {ast.unparse(test)}"
            case ast.For(target=target, iter=iterated):
                yield f"For {ast.unparse(target)} in {ast.unparse(iterated)}"
            case ast.With(items=items):
                yield f"With {', '.join(map(ast.unparse, items))}"
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield f"{type(node).__name__} {name}"
            case ast.Try() | ast.Match():
                yield type(node).__name__
            case _:
                yield ast.unparse(node)
