"""The benchmark runs, adds up, and compares equal shapes. How fast anything is, no test says."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _chunks, _measure, _vllm_peer, scheduler
from benchmarks._measure import Search

TINY = ["--quick", "--decodes=1,3", "--chunks=2,5", "--rounds=1", "--steps=8", "--warmup=1"]


@pytest.fixture(autouse=True)
def _no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONBEAT_VLLM_PYTHON", raising=False)


def stand_in(folder: Path, text: str) -> str:
    """Return a program that may be given for a Python with vLLM; it does `text` instead of measuring."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport json, sys\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


MEASURES = """
shape = dict(argument[2:].split("=") for argument in sys.argv[2:])
if shape == {"chunks": "2,5", "steps": "20", "warmup": "4"}:
    print(json.dumps({"vllm": "9.9.9", "rows": [{"chunks": n, "both_us": 1000.0 * n} for n in (2, 5)]}))
    sys.exit()
assert shape == {"decodes": "1,3", "prefix-caching": "off,on", "steps": "8", "warmup": "1"}, shape
times = {"schedule_us": 1000.0, "update_us": 500.0, "both_us": 1500.0}
rows = [{"decodes": n, "prefix_caching": on, **times} for on in (False, True) for n in (1, 3)]
print(json.dumps({"vllm": "9.9.9", "rows": rows}))
"""


def run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    path = tmp_path / "result.json"
    assert scheduler.main([*TINY, *arguments, f"--json={path}"]) == 0
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def test_it_runs_without_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path)
    output = capsys.readouterr()
    assert [(row["decodes"], row["prefix_caching"]) for row in result["rows"]] == [
        (1, False),
        (3, False),
        (1, True),
        (3, True),
    ]
    for row in result["rows"]:
        assert 0 < row["onbeat"]["schedule_us"] < row["onbeat"]["both_us"]
        assert row["vllm"] is row["ratio"] is None
        monitor = row["monitor"]
        assert monitor["step_us"] > 0
        assert monitor["share_percent"] == pytest.approx(100 * monitor["average_us"] / row["onbeat"]["both_us"])
    assert [row["chunks"] for row in result["chunks"]] == [2, 5]
    for row in result["chunks"]:
        assert row["cheaper"] == pytest.approx(row["recounts_us"] / row["onbeat_us"])
        assert row["vllm_us"] is row["ratio"] is None
    assert result["search"]["steps"] > 0
    assert "give --vllm-python PATH or set ONBEAT_VLLM_PYTHON" in output.out
    assert "checked steps" in output.out
    assert "round 1 of 1: onbeat" in output.err


def test_vllm_gets_the_same_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "measure_search", lambda operations: Search(1, 1, 1.0))
    result = run(tmp_path, f"--vllm-python={stand_in(tmp_path, MEASURES)}")
    assert result["vllm"] == "9.9.9"
    for row in result["rows"]:
        assert row["vllm"]["both_us"] == 1500
        assert row["ratio"] == pytest.approx(1500 / row["onbeat"]["both_us"])
    for row in result["chunks"]:
        assert row["vllm_us"] == 1000 * row["chunks"]
        assert row["ratio"] == pytest.approx(row["vllm_us"] / row["onbeat_us"])
    assert "9.9.9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sys.exit('_vllm_peer.py: error: vLLM cannot be imported')", "vLLM cannot be imported"),
        ("sys.exit(3)", "_vllm_peer.py ended with exit code 3"),
        ("print('Python 3.11')", "printed something else than results"),
    ],
)
def test_a_python_without_vllm_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    assert scheduler.main([*TINY, f"--vllm-python={stand_in(tmp_path, text)}"]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_python_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scheduler.main([*TINY, f"--vllm-python={tmp_path / 'none'}"]) == 2
    assert "none cannot be run: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--decodes=0"], ["--decodes=1025"], ["--steps=7"], ["--steps=400"]])
def test_what_cannot_be_measured_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        scheduler.main(arguments)


@pytest.mark.parametrize(
    "name", ["BLOCK_SIZE", "NUM_BLOCKS", "MAX_BATCHED_TOKENS", "MAX_SEQS", "PROMPT_TOKENS", "MAX_MODEL_LEN"]
)
def test_both_sides_have_one_shape(name: str) -> None:
    assert getattr(_measure, name) == getattr(_vllm_peer, name)


@pytest.mark.parametrize("name", ["CHUNK_TOKENS", "CHUNKED_PROMPT_TOKENS"])
def test_both_sides_have_one_load_of_chunks(name: str) -> None:
    assert getattr(_chunks, name) == getattr(_vllm_peer, name)


def test_prompts_are_longer_than_the_chunks_of_all_steps() -> None:
    steps = 1 + _chunks.CHUNK_WARMUP + _chunks.CHUNK_STEPS
    assert steps * _chunks.CHUNK_TOKENS < _chunks.CHUNKED_PROMPT_TOKENS
    assert _measure.MAX_SEQS * _chunks.CHUNKED_PROMPT_TOKENS < _measure.NUM_BLOCKS * _measure.BLOCK_SIZE
