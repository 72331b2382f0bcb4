"""Which vLLM is taken, and what is said of the others."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from onbeat_engine.vllm.releases import TESTED, UnsupportedVllm, check, release, require_hooks
from onbeat_spec.errors import OnbeatError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("version", "series"), [("0.33.0", (0, 33)), ("0.33.0+cpu", (0, 33)), ("1.2rc1", (1, 2)), ("dev", None)]
)
def test_a_version_names_a_series(version: str, series: tuple[int, int] | None) -> None:
    assert release(version) == series


@pytest.mark.parametrize("version", [*TESTED, "0.32.1", "0.33.0+cpu"])
def test_tested_series_pass_in_silence(version: str) -> None:
    assert check(version) is None


@pytest.mark.parametrize("version", ["0.34.0", "1.0.0", "dev"])
def test_newer_ones_pass_with_a_warning(version: str) -> None:
    warning = check(version)
    assert warning is not None
    assert version in warning


@pytest.mark.parametrize("version", ["0.30.2", "0.24.0", "0.9.1"])
def test_older_ones_are_refused_with_what_was_found_and_what_is_supported(version: str) -> None:
    with pytest.raises(UnsupportedVllm, match=rf"vLLM {version} is installed; .* need {TESTED[0]}"):
        check(version)
    assert issubclass(UnsupportedVllm, OnbeatError)


def test_a_class_without_the_hooks_is_refused_by_name() -> None:
    class Renamed:
        def schedule(self) -> None: ...

    require_hooks(Renamed, ("schedule",))
    with pytest.raises(UnsupportedVllm, match=r"Renamed has no _gone, "):
        require_hooks(Renamed, ("schedule", "_gone"))


def run(script: str, *path: Path) -> subprocess.CompletedProcess[str]:
    folders = [*path, ROOT / "engine", ROOT / "reference", ROOT / "spec"]
    environment = {"PYTHONPATH": ":".join(map(str, folders))}
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_no_vllm_is_imported_before_a_class_is_asked_for() -> None:
    found = run("import sys, onbeat_engine.vllm, onbeat_engine.vllm.cadenced; print('vllm' in sys.modules)")
    assert found.stdout.strip() == "False", found.stderr


@pytest.mark.parametrize("name", ["OnbeatScheduler", "OnbeatAsyncScheduler"])
def test_an_old_vllm_is_told_when_the_class_is_asked_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "vllm.py").write_text("__version__ = '0.30.0'\n")
    found = run(f"from onbeat_engine.vllm import {name}", tmp_path)
    assert "UnsupportedVllm: vLLM 0.30.0 is installed" in found.stderr


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_a_missing_vllm_is_told_when_the_class_is_asked_for() -> None:
    found = run("from onbeat_engine.vllm import OnbeatScheduler")
    assert "UnsupportedVllm: vLLM cannot be imported" in found.stderr


def test_other_names_are_no_attributes() -> None:
    import onbeat_engine.vllm

    with pytest.raises(AttributeError, match="has no attribute 'OtherScheduler'"):
        _ = onbeat_engine.vllm.OtherScheduler
