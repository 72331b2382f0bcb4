"""The client against a server with known timings."""

import asyncio
import socket

import pytest

from onbeat_engine.bench.client import Outcome, Target, Unreachable, drive, models
from onbeat_engine.bench.prompts import Planned
from onbeat_engine.bench.stats import latencies, tpot
from tests.engine.bench.fake_server import Behaviour, FakeServer

SLACK = 0.5
"""Seconds that a loaded machine may add."""


def plan(count: int, *, every: float = 0.0, tokens: int = 5) -> list[Planned]:
    return [Planned(at * every, [1, 2, 3, at], 4, tokens) for at in range(count)]


def run(
    server: FakeServer, planned: list[Planned], *, max_concurrency: int | None = None, **more: object
) -> list[Outcome]:
    target = Target(base_url=server.url, model="fake", **more)  # type: ignore[arg-type]  # keywords of one test each
    return asyncio.run(drive(target, planned, max_concurrency=max_concurrency))[0]


def test_times_of_one_request() -> None:
    with FakeServer(Behaviour(first=0.1, gap=0.03)) as server:
        (got,) = run(server, plan(1))
    assert got.ok
    assert (got.tokens, got.prompt_tokens, len(got.chunks)) == (5, 4, 5)
    found = latencies([got])
    assert 100 <= found.ttft[0] < 100 + 1000 * SLACK
    # Sleeps are never shorter; that the client reads late can shorten a single gap, not their sum by more than that.
    assert sum(found.itl) == pytest.approx(found.e2el[0] - found.ttft[0])
    assert 4 * 25 <= sum(found.itl) < 4 * 30 + 1000 * SLACK
    assert found.tpot[0] == pytest.approx(sum(found.itl) / 4)


def test_several_tokens_in_a_chunk_are_counted_by_usage() -> None:
    with FakeServer(Behaviour(first=0.01, gap=0.04, tokens_per_chunk=3)) as server:
        (got,) = run(server, plan(1, tokens=7))
    assert (got.tokens, len(got.chunks)) == (7, 3)
    assert tpot(got) == pytest.approx(1000 * (got.chunks[2] - got.chunks[0]) / 6)


def test_without_usage_chunks_are_counted() -> None:
    with FakeServer(Behaviour(usage=False)) as server:
        (got,) = run(server, plan(1))
    assert (got.output_tokens, got.tokens, got.prompt_tokens) == (None, 5, None)


def test_a_chat_begins_with_its_first_text() -> None:
    """Its first chunk names the role, and comes at once."""
    with FakeServer(Behaviour(first=0.1)) as server:
        (got,) = run(server, [Planned(0.0, "hello", 1, 3)], chat=True)
    assert len(got.chunks) == 3
    assert got.chunks[0] - got.sent >= 0.1
    asked = server.requests[0]
    assert (asked["path"], asked["messages"]) == ("/v1/chat/completions", [{"role": "user", "content": "hello"}])


def test_what_is_asked_for() -> None:
    with FakeServer() as server:
        run(server, plan(1), body={"ignore_eos": True}, headers={"Authorization": "Bearer k"}, endpoint="/x")
    assert server.requests == [
        {
            "path": "/x",
            "model": "fake",
            "prompt": [1, 2, 3, 0],
            "max_tokens": 5,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
    ]
    assert server.headers[0]["authorization"] == "Bearer k"


def test_the_loop_is_open() -> None:
    """A server that answers nothing for a second gets every request on time all the same."""
    with FakeServer(Behaviour(first=1.0, gap=0.0)) as server:
        outcomes = run(server, plan(12, every=0.04))
    assert server.most == 12
    began = server.times[0]
    for at, (outcome, arrived) in enumerate(zip(outcomes, server.times, strict=True)):
        assert 0 <= outcome.lateness < SLACK
        assert outcome.sent == pytest.approx(at * 0.04 + outcome.lateness, abs=0.02)
        assert arrived - began == pytest.approx(at * 0.04, abs=SLACK)
    assert outcomes[-1].sent < outcomes[0].chunks[0]


def test_most_under_way() -> None:
    with FakeServer(Behaviour(first=0.05, gap=0.0)) as server:
        outcomes = run(server, plan(6), max_concurrency=2)
    assert server.most == 2
    assert all(outcome.ok for outcome in outcomes)
    # What a request waits for its turn is neither its latency nor the client's lateness.
    assert max(outcome.sent for outcome in outcomes) >= 0.1
    assert max(outcome.lateness for outcome in outcomes) < 0.1


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("status", 'status 503: {"error": "full"}'),
        ("error", "rank 1 died"),
        ("abort", "the server ended it: abort"),
        ("cut", "the stream ended early"),
        ("garbage", "a chunk is not what it should be"),
        ("silent", "no text came"),
        ("hang", "timed out after 0.7 s"),
    ],
)
def test_what_goes_wrong_is_noted_and_the_others_go_on(fault: str, said: str) -> None:
    with FakeServer(Behaviour(first=0.01, gap=0.001, fault=fault)) as server:
        outcomes = run(server, plan(6, every=0.02), timeout=0.7)
    assert [outcome.ok for outcome in outcomes] == [True, True, False, True, True, False]
    assert said in outcomes[2].error


def unused_url() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_the_models_of_a_server() -> None:
    with FakeServer(Behaviour(models=("a", "b"))) as server:
        assert asyncio.run(models(server.url, {})) == ["a", "b"]
    with pytest.raises(Unreachable, match="cannot be reached"):
        asyncio.run(models(unused_url(), {}))
    with pytest.raises(Unreachable, match="cannot be reached"):
        asyncio.run(models("nonsense", {}))
