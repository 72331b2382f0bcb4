"""The verb `onbeat bench`."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from onbeat_engine.bench.client import Unreachable
from onbeat_engine.verbs.bench import command
from tests.engine.bench.fake_server import Behaviour, FakeServer
from tests.engine.bench.test_client import unused_url
from tests.engine.bench.test_offline import StandIn

FEW = ("--num-prompts", "6", "--random-input-len", "8", "--random-output-len", "4")


def run(*args: str) -> Result:
    result = CliRunner().invoke(command, args, standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_serve(tmp_path: Path) -> None:
    numbers, html = tmp_path / "a.json", tmp_path / "a.html"
    with FakeServer(Behaviour(first=0.02)) as server:
        result = run(
            "serve", "--base-url", server.url, *FEW, "--vocab-size", "300", "--request-rate", "50", "--ignore-eos",
            "--goodput", "ttft:60000", "tpot:60000", "--result-filename", str(numbers), "--save-detailed",
            "--html", str(html), "--num-warmups", "1", "--extra-body", '{"top_k": 5}',
        )  # fmt: skip
    assert result.return_value == 0
    assert len(server.requests) == 7
    assert all(len(asked["prompt"]) == 8 and asked["ignore_eos"] and asked["top_k"] == 5 for asked in server.requests)
    found = json.loads(numbers.read_text())
    assert (found["completed"], found["total_input_tokens"], found["total_output_tokens"]) == (6, 48, 24)
    assert (found["model_id"], found["request_rate"], found["good"]) == ("fake", 50.0, 6)
    assert found["mean_ttft_ms"] >= 20
    assert len(found["itls"]) == 6
    assert "6 completed, 0 failed" in result.output
    assert "TTFT" in result.output
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_failed_request_is_told_and_exits_with_1() -> None:
    with FakeServer(Behaviour(first=0.01, fault="status")) as server:
        result = run("serve", "--base-url", server.url, *FEW)
        assert result.return_value == 1
        assert "4 completed, 2 failed" in result.output
        assert 'failed: 2 x status 503: {"error": "full"}' in result.output
        assert run("serve", "--base-url", server.url, *FEW, "--allow-failures").return_value == 0


def test_no_server_is_an_error() -> None:
    with pytest.raises(Unreachable):
        run("serve", "--base-url", unused_url(), *FEW)


def test_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "a.csv"
    rows = "\n".join(f"2023-11-16 18:15:46.{at:07d},{5 + at},{2 + at}" for at in range(4))
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n")
    with FakeServer(Behaviour(first=0.01)) as server:
        result = run(
            "serve", "--base-url", server.url, "--backend", "openai-chat", "--dataset-name", "trace",
            "--dataset-path", str(trace), "--max-output-len", "4",
        )  # fmt: skip
    assert result.return_value == 0
    assert sorted(asked["max_tokens"] for asked in server.requests) == [2, 3, 4, 4]
    assert sorted(len(asked["messages"][0]["content"].split()) for asked in server.requests) == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--request-rate", "0"), "neither inf nor"),
        (("--percentile-metrics", "ttft,x"), "'x' is none of"),
        (("--metric-percentiles", "50,101"), "no list of numbers"),
        (("--extra-body", "[]"), "no JSON object"),
        (("--header", "x"), "not KEY=VALUE"),
        (("--backend", "openai-chat", "--vocab-size", "9"), "a chat is text"),
        (("stray",), "unexpected argument 'stray'"),
    ],
)
def test_arguments_that_cannot_be(args: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(command, ["serve", *args])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any], StandIn]]:
    """Put a stand-in where the engine is, and return what it is built from, and the stand-in."""
    built: list[tuple[Any, dict[str, Any], StandIn]] = []

    def make(model: str | None, **options: Any) -> StandIn:
        built.append((model, options, StandIn()))
        return built[-1][2]

    module = ModuleType("onbeat_engine.llm")
    module.LLM = make  # type: ignore[attr-defined]  # a module that has nothing else
    monkeypatch.setitem(sys.modules, "onbeat_engine.llm", module)
    return built


def test_throughput(engine: list[tuple[Any, dict[str, Any], StandIn]], tmp_path: Path) -> None:
    numbers = tmp_path / "a.json"
    result = run(
        "throughput", "--model", "m", "--num-prompts", "3", "--output-len", "5", "--dtype", "float32",
        "--no-monitor", "--max-num-seqs", "7", "--gpu-memory-utilization", "0.5", "--output-json", str(numbers),
    )  # fmt: skip
    expected = {"seed": 0, "dtype": "float32", "monitor": False, "max_num_seqs": 7, "gpu_memory_utilization": 0.5}
    ((model, options, stand_in),) = engine
    assert (model, options, stand_in.ended) == ("m", expected, True)
    ids = [id for prompt in stand_in.calls[0][0] for id in prompt]
    assert 256 < max(ids) < 500
    assert result.output.startswith("throughput: ")
    assert json.loads(numbers.read_text())["total_output_tokens"] == 15


def test_latency(engine: list[tuple[Any, dict[str, Any], StandIn]]) -> None:
    result = run("latency", "--num-iters", "2", "--num-iters-warmup", "1", "--batch-size", "2")
    ((model, options, stand_in),) = engine
    assert (model, options, stand_in.ended) == (None, {"enable_prefix_caching": False, "seed": 0}, True)
    assert result.output.startswith("average latency: ")
    assert "p99: " in result.output
