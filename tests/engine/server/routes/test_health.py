"""Live, ready, measured."""

import time

import pytest

from onbeat_engine.server.metrics import COUNTERS, GAUGES, HISTOGRAMS
from tests.engine.server.live import MODEL, over, until
from tests.engine.server.stub import Rank, StubEngine

HI = {"model": MODEL, "prompt": "hi", "max_tokens": 3}


def test_no_token_while_work_is_unfinished_is_not_ready() -> None:
    engine = StubEngine(silent=True)
    with over(engine, progress_timeout=0.3, drain_timeout=0.0) as server, server.http() as http:
        time.sleep(0.4)
        assert http.get("/ready").status_code == 200, "no work, no progress to expect"
        with http.stream("POST", "/v1/completions", json={**HI, "stream": True}):
            assert http.get("/ready").status_code == 200, "it has only begun"
            time.sleep(0.4)
            red = http.get("/ready")
            assert red.status_code == 503
            assert red.json()["why"].endswith("and 1 completions are unfinished")
            assert http.get("/health").status_code == 200
            engine.silent = False
            assert until(lambda: http.get("/ready").status_code == 200)


def test_ranks() -> None:
    engine = StubEngine(ranks=(Rank(0), Rank(1, alive=False)))
    with over(engine) as server, server.http() as http:
        assert http.get("/ready").json()["ranks"] == [
            {"rank": 0, "alive": True, "running": 0, "waiting": 0},
            {"rank": 1, "alive": False, "running": 0, "waiting": 0},
        ]


def test_a_dead_engine() -> None:
    engine = StubEngine()
    with over(engine) as server, server.http() as http:
        engine.dead = "rank 0 was killed"
        assert http.get("/health").status_code == 503
        assert http.get("/ready").json()["why"] == "the engine has ended: rank 0 was killed"
        failed = http.post("/v1/completions", json=HI)
        assert (failed.status_code, failed.json()["error"]["message"]) == (500, "rank 0 was killed")


def test_an_engine_that_is_being_started_again() -> None:
    engine = StubEngine(is_running=False)
    with over(engine) as server, server.http() as http:
        assert http.get("/health").status_code == 200
        ready = http.get("/ready")
        assert (ready.status_code, ready.json()["why"]) == (503, "being started again")


def sample(text: str, name: str, **labels: str) -> float:
    """Return the value of one sample in Prometheus's text."""
    for line in text.splitlines():
        if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no sample of {name} with {labels}")


def test_metrics() -> None:
    engine = StubEngine()
    with over(engine) as server, server.http() as http:
        for _ in range(2):
            http.post("/v1/completions", json={**HI, "n": 2})
        text = http.get("/metrics").text
        assert sample(text, "onbeat:request_success_total", finished_reason="length", model_name=MODEL) == 4
        assert sample(text, "onbeat:request_success_total", finished_reason="stop") == 0
        assert sample(text, "onbeat:time_to_first_token_seconds_count") == 4
        assert sample(text, "onbeat:inter_token_latency_seconds_count") == 8
        assert sample(text, "onbeat:request_time_per_output_token_seconds_count") == 4
        assert sample(text, "onbeat:e2e_request_latency_seconds_count") == 4
        assert sample(text, "onbeat:invariant_violations_total", invariant="no-empty-hold", engine="0") == 3
        assert sample(text, "onbeat:invariant_violations_total", invariant="lock-step", engine="group") == 2
        for name in GAUGES:
            sample(text, f"onbeat:{name}", engine="0", model_name=MODEL)
        for name in COUNTERS:
            sample(text, f"onbeat:{name}_total", engine="0", model_name=MODEL)
        for name in HISTOGRAMS:
            sample(text, f"onbeat:{name}_sum", model_name=MODEL)


@pytest.mark.parametrize("streamed", [True, False])
def test_how_requests_end_is_counted(streamed: bool) -> None:
    engine = StubEngine(delay=0.02)
    with over(engine) as server, server.http() as http:
        with server.raw(b'{"prompt": "hi", "max_tokens": 90, "stream": %s}' % str(streamed).lower().encode()):
            assert until(lambda: engine.steps >= 2)
        assert until(lambda: not engine.running)
        engine.fail_after = 1
        http.post("/v1/completions", json=HI)
        text = http.get("/metrics").text
        assert sample(text, "onbeat:request_success_total", finished_reason="abort") == 1
        assert sample(text, "onbeat:request_success_total", finished_reason="error") == 1
