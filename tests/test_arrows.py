"""What may import what: the contracts in pyproject.toml, and which libraries of others a package may use."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
FOLDERS = {
    "onbeat": ROOT / "program" / "onbeat",
    "onbeat_spec": ROOT / "spec" / "onbeat_spec",
    "onbeat_reference": ROOT / "reference" / "onbeat_reference",
    "onbeat_proofs": ROOT / "proofs" / "onbeat_proofs",
    "onbeat_engine": ROOT / "engine" / "onbeat_engine",
}
# Beside our packages and the standard library, what a package may import; the engine's libraries are its own choice.
LIBRARIES = {
    "onbeat": {"click"},
    "onbeat_spec": set[str](),
    "onbeat_reference": set[str](),
    # pytest late, and in development only: mutants also meet the unit tests.
    "onbeat_proofs": {"z3", "hypothesis", "click", "rich", "yaml", "jsonschema", "pytest"},
}
# What builds vLLM's schedulers is imported only once one of them is audited.
BESIDE_VLLM = {
    "proofs/onbeat_proofs/audit/vllm/harness.py": {"torch", "vllm"},
    "proofs/onbeat_proofs/audit/vllm/world.py": {"vllm"},
    "proofs/onbeat_proofs/audit/vllm/library.py": {"torch"},
}


def lint(*, root: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts on the packages under ROOT."""
    paths = os.pathsep.join(str(root / folder.relative_to(ROOT).parent) for folder in FOLDERS.values())
    return subprocess.run(
        [shutil.which("lint-imports", path=str(Path(sys.executable).parent)) or "lint-imports", "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_contracts_hold() -> None:
    result = lint(root=ROOT)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the five packages, to plant imports in."""
    root = tmp_path_factory.mktemp("planted")
    shutil.copy(ROOT / "pyproject.toml", root)
    for folder in FOLDERS.values():
        shutil.copytree(folder, root / folder.relative_to(ROOT), ignore=shutil.ignore_patterns("__pycache__"))
    return root


PLANTED = [
    ("spec/onbeat_spec/policy.py", "from onbeat_reference import Scheduler"),
    ("reference/onbeat_reference/pool.py", "import onbeat_proofs.symbolic.run as s"),
    ("proofs/onbeat_proofs/play/replay.py", "def f():\n    import onbeat_engine"),
    ("proofs/onbeat_proofs/traces/check.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import vllm"),
    ("proofs/onbeat_proofs/foreign/targets.py", "from onbeat_proofs.play import driver"),
    ("proofs/onbeat_proofs/audit/run.py", "from onbeat_proofs.symbolic import solver"),
    ("proofs/onbeat_proofs/scenarios/schema.py", "from onbeat_proofs.scenarios import files"),
    ("engine/onbeat_engine/lanes/read.py", "from onbeat_proofs import audit"),
    ("engine/onbeat_engine/vllm/__init__.py", "import onbeat_engine.wire.config"),
    ("program/onbeat/__init__.py", "from onbeat_spec.policy import Policy"),
    ("reference/onbeat_reference/blocks.py", "import onbeat_reference.workload"),
    ("reference/onbeat_reference/request.py", "from onbeat_reference import Request"),
    ("reference/onbeat_reference/pool.py", "import torch"),
    ("spec/onbeat_spec/policy.py", "import triton"),
    ("program/onbeat/program.py", "import transformers"),
    ("proofs/onbeat_proofs/symbolic/solver.py", "import onbeat_spec.monitor"),
    ("proofs/onbeat_proofs/symbolic/run.py", "from onbeat_reference import Scheduler"),
    ("proofs/onbeat_proofs/protocol/rules.py", "import onbeat_proofs.play.driver"),
    ("proofs/onbeat_proofs/protocol/world.py", "from onbeat_proofs.foreign import targets"),
    ("proofs/onbeat_proofs/prove/sweep.py", "import z3"),
    ("proofs/onbeat_proofs/play/driver.py", "import hypothesis"),
    ("engine/onbeat_engine/server/jobs.py", "from onbeat_engine.front import async_llm"),
    ("engine/onbeat_engine/server/app.py", "from onbeat_engine import LLM"),
    ("engine/onbeat_engine/bench/stats.py", "import onbeat_engine.rank.core"),
    ("engine/onbeat_engine/bench/serve.py", "import onbeat_engine.server.run"),
    ("engine/onbeat_engine/bench/report.py", "import transformers"),
    ("engine/onbeat_engine/rank/core.py", "import onbeat_engine.files.find"),
    ("engine/onbeat_engine/parallel/group.py", "import onbeat_engine.text.tokenizer"),
    ("engine/onbeat_engine/parallel/heart.py", "import onbeat_engine.files.find"),
    ("engine/onbeat_engine/parallel/memory.py", "import triton"),
    ("engine/onbeat_engine/runner/batch.py", "import onbeat_engine.lanes.read"),
    ("engine/onbeat_engine/front/streams.py", "import onbeat_engine.files.find"),
    ("engine/onbeat_engine/front/client.py", "import torch"),
    ("engine/onbeat_engine/wire/messages.py", "import torch"),
    ("engine/onbeat_engine/lanes/read.py", "import torch"),
    ("engine/onbeat_engine/server/metrics.py", "import torch"),
    ("engine/onbeat_engine/text/grammars.py", "def f():\n    import torch"),
    ("engine/onbeat_engine/files/find.py", "import transformers"),
]


def test_a_wrong_import_breaks_a_contract(copy: Path) -> None:
    for name, source in PLANTED:
        with (copy / name).open("a", encoding="utf-8") as file:
            file.write(f"\n{source}\n")
    report = lint(root=copy)
    assert report.returncode == 1
    lines = report.stdout.split("Broken contracts")[1]
    for name, source in PLANTED:
        module = ".".join(Path(name).with_suffix("").parts[1:]).removesuffix(".__init__")
        start, _, imported = source.rpartition("import ")
        imported = imported.split()[0]
        if start.startswith("from o"):  # a module of the package, or what the package itself has
            package = start.split()[1]
            folder = package.replace(".", "/")
            is_module = any(ROOT.glob(f"*/{folder}/{imported}.py")) or any(
                ROOT.glob(f"*/{folder}/{imported}/__init__.py")
            )
            imported = f"{package}.{imported}" if is_module else package
        if name.endswith("schema.py"):  # a circle is told by its rooms
            assert "No cycles are allowed in onbeat_proofs.scenarios" in lines
        else:
            assert f"{module} -> {imported} (l." in lines, (name, source)


# --- The table ------------------------------------------------------------------------------------------------------

Rows = dict[str, set[str]]


def table(page: str, package: str) -> Rows:
    """What each row of PACKAGE's part of ARCHITECTURE.md's table says that it may import: rooms, modules and libraries.

    Rows are named by their rooms or modules, joined by spaces. A directory within a room has its room's rules.
    """
    part = re.split(r"^\| \*\*", page, flags=re.MULTILINE)
    [text] = [text for text in part if text.startswith(f"`{FOLDERS[package].relative_to(ROOT)}/`")]
    rows: Rows = {}
    for cell, may in re.findall(r"^\| (`[^|]*) \| [^|]* \|(?: ([^|]*) )?\|$", text, re.MULTILINE):
        names = [name.removesuffix("/").removesuffix(".py") for name in re.findall(r"`([^`]+)`", cell)]
        if "/" in names[0] or names[0] in ("tests", "tools", "benchmarks"):
            continue
        rooms, _, rest = may.partition(",") if may.startswith("all of the above") else ("", "", may.partition(";")[0])
        words = set[str]() if rest == "nothing" else set(re.findall(r"\w+", rest.lower()))
        if rooms:
            words |= set(rows) - set(re.findall(r"`(\w+)`", rooms))
        rows[" ".join(names)] = words
    return rows


def contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return found


def allowed(package: str) -> Rows:
    """What the contracts on who imports a room, or a library, let each room of PACKAGE import."""
    rooms = {
        path.stem for path in FOLDERS[package].iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    rows: Rows = {room: set() for room in rooms}
    for contract in contracts():
        if contract["type"] == "protected" and contract["name"].startswith("Who imports"):
            [imported] = contract["protected_modules"]
            name = "__init__" if imported == package else imported.removeprefix(f"{package}.")
            edges = [importer.partition(" -> ")[0] for importer in contract.get("ignore_imports", ())]
            for importer in [*contract["allowed_importers"], *edges]:
                inside = importer.removesuffix(".**").partition(".")
                if inside[0] == package and inside[2] != "audit.vllm":
                    rows[inside[2] or "__init__"].add(name)
    return rows


@pytest.mark.parametrize("package", ["onbeat_proofs", "onbeat_engine"])
def test_the_contracts_on_rooms_are_the_rows_of_the_table(package: str) -> None:
    rows = table(ARCHITECTURE, package)
    held = allowed(package)
    if package == "onbeat_proofs":
        assert not held.pop("__init__")  # a docstring alone
    assert rows == held
    kept = {contract["protected_modules"][0] for contract in contracts() if contract["type"] == "protected"}
    assert {f"{package}.{room}" for room in rows if room != "__init__"} <= kept


def test_the_contract_on_reference_is_the_rows_of_the_table() -> None:
    rows = table(ARCHITECTURE, "onbeat_reference")
    row_of = {name: row for row in rows for name in row.split()}
    held: Rows = {row: set() for row in rows}
    [contract] = [contract for contract in contracts() if contract["name"] == "Modules of reference"]
    for edge in contract["ignore_imports"]:
        importer, imported = [name.removeprefix("onbeat_reference.") for name in edge.split(" -> ")]
        if imported not in row_of[importer].split():
            held[row_of[importer]].add(imported)
    assert rows == held


# --- Libraries of others ---------------------------------------------------------------------------------------------


def imports(source: str) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every import in SOURCE, wherever it stands, that the contracts do not see.

    They see no library of which nobody has said that it is forbidden, and no import by a function's call.
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names if alias.name.partition(".")[0] not in FOLDERS]
            case ast.ImportFrom(level=0, module=str(module)) if module.partition(".")[0] not in FOLDERS:
                found = [module]
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                found = [module]
            case _:
                continue
        yield from ((node.lineno, name.partition(".")[0]) for name in found)


def may_import(package: str, name: str) -> bool:
    if name == package or name in sys.stdlib_module_names:
        return True
    if package == "onbeat_engine":
        return name not in FOLDERS
    return name in LIBRARIES[package]


@pytest.mark.parametrize("package", sorted(FOLDERS))
def test_every_library_is_one_that_the_package_may_use(package: str) -> None:
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
        ("onbeat_spec", "def f():\n    import numpy.linalg"),
        ("onbeat_reference", "from z3 import Solver"),
        ("onbeat_proofs", "try:\n    import torch\nexcept ImportError:\n    pass"),
        ("onbeat_proofs", "import importlib\nimportlib.import_module('vllm.v1')"),
        ("onbeat_engine", "__import__('onbeat_proofs')"),
        ("onbeat", "import rich"),
    ],
)
def test_a_wrong_library_is_seen(package: str, source: str) -> None:
    assert [name for _, name in imports(source) if not may_import(package, name)]


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("onbeat_spec", "import json, os.path\nfrom onbeat_spec import policy"),
        ("onbeat_proofs", "import z3, yaml\nfrom rich.table import Table\nfrom onbeat_reference import Scheduler"),
        ("onbeat_engine", "import torch\nfrom onbeat_reference import Scheduler"),
    ],
)
def test_a_right_library_passes(package: str, source: str) -> None:
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
