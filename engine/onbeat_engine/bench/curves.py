"""Latency curves of a run as one HTML page that loads nothing: their distributions, and how they went over time."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files

from onbeat_engine.bench.client import RequestResult
from onbeat_engine.bench.stats import METRICS, describe, latencies, ttft

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 250, 56, 30, 12
"""Pixels of one chart."""
MARKED = (50, 90, 99)
"""Percentiles that are written beside a distribution."""
MOST_POINTS = 400
"""Points of a curve; of more, evenly chosen ones are drawn."""

Points = Sequence[tuple[float, float]]


def page(outcomes: Sequence[RequestResult], headline: str) -> str:
    """Return the page.

    Args:
        headline: what the run was, and its numbers in short.
    """
    style = (files("onbeat_engine.bench") / "page.css").read_text(encoding="utf-8")
    values = latencies(outcomes)
    charts = [
        _chart(
            f"{name}: share of {_unit(metric)} below",
            "ms",
            "%",
            curve=ecdf(values.of(metric)),
            marks=describe(values.of(metric), MARKED),
        )
        for metric, name in METRICS.items()
        if values.of(metric)
    ]
    good = [each for each in outcomes if each.ok]
    if good:
        dots = [(each.sent, ttft(each)) for each in good]
        charts.append(_chart("TTFT of each request, by when it was sent", "s", "ms", dots=dots))
        charts.append(_chart("Concurrent requests", "s", "", curve=under_way(outcomes)))
        charts.append(_chart("Output chunks per second", "s", "", curve=rate(good)))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(headline)} · onbeat bench</title>
<style>
{style}</style>
</head>
<body>
<p class="kind">onbeat bench</p>
<h1>{escape(headline)}</h1>
<main>{"".join(charts) or "<p>No request came to its end.</p>"}</main>
</body>
</html>
"""


def _unit(metric: str) -> str:
    return "gaps" if metric == "itl" else "requests"


def ecdf(values: Iterable[float]) -> Points:
    """Return the empirical distribution: a value, and the percentage of values that are not above it."""
    ordered = sorted(values)
    return _thinned([(value, 100 * (at + 1) / len(ordered)) for at, value in enumerate(ordered)])


def under_way(outcomes: Sequence[RequestResult]) -> Points:
    """Return how many requests were under way, whenever that changed."""
    changes = sorted([(each.sent, 1) for each in outcomes] + [(each.ended, -1) for each in outcomes])
    points, now = [], 0
    for at, change in changes:
        now += change
        points.append((at, float(now)))
    return _thinned(points)


def rate(outcomes: Sequence[RequestResult]) -> Points:
    """Return chunks per second, in up to 60 intervals of the run."""
    times = sorted(at for each in outcomes for at in each.chunks)
    span = times[-1] / min(60, max(1, len(times)))
    counts = [0] * (int(times[-1] / span) + 1)
    for at in times:
        counts[int(at / span)] += 1
    # The last value falls into an interval of its own that has just begun.
    counts[-2:] = [sum(counts[-2:])] if len(counts) > 1 else counts
    return [((at + 0.5) * span, count / span) for at, count in enumerate(counts)]


def _thinned(points: list[tuple[float, float]]) -> Points:
    if len(points) <= MOST_POINTS:
        return points
    step = (len(points) - 1) / (MOST_POINTS - 1)
    return [points[round(at * step)] for at in range(MOST_POINTS)]


def _chart(
    title: str,
    x_unit: str,
    y_unit: str,
    *,
    curve: Points = (),
    dots: Points = (),
    marks: Mapping[str, float] | None = None,
) -> str:
    """Draw a curve or dots; a curve with marks is a distribution, in percent."""
    points = curve or dots
    x_max = max(x for x, _ in points) or 1.0
    y_max = 100.0 if marks else max(y for _, y in points) * 1.05 or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + x / x_max * (WIDTH - LEFT - 14),
            HEIGHT - BOTTOM - y / y_max * (HEIGHT - BOTTOM - TOP),
        )

    drawn = []
    for tick in _ticks(x_max):
        x, y = place(tick, 0)
        drawn.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{tick:g} {x_unit}</text>')
    for tick in _ticks(y_max):
        x, y = place(0, tick)
        drawn.append(f'<line class="grid" x1="{x:.1f}" y1="{y:.1f}" x2="{WIDTH - 14}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{tick:g} {y_unit}</text>')
    if curve:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve))
        drawn.append(f'<polyline class="curve" points="{path}"/>')
    for point in dots:
        x, y = place(*point)
        drawn.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>')
    if marks:
        for percent in MARKED:
            value = marks[f"p{percent}"]
            x, y = place(value, percent)
            drawn.append(f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
            anchor, offset = ("end", -8) if x > WIDTH / 2 else ("start", 8)
            drawn.append(
                f'<text class="said" x="{x + offset:.1f}" y="{y + 14:.1f}" text-anchor="{anchor}">'
                f"p{percent} {value:,.4g} ms</text>"
            )
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(drawn)}</svg></figure>'
    )


def _ticks(most: float) -> list[float]:
    """Return round numbers from 0 on, about five of them."""
    power = 10.0
    while power > most / 5:
        power /= 10
    step = next(
        factor * power for factor in (1, 2, 5, 10, 20, 50, 100, 1e3, 1e4, 1e5, 1e6, 1e9) if most / (factor * power) <= 6
    )
    return [at * step for at in range(int(most / step) + 1)]
