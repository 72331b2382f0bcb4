"""What a run measured: latencies, throughput, goodput. Names of the numbers are those of vLLM's benchmark."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from onbeat_engine.bench.client import RequestResult
from onbeat_spec.errors import OnbeatError

METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
"""Time to the first token; time per output token after the first; time between two chunks; time to the end."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """All values of the four latencies, in milliseconds. All but `itl` have one for each request, in order; `tpot`
    leaves out those with a single token."""

    ttft: list[float]
    tpot: list[float]
    itl: list[float]
    e2el: list[float]

    def of(self, metric: str) -> list[float]:
        """Return the values of one."""
        values: list[float] = getattr(self, metric)
        return values


def ttft(outcome: RequestResult) -> float:
    """Milliseconds from sending to the first text."""
    return 1000 * (outcome.chunks[0] - outcome.sent)


def e2el(outcome: RequestResult) -> float:
    """Milliseconds from sending to the last text."""
    return 1000 * (outcome.chunks[-1] - outcome.sent)


def tpot(outcome: RequestResult) -> float | None:
    """Milliseconds per token after the first; None if there is only one."""
    if outcome.tokens < 2:
        return None
    return 1000 * (outcome.chunks[-1] - outcome.chunks[0]) / (outcome.tokens - 1)


def latencies(outcomes: Sequence[RequestResult]) -> Latencies:
    """Collect the latencies of the requests that did not fail."""
    good = [outcome for outcome in outcomes if outcome.ok]
    gaps = (1000 * (b - a) for each in good for a, b in pairwise(each.chunks))
    return Latencies(
        [ttft(each) for each in good],
        [value for each in good if (value := tpot(each)) is not None],
        list(gaps),
        [e2el(each) for each in good],
    )


def describe(values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """Return mean, median, standard deviation and percentiles (linear between neighbours); empty of no values."""
    if not values:
        return {}
    array = np.asarray(values, dtype=np.float64)
    found = {"mean": float(array.mean()), "median": float(np.median(array)), "std": float(array.std())}
    for percentile in percentiles:
        found[f"p{percentile:g}"] = float(np.percentile(array, percentile))
    return found


def parse_goodput(limits: Sequence[str]) -> dict[str, float]:
    """Read limits such as `ttft:500`: milliseconds, that a good request does not exceed.

    Raises:
        OnbeatError: one is not of that form.
    """
    found: dict[str, float] = {}
    for limit in limits:
        name, _, value = limit.partition(":")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if name not in ("ttft", "tpot", "e2el") or not 0 < number < float("inf"):
            raise OnbeatError(
                f"--goodput {limit!r}: give ttft, tpot or e2el and milliseconds above 0, such as ttft:500"
            )
        found[name] = number
    return found


def is_good(outcome: RequestResult, limits: Mapping[str, float]) -> bool:
    """Whether a request came to its end within all limits. One token alone meets any limit of `tpot`."""
    if not outcome.ok:
        return False
    values = {"ttft": ttft(outcome), "tpot": tpot(outcome) or 0.0, "e2el": e2el(outcome)}
    return all(values[name] <= limit for name, limit in limits.items())


def summary(
    outcomes: Sequence[RequestResult],
    duration: float,
    *,
    percentiles: Sequence[float] = (50, 90, 99),
    goodput: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return all numbers of a run.

    Args:
        duration: seconds from the start to the end of the last request.
        goodput: milliseconds by metric.
    """
    good = [outcome for outcome in outcomes if outcome.ok]
    inputs = sum(each.planned.prompt_len if each.prompt_tokens is None else each.prompt_tokens for each in good)
    outputs = sum(each.tokens for each in good)
    per_second = 1 / duration if duration > 0 else 0.0
    values = latencies(outcomes)
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "errors": dict(Counter(outcome.error for outcome in outcomes if not outcome.ok).most_common(10)),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(good) * per_second,
        "output_throughput": outputs * per_second,
        "total_token_throughput": (inputs + outputs) * per_second,
        "uncounted": sum(each.output_tokens is None for each in good),
        "short": sum(each.tokens < each.planned.output_len for each in good),
        "max_concurrent_requests": concurrent(outcomes),
    }
    if goodput:
        result["request_goodput"] = sum(is_good(each, goodput) for each in outcomes) * per_second
        result["good"] = sum(is_good(each, goodput) for each in outcomes)
    for metric in METRICS:
        for name, value in describe(values.of(metric), percentiles).items():
            result[f"{name}_{metric}_ms"] = value
    for name, value in describe([1000 * each.lateness for each in outcomes], (99, 100)).items():
        if name != "std":
            result[f"{'max' if name == 'p100' else name}_lateness_ms"] = value
    return result


def concurrent(outcomes: Sequence[RequestResult]) -> int:
    """Return how many requests were under way at once, at most."""
    changes = sorted([(each.sent, 1) for each in outcomes] + [(each.ended, -1) for each in outcomes])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
