"""Sizes that keep the code readable: modules in a directory, lines in a function; and every module has a docstring."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "program/onbeat",
    "spec/onbeat_spec",
    "reference/onbeat_reference",
    "proofs/onbeat_proofs",
    "engine/onbeat_engine",
)
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MOST_MODULES = 15
MOST_LINES = 60
LONGER = {
    ("triton_decode.py", "_decode"): "a kernel: Triton compiles one function",
    ("triton_prefill.py", "_prefill"): "a kernel: Triton compiles one function",
    ("html.py", "render"): "the text of a page, in one literal",
}
"""Functions that may be longer than `MOST_LINES`: file and name, and why."""


def long_functions(source: str) -> list[tuple[str, int]]:
    """Name and number of lines of every function in SOURCE that is too long, decorators not counted."""
    return [
        (node.name, lines)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_LINES
    ]


def test_no_directory_has_too_many_modules() -> None:
    assert FILES
    folders = {path.parent for path in FILES}
    crowded = {str(folder): count for folder in folders if (count := len(list(folder.glob("*.py")))) > MOST_MODULES}
    assert not crowded


def test_every_module_has_a_docstring() -> None:
    assert not [str(path) for path in FILES if not ast.get_docstring(ast.parse(path.read_bytes()))]


def test_no_function_is_too_long() -> None:
    found = {(path.name, name): lines for path in FILES for name, lines in long_functions(path.read_text("utf-8"))}
    assert {each: lines for each, lines in found.items() if each not in LONGER} == {}
    assert LONGER.keys() <= found.keys(), "an exception that is not needed any more"


@pytest.mark.parametrize("head", ["def f():", "async def f():", "@decorator\ndef f():", "class C:\n  def f():"])
def test_a_long_function_is_seen(head: str) -> None:
    body = f"\n{'    '}pass" * MOST_LINES
    assert long_functions(head + body) == [("f", MOST_LINES + 1)]
    assert long_functions(head + body.removesuffix("\n    pass")) == []
