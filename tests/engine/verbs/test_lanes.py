"""The verb `onbeat lanes`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from onbeat_engine.lanes.png import MOST_STEPS
from onbeat_engine.verbs.lanes import command
from onbeat_spec.errors import TraceError
from tests.engine.lanes.traces import record


def run(*args: str) -> str:
    result = CliRunner().invoke(command, args, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert result.return_value == 0
    return result.output


def test_it_writes_what_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = str(record(tmp_path / "traces", 2, monkeypatch))
    html, png, numbers = (str(tmp_path / name) for name in ("a.html", "a.png", "a.json"))
    output = run(traces, "--html", html, "--png", png, "--json", numbers)
    assert output.startswith("interval 2: ")
    assert "prefill steps on the beat" in output
    assert "off the beat, " in output
    assert Path(html).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert Path(png).read_bytes().startswith(b"\x89PNG")
    assert json.loads(Path(numbers).read_text())["headline"] == output.splitlines()[0]


def test_a_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = str(record(tmp_path / "traces", 1, monkeypatch))
    numbers = tmp_path / "a.json"
    run(traces, "--from", "20", "--to", "29", "--json", str(numbers))
    found = json.loads(numbers.read_text())
    assert (found["first"], found["last"], found["columns"]) == (20, 29, 10)
    with pytest.raises(TraceError, match="no step in that range"):
        run(traces, "--from", "100000")
    assert CliRunner().invoke(command, [traces, "--from", "9", "--to", "8"]).exit_code == 2


def test_a_long_run_is_cut_for_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = str(record(tmp_path / "traces", 2, monkeypatch, steps=MOST_STEPS + 300))
    output = run(traces, "--png", str(tmp_path / "a.png"))
    low, high = output.splitlines()[-1].rpartition("steps ")[2].replace(",", "").split(" to ")
    assert int(high) - int(low) + 1 == MOST_STEPS
