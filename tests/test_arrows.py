"""The import arrows between the four packages: spec <- reference <- proofs, engine; proofs and engine apart."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

OURS = {"onbeat_spec", "onbeat_reference", "onbeat_proofs", "onbeat_engine"}
CHECKERS = {"z3", "hypothesis", "click", "rich", "yaml", "jsonschema"}
# Late, and in development only: mutants also meet the unit tests.
CHECKERS |= {"pytest"}

FOLDERS = {
    "onbeat_spec": ROOT / "spec" / "onbeat_spec",
    "onbeat_reference": ROOT / "reference" / "onbeat_reference",
    "onbeat_proofs": ROOT / "proofs" / "onbeat_proofs",
    "onbeat_engine": ROOT / "engine" / "onbeat_engine",
}
# Beside itself and the standard library, what a package may import.
ALLOWED = {
    "onbeat_spec": set[str](),
    "onbeat_reference": {"onbeat_spec"},
    "onbeat_proofs": {"onbeat_spec", "onbeat_reference"} | CHECKERS,
}
# What builds vLLM's schedulers is imported only once one of them is audited.
BESIDE_VLLM = {
    "proofs/onbeat_proofs/audit/vllm/harness.py": {"torch", "vllm"},
    "proofs/onbeat_proofs/audit/vllm/world.py": {"vllm"},
    "proofs/onbeat_proofs/audit/vllm/library.py": {"torch"},
}


def imports(source: str) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every import in SOURCE, wherever it stands; "" is a relative one."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name.partition(".")[0]
            case ast.ImportFrom(level=0, module=str(module)):
                yield node.lineno, module.partition(".")[0]
            case ast.ImportFrom():
                yield node.lineno, ""
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield node.lineno, module.partition(".")[0]


def may_import(package: str, name: str) -> bool:
    if name in {"", package} or name in sys.stdlib_module_names:
        return True
    if package == "onbeat_engine":  # its libraries are its own choice, our packages are not
        return name not in OURS - {"onbeat_spec", "onbeat_reference"}
    return name in ALLOWED[package]


@pytest.mark.parametrize("package", sorted(OURS))
def test_every_import_follows_the_arrows(package: str) -> None:
    files = sorted(FOLDERS[package].rglob("*.py"))
    assert files, f"no source found for {package}"
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {package} may not import {name}"
        for path in files
        for line, name in imports(path.read_text(encoding="utf-8"))
        if not may_import(package, name) and name not in BESIDE_VLLM.get(path.relative_to(ROOT).as_posix(), ())
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("onbeat_spec", "import yaml"),
        ("onbeat_spec", "from onbeat_reference import Scheduler"),
        ("onbeat_spec", "def f():\n    import numpy.linalg"),
        ("onbeat_reference", "import onbeat_proofs.symbolic.run as s"),
        ("onbeat_reference", "from z3 import Solver"),
        ("onbeat_proofs", "try:\n    import torch\nexcept ImportError:\n    pass"),
        ("onbeat_proofs", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import onbeat_engine"),
        ("onbeat_proofs", "import importlib\nimportlib.import_module('vllm.v1')"),
        ("onbeat_engine", "from onbeat_proofs import audit"),
        ("onbeat_engine", "__import__('onbeat_proofs')"),
    ],
)
def test_a_wrong_import_is_seen(package: str, source: str) -> None:
    assert [name for _, name in imports(source) if not may_import(package, name)]


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("onbeat_spec", "import json, os.path\nfrom onbeat_spec import policy"),
        ("onbeat_reference", "from onbeat_spec.policy import x\nfrom . import pool"),
        ("onbeat_proofs", "import z3, yaml\nfrom rich.table import Table\nfrom onbeat_reference import Scheduler"),
        ("onbeat_engine", "import torch\nfrom onbeat_reference import Scheduler"),
    ],
)
def test_a_right_import_passes(package: str, source: str) -> None:
    assert all(may_import(package, name) for _, name in imports(source))


def test_the_proofs_load_no_engine(tmp_path: Path) -> None:
    """Importing all of onbeat_proofs loads no torch, vllm or engine, also where they are installed."""
    for name in ("torch", "vllm"):  # empty stand-ins: a guarded import finds them, and is found out
        (tmp_path / f"{name}.py").touch()
    beside = {path.removeprefix("proofs/").removesuffix(".py").replace("/", ".") for path in BESIDE_VLLM}
    script = f"""
import importlib, pkgutil, sys
sys.path.insert(0, {str(tmp_path)!r})
import onbeat_proofs
found = 0
for module in pkgutil.walk_packages(onbeat_proofs.__path__, "onbeat_proofs."):
    if not module.name.endswith("__main__") and module.name not in {beside!r}:
        importlib.import_module(module.name)
        found += 1
assert found
print(*({{"torch", "vllm", "onbeat_engine"}} & sys.modules.keys()))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == ""
