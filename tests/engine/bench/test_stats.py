"""Numbers by hand."""

import pytest

from onbeat_engine.bench.client import RequestResult
from onbeat_engine.bench.prompts import Planned
from onbeat_engine.bench.stats import concurrent, describe, is_good, latencies, parse_goodput, summary
from onbeat_spec.errors import OnbeatError


def outcome(
    sent: float, *chunks: float, tokens: int | None = None, error: str = "", lateness: float = 0.0
) -> RequestResult:
    ended = chunks[-1] if chunks else sent
    return RequestResult(Planned(0.0, "x", 10, 3), sent, lateness, list(chunks), ended, 12, tokens, error)


RUN = [
    outcome(0.0, 0.1, 0.2, 0.4, tokens=3, lateness=0.001),
    outcome(1.0, 1.3, 1.5, tokens=5),
    outcome(1.2, 1.4, tokens=1),
    outcome(1.5, error="status 503: full"),
]


def test_latencies() -> None:
    found = latencies(RUN)
    assert found.ttft == pytest.approx([100, 300, 200])
    assert found.itl == pytest.approx([100, 200, 200])
    # 300 ms for two tokens after the first, 200 ms for four; a single token has none.
    assert found.tpot == pytest.approx([150, 50])
    assert found.e2el == pytest.approx([400, 500, 200])


def test_percentiles_are_linear_between_neighbours() -> None:
    found = describe([10, 40, 20, 30], [50, 90, 99, 100])
    assert found == pytest.approx(
        {"mean": 25, "median": 25, "std": 125**0.5, "p50": 25, "p90": 37, "p99": 39.7, "p100": 40}
    )
    assert describe([], [50]) == {}


def test_a_run() -> None:
    found = summary(RUN, 2.0, percentiles=(50,), goodput={"ttft": 250, "tpot": 100})
    assert (found["completed"], found["failed"], found["errors"]) == (3, 1, {"status 503: full": 1})
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (36, 9)
    assert (found["request_throughput"], found["output_throughput"], found["total_token_throughput"]) == (
        1.5,
        4.5,
        22.5,
    )
    # The first takes 150 ms a token, the second 300 ms to the first, the fourth failed.
    assert (found["good"], found["request_goodput"]) == (1, 0.5)
    assert (found["mean_ttft_ms"], found["p50_itl_ms"]) == pytest.approx((200, 200))
    assert (found["max_lateness_ms"], found["uncounted"], found["short"]) == (1.0, 0, 1)


def test_chunks_count_where_the_server_does_not() -> None:
    found = summary([outcome(0.0, 0.1, 0.2)], 1.0)
    assert (found["total_output_tokens"], found["uncounted"]) == (2, 1)


def test_a_run_in_which_all_failed_has_no_latency() -> None:
    found = summary([outcome(0.0, error="x")], 1.0)
    assert (found["completed"], found["output_throughput"]) == (0, 0)
    assert "mean_ttft_ms" not in found


def test_goodput() -> None:
    assert parse_goodput(["ttft:500", "tpot:50.5"]) == {"ttft": 500, "tpot": 50.5}
    for wrong in ("ttft", "itl:5", "ttft:-1", "ttft:x", "ttft:inf", "ttft:nan"):
        with pytest.raises(OnbeatError, match="goodput"):
            parse_goodput([wrong])
    assert [is_good(each, {"e2el": 400.001}) for each in RUN] == [True, False, True, False]
    assert is_good(RUN[2], {"tpot": 1})


def test_how_many_are_under_way() -> None:
    assert concurrent(RUN) == 2
    # One ends in the moment in which another begins.
    assert concurrent([outcome(0.0, 1.0), outcome(1.0, 2.0)]) == 1
    assert concurrent([]) == 0
