"""`/metrics`. Names are vLLM's with `onbeat:` for `vllm:`, so that a dashboard ports by renaming.

What ranks report is read off their latest report when it is asked for, and so is as fresh as that (case B103); what
only the front end sees (latencies, ends) is counted here.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from onbeat_engine.server.engine import Engine, ServedOutput
from onbeat_engine.wire.messages import RankStats

LABELS = ("model_name", "engine")
FINISHED = ("stop", "length", "abort", "error")

GAUGES = {
    "num_requests_running": ("Requests that the rank runs.", "running"),
    "num_requests_waiting": ("Requests that wait at the rank.", "waiting"),
    "kv_cache_usage_perc": ("Share of KV blocks in use; 1 is all.", "kv_cache_usage"),
}
FRONT: dict[str, tuple[str, Callable[[Engine], int]]] = {
    "num_requests_held": ("Requests that the front end holds until a pause ends.", lambda engine: engine.num_held),
    "num_requests_unfinished": ("Requests that ranks have, or are sent.", lambda engine: engine.num_unfinished),
}
COUNTERS = {
    "prompt_tokens": ("Prompt tokens processed.", "prompt_tokens"),
    "generation_tokens": ("Tokens generated.", "generation_tokens"),
    "num_preemptions": ("Preemptions.", "preemptions"),
    "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", "prefix_cache_queries"),
    "prefix_cache_hits": ("Prompt tokens found there.", "prefix_cache_hits"),
    "steps": ("Steps with work.", "steps"),
    "dummy_steps": ("Steps taken only because the group took one.", "dummy_steps"),
    "held_steps": ("Steps that held prefills back.", "held_steps"),
}
SHORT = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
LONG = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
HISTOGRAMS = {
    "time_to_first_token_seconds": ("From a request's arrival to its first token.", SHORT),
    "inter_token_latency_seconds": ("Between two tokens of a completion.", SHORT),
    "request_time_per_output_token_seconds": ("Mean time between a completion's tokens after its first.", SHORT),
    "e2e_request_latency_seconds": ("From a request's arrival to its end.", LONG),
}


Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)


class RankCollector(Collector):
    """What the ranks report of themselves."""

    def __init__(self, engine: Engine, model: str) -> None:
        self.engine = engine
        self.model = model

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield every family, with one sample per rank."""
        stats = self.engine.stats()
        for name, (help_text, attribute) in GAUGES.items():
            yield self._filled(GaugeMetricFamily(f"onbeat:{name}", help_text, labels=LABELS), stats, attribute)
        for name, (help_text, attribute) in COUNTERS.items():
            yield self._filled(CounterMetricFamily(f"onbeat:{name}", help_text, labels=LABELS), stats, attribute)
        for name, (help_text, number) in FRONT.items():
            gauge = GaugeMetricFamily(f"onbeat:{name}", help_text, labels=LABELS[:1])
            gauge.add_metric((self.model,), number(self.engine))
            yield gauge
        asleep = GaugeMetricFamily("onbeat:engine_sleeping", "1: the rank has given its memory up.", labels=LABELS)
        yield self._filled(asleep, stats, "asleep")
        violations = CounterMetricFamily(
            "onbeat:invariant_violations", "Violations of each invariant.", labels=(*LABELS, "invariant")
        )
        for each in stats:
            for invariant, count in sorted(each.violations.items()):
                violations.add_metric((self.model, str(each.rank), invariant), count)
        for invariant, count in sorted(self.engine.group_violations().items()):
            violations.add_metric((self.model, "group", invariant), count)
        yield violations

    def _filled(self, family: Family, stats: Sequence[RankStats], attribute: str) -> Family:
        for each in stats:
            family.add_metric((self.model, str(each.rank)), float(getattr(each, attribute)))
        return family


class ServerMetrics:
    """All that `/metrics` shows, in a registry of its own."""

    def __init__(self, engine: Engine, model: str) -> None:
        self.model = model
        self.registry = CollectorRegistry()
        self.registry.register(RankCollector(engine, model))
        self.histograms = {
            name: Histogram(f"onbeat:{name}", help_text, LABELS, buckets=buckets, registry=self.registry)
            for name, (help_text, buckets) in HISTOGRAMS.items()
        }
        self.ends = Counter(
            "onbeat:request_success",
            "Completions that have ended, by how.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        self.ranks: dict[int, RankMetrics] = {}
        for each in engine.ranks:  # there from the start, so that a rate has a zero to start from
            self.of(each.rank)

    def watch(self, name: str, help_text: str, number: Callable[[], int]) -> None:
        """Show what a function returns."""
        gauge = Gauge(f"onbeat:{name}", help_text, LABELS[:1], registry=self.registry)
        gauge.labels(self.model).set_function(number)

    def of(self, rank: int) -> "RankMetrics":
        """Return what requests that this rank serves are counted in; -1: none does yet."""
        if rank not in self.ranks:
            where = (self.model, str(rank) if rank >= 0 else "none")
            self.ranks[rank] = RankMetrics(
                {name: each.labels(*where) for name, each in self.histograms.items()},
                {reason: self.ends.labels(*where, reason) for reason in FINISHED},
            )
        return self.ranks[rank]


class RankMetrics(NamedTuple):
    """What requests of one rank are counted in."""

    latencies: dict[str, Histogram]
    """By name, a key of `HISTOGRAMS`."""
    ends: dict[str, Counter]
    """By reason."""


@dataclass(slots=True)
class RequestTimes:
    """The latencies of one prompt's completions."""

    metrics: ServerMetrics
    arrival: float = field(default_factory=time.monotonic)
    first: dict[int, float] = field(default_factory=dict)
    """By choice: when its first token came."""
    latest: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By choice: when its latest token came, and how many there are."""
    ended: int = 0
    rank: int = -1

    def output(self, output: ServedOutput) -> None:
        """Count what an output brings."""
        now = time.monotonic()
        self.rank = output.rank
        for choice in output.outputs:
            if new := len(choice.token_ids):
                self._tokens(choice.index, new, now)
            if choice.finish_reason is not None and choice.finish_reason != "error":
                self._end(choice.index, choice.finish_reason, now)

    def left(self, reason: str, n: int) -> None:
        """Count the end of those of n completions that have not ended by themselves."""
        for _ in range(n - self.ended):
            self._count(reason)
        self.ended = n

    def _tokens(self, index: int, new: int, now: float) -> None:
        if index not in self.first:
            self.first[index] = now
            self.latest[index] = (now, new)
            self._observe("time_to_first_token_seconds", now - self.arrival)
            return
        before, count = self.latest[index]
        for _ in range(new):
            self._observe("inter_token_latency_seconds", (now - before) / new)
        self.latest[index] = (now, count + new)

    def _end(self, index: int, reason: str, now: float) -> None:
        self.ended += 1
        self._count(reason)
        self._observe("e2e_request_latency_seconds", now - self.arrival)
        latest, count = self.latest.get(index, (now, 0))
        if count > 1:
            mean = (latest - self.first[index]) / (count - 1)
            self._observe("request_time_per_output_token_seconds", mean)

    def _observe(self, name: str, seconds: float) -> None:
        self.metrics.of(self.rank).latencies[name].observe(seconds)

    def _count(self, reason: str) -> None:
        self.metrics.of(self.rank).ends[reason].inc()
