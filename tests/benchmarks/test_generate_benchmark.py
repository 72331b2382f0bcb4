"""The generation benchmark, on a tiny model."""

import json
from pathlib import Path

import pytest

from benchmarks import generate
from tests.engine.runner.models import tiny


def test_both_sides_generate_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.llama(tmp_path / "model")
    figures = tmp_path / "figures.json"
    options = {"model": tmp_path / "model", "dtype": "float64", "requests": 3, "prompt": 9, "output": 5}
    options |= {"decodes": 2, "rounds": 1, "json": figures}
    assert generate.main([f"--{name}={value}" for name, value in options.items()]) == 0
    result = json.loads(figures.read_text())
    assert result["equal_requests"] == 3
    assert result["ratio"] == pytest.approx(
        result["ours_tokens_per_second"] / result["transformers_tokens_per_second"], rel=1e-6
    )
    assert 0 < result["ours"]["forward"] < result["ours"]["decodes"] < result["ours"]["total"]
    assert 0 < result["outside_forward"] < 1
    assert "the same tokens in 3 of 3 requests" in capsys.readouterr().out


def test_ours_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.llama(tmp_path)
    options = ["--requests=2", "--prompt=4", "--output=3", "--decodes=2", "--rounds=1", "--only-ours"]
    assert generate.main([f"--model={tmp_path}", *options]) == 0
    assert "transformers" not in capsys.readouterr().out
