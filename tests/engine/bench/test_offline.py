"""The engine by itself, with a stand-in for it that says what it was asked."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from onbeat_engine.bench.offline import latency, throughput
from onbeat_engine.bench.prompts import Planned
from onbeat_engine.wire.params import SamplingParams
from onbeat_spec.errors import OnbeatError

PLANNED = [Planned(0.0, [1, 2, 3], 3, 4), Planned(0.0, "a b", 2, 6)]


class StandIn:
    """Takes 20 ms a call, and gives what is asked for."""

    def __init__(self, reason: str = "length") -> None:
        self.calls: list[tuple[Any, list[SamplingParams]]] = []
        self.reason = reason
        self.ended = False

    def get_tokenizer(self) -> Any:
        return SimpleNamespace(vocab_size=500)

    def shutdown(self) -> None:
        self.ended = True

    def generate(self, prompts: list[Any], params: list[SamplingParams], /, *, use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        self.calls.append((prompts, params))
        time.sleep(0.02)
        return [
            SimpleNamespace(
                request_id="r",
                prompt_token_ids=[0] * 5,
                outputs=[SimpleNamespace(token_ids=[7] * (each.max_tokens or 0), finish_reason=self.reason)],
            )
            for each in params
        ]


def test_throughput() -> None:
    engine = StandIn()
    found = throughput(engine, PLANNED, seed=5)
    ((prompts, params),) = engine.calls
    assert prompts == [[1, 2, 3], "a b"]
    assert [(each.max_tokens, each.ignore_eos, each.temperature, each.seed) for each in params] == [
        (4, True, 0.0, 5),
        (6, True, 0.0, 6),
    ]
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (10, 10)
    assert found["elapsed_time"] >= 0.02
    assert found["tokens_per_second"] == pytest.approx(20 / found["elapsed_time"])
    assert found["requests_per_second"] == pytest.approx(2 / found["elapsed_time"])


def test_latency() -> None:
    engine = StandIn()
    done: list[None] = []
    found = latency(engine, PLANNED, warmups=2, iterations=3, progress=lambda: done.append(None))
    assert (len(engine.calls), len(done), len(found["latencies"])) == (5, 5, 3)
    assert found["avg_latency"] == pytest.approx(sum(found["latencies"]) / 3)
    assert found["output_tokens_per_second"] == pytest.approx(30 / sum(found["latencies"]))
    assert found["percentiles"]["50"] == sorted(found["latencies"])[1]


def test_a_failed_request_is_no_measurement() -> None:
    with pytest.raises(OnbeatError, match="did not come to its end: error"):
        throughput(StandIn("error"), PLANNED)
