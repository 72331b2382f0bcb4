"""The names that the two packages promise, and that neither needs anything installed."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import onbeat_reference
import onbeat_spec

ROOT = Path(__file__).parent.parent.parent

SPEC = [
    "CATALOGUE",
    "POLICIES",
    "Config",
    "Eviction",
    "Facts",
    "Invariant",
    "LocalClock",
    "Monitor",
    "OnbeatError",
    "PhaseClock",
    "Place",
    "Policy",
    "Request",
    "State",
    "Step",
    "View",
    "Violation",
    "clock_for",
    "view",
]
REFERENCE = ["BlockPool", "CountingPool", "FinishReason", "Outputs", "Request", "Scheduler"]


@pytest.mark.parametrize(
    ("package", "names"), [(onbeat_spec, SPEC), (onbeat_reference, REFERENCE)], ids=["spec", "reference"]
)
def test_the_public_names(package: ModuleType, names: list[str]) -> None:
    assert sorted(package.__all__) == sorted(names)
    assert [name for name in names if not hasattr(package, name)] == []


@pytest.mark.parametrize("package", [onbeat_spec, onbeat_reference], ids=["spec", "reference"])
def test_every_public_name_has_a_docstring(package: ModuleType) -> None:
    undocumented = [
        name for name in package.__all__ if callable(getattr(package, name)) and not getattr(package, name).__doc__
    ]
    assert undocumented == []


@pytest.mark.parametrize(
    ("package", "folders"), [("onbeat_spec", ["spec"]), ("onbeat_reference", ["spec", "reference"])]
)
def test_every_module_loads_with_nothing_installed(package: str, folders: list[str]) -> None:
    """`-I -S` shuts site-packages out: what imports anything beside the standard library and our own folders fails."""
    script = f"""
import importlib, pkgutil, sys
sys.path[:0] = {[str(ROOT / folder) for folder in folders]!r}
package = importlib.import_module({package!r})
names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    importlib.import_module(name)
print(len(names), *sorted(name for name in sys.modules if name.startswith("onbeat") and "." not in name))
"""
    run = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found, *loaded = run.stdout.split()
    assert int(found) > 5
    assert loaded == [f"onbeat_{folder}" for folder in sorted(folders)]
