"""Latency curves."""

import re

from onbeat_engine.bench.client import RequestResult
from onbeat_engine.bench.curves import MOST_POINTS, ecdf, page, rate, under_way
from onbeat_engine.bench.prompts import Planned


def outcome(sent: float, *chunks: float, error: str = "") -> RequestResult:
    return RequestResult(Planned(0.0, "x", 1, 9), sent, 0.0, list(chunks), chunks[-1] if chunks else sent, error=error)


RUN = [outcome(0.0, 0.1, 0.2, 0.4), outcome(0.1, 0.3, 0.5), outcome(0.2, error="x")]


def test_ecdf() -> None:
    assert ecdf([3.0, 1.0, 2.0, 2.0]) == [(1.0, 25.0), (2.0, 50.0), (2.0, 75.0), (3.0, 100.0)]
    many = ecdf(float(at) for at in range(10_000))
    assert (len(many), many[0], many[-1]) == (MOST_POINTS, (0.0, 0.01), (9999.0, 100.0))


def test_under_way() -> None:
    assert max(count for _, count in under_way(RUN)) == 2
    assert under_way(RUN)[-1] == (0.5, 0.0)


def test_every_chunk_is_in_the_rate() -> None:
    points = rate(RUN[:2])
    width = points[0][0] * 2
    assert round(sum(count * width for _, count in points)) == 5


def test_the_page() -> None:
    made = page(RUN, "fake: <3 requests>")
    assert "<3 requests>" not in made
    assert made.count("<figure>") == 7
    assert "p99" in made
    assert not re.findall(r"(?:src|href)=|https?://", made)
    assert "No request came to its end" in page(RUN[2:], "x")
