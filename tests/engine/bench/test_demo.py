"""The demo of the engine: what it says, what it exits with, and one run with a model of random weights."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from onbeat_engine.bench.client import RequestResult
from onbeat_engine.bench.demo import VIOLATIONS, DemoPlan, Shown, ordinal, program
from onbeat_engine.bench.prompts import Planned
from onbeat_engine.verbs.serve_demo import lines
from onbeat_spec.errors import ConfigError
from tests.engine.server import tiny_model


def outcome(error: str = "") -> RequestResult:
    return RequestResult(Planned(0.0, "?", 1, 2), chunks=[0.1, 0.3], ended=0.3, error=error)


def good() -> Shown:
    return Shown(
        ready=True,
        answers=["a"],
        equal=1,
        outcomes=[outcome()],
        seconds=2.0,
        trace_code=0,
        phases="holds",
        lock_steps=9,
    )


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd"), (113, "113th")]
)
def test_ordinals(number: int, text: str) -> None:
    assert ordinal(number) == text


def test_all_is_well() -> None:
    assert good().exit_code == 0


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("ready", False, 1),
        ("equal", 0, 1),
        ("live_violations", 1, 1),
        ("outcomes", [outcome(), outcome("status 500")], 1),
        ("trace_code", 1, 1),
        ("trace_code", 2, 2),
        ("phases", "vacuous", 2),
    ],
)
def test_what_is_not_well_tells(name: str, value: object, code: int) -> None:
    shown = good()
    setattr(shown, name, value)
    assert shown.exit_code == code


def test_the_summary(tmp_path: Path) -> None:
    shown = good()
    shown.outcomes.append(outcome("status 500: oh"))
    assert list(lines(DemoPlan(folder=tmp_path), shown)) == [
        "requests  2 sent, 1 answered, 1 failed; 1 chats",
        "          status 500: oh",
        "answers   1 of 1 equal to the dense model's on one rank",
        "rate      2 tokens/s, 4 tokens in 2.0 s",
        "TTFT      median 100 ms, p99 100 ms",
        "ITL       median 200 ms, p99 200 ms",
        "live      0 violations; ready at the end",
        "trace     9 lock steps, 0 violations; phase-agrees holds",
        f"picture   {tmp_path}/lanes.html, {tmp_path}/lanes.png",
    ]


def test_violations_are_read_off_the_metrics() -> None:
    text = (
        'onbeat:invariant_violations_total{engine="0",invariant="budget",model_name="m"} 3.0\nonbeat:steps_total 7.0\n'
    )
    assert VIOLATIONS.findall(text) == ["3.0"]


def test_without_the_program_one_line_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="the program onbeat is not in the path"):
        program()


def verb(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the verb; skip where the program is not installed, or is that of an older checkout."""
    beside = Path(sys.executable).parent / "onbeat"
    if not beside.exists() or subprocess.run([beside, "serve-demo", "-h"], capture_output=True, check=False).returncode:
        pytest.skip("the program onbeat is not installed beside this Python; make test installs it")
    return subprocess.run(
        [beside, "serve-demo", *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(args[-1]).parent,
    )


def test_a_run_with_a_tiny_model(tmp_path: Path) -> None:
    model = tiny_model.write(tmp_path / "model")
    run = verb(str(model), "--load", "4", "--folder", str(tmp_path / "demo"))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "answers   3 of 3 equal" in run.stdout
    assert "> Why is the sky blue?" in run.stdout
    assert (tmp_path / "demo" / "lanes.png").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (tmp_path / "demo" / "lanes.html").read_text("utf-8")
    report = json.loads((tmp_path / "demo" / "check.json").read_text("utf-8"))
    assert report["ranks"] == [0, 1]
    assert report["exit_code"] == 0


def test_a_model_that_is_none_is_one_line_and_2(tmp_path: Path) -> None:
    run = verb("no-such-model", "--folder", str(tmp_path / "demo"))
    assert run.returncode == 2
    assert run.stderr.startswith("onbeat: error: the server has not started: ")
    assert "'no-such-model' is neither a folder" in run.stderr
    assert "Traceback" not in run.stderr
