"""The client against a server with known timings."""

import asyncio
import socket
import time
from itertools import pairwise
from typing import Any

import pytest

from onbeat_engine.bench import client
from onbeat_engine.bench.client import HEAD_START, RequestResult, ServerTarget, Unreachable, drive, models
from onbeat_engine.bench.prompts import Planned
from onbeat_engine.bench.stats import latencies, tpot
from tests.engine.bench.fake_server import Behaviour, FakeServer


def plan(count: int, *, every: float = 0.0, tokens: int = 5) -> list[Planned]:
    return [Planned(at * every, [1, 2, 3, at], 4, tokens) for at in range(count)]


def run(
    server: FakeServer, planned: list[Planned], *, max_concurrency: int | None = None, **more: object
) -> list[RequestResult]:
    target = ServerTarget(base_url=server.url, model="fake", **more)  # type: ignore[arg-type]  # keywords of one test each
    return asyncio.run(drive(target, planned, max_concurrency=max_concurrency))[0]


def test_times_of_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text is noted after it was written, and, as the next one waits for that, a gap before the next one is."""
    first, gap, decode = 0.05, 0.01, client._decode
    heard: list[bytes] = []

    def noted(data: bytes) -> Any:
        heard.append(data)
        return decode(data)

    monkeypatch.setattr(client, "_decode", noted)
    with FakeServer(Behaviour(first=first, gap=gap, heard=lambda: len(heard))) as server:
        (got,) = run(server, plan(1))
    assert got.ok
    assert (got.tokens, got.prompt_tokens, len(got.chunks)) == (5, 4, 5)
    found = latencies([got])
    arrived, written = server.times[0], server.written
    assert 1000 * first <= 1000 * (written[0] - arrived) <= found.ttft[0]
    assert all(each >= 1000 * gap for each in found.itl)
    for noted_at, (at, later) in zip(got.chunks[1:], pairwise([*written[1:], float("inf")]), strict=True):
        assert at - (written[1] - gap) <= noted_at - got.chunks[0] <= later - gap - written[0]
    assert sum(found.itl) == pytest.approx(found.e2el[0] - found.ttft[0])
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
    """A server that answers nobody before all are there gets every request all the same, none before it is due."""
    with FakeServer(Behaviour(first=0.0, gap=0.0, together=12)) as server:
        earliest = time.perf_counter() + HEAD_START
        outcomes = run(server, plan(12, every=0.02))
    assert server.most == 12
    arrived = {asked["prompt"][3]: at for asked, at in zip(server.requests, server.times, strict=True)}
    for number, outcome in enumerate(outcomes):
        assert outcome.lateness >= 0
        assert number * 0.02 + outcome.lateness <= outcome.sent <= arrived[number] - earliest
    assert outcomes[-1].sent < outcomes[0].chunks[0]


def test_most_under_way() -> None:
    with FakeServer(Behaviour(first=0.05, gap=0.0)) as server:
        outcomes = run(server, plan(6), max_concurrency=2)
    assert server.most == 2
    assert all(outcome.ok for outcome in outcomes)
    # What a request waits for its turn is neither its latency nor the client's lateness.
    assert max(outcome.sent for outcome in outcomes) >= 0.1
    assert max(outcome.lateness for outcome in outcomes) < min(outcome.ended for outcome in outcomes)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("status", 'status 503: {"error": "full"}'),
        ("error", "rank 1 died"),
        ("abort", "the server ended it: abort"),
        ("cut", "the stream ended early"),
        ("garbage", "a chunk is not what it should be"),
        ("silent", "no text came"),
        ("hang", "timed out after 2 s"),
    ],
)
def test_what_goes_wrong_is_noted_and_the_others_go_on(fault: str, said: str) -> None:
    with FakeServer(Behaviour(first=0.01, gap=0.001, fault=fault)) as server:
        outcomes = run(server, plan(6, every=0.02), timeout=2.0 if fault == "hang" else 60.0)
    wrong = [outcome.error for outcome in outcomes if not outcome.ok]
    assert len(wrong) == 2
    assert all(said in error for error in wrong)


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
