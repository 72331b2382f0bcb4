"""`onbeat bench serve`: load on a server, from the plan to the numbers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from onbeat_engine.bench.client import RequestResult, ServerTarget, drive, models
from onbeat_engine.bench.prompts import Lengths, Planned, arrival_times, random_requests, trace_requests
from onbeat_engine.bench.stats import summary
from onbeat_reference.workload import arrivals
from onbeat_spec.errors import OnbeatError, WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent, and when."""

    dataset: str = "random"
    """`random` or `trace`."""
    path: str | None = None
    """Of a trace; `builtin` is a made-up one."""
    num_prompts: int = 1000
    lengths: Lengths = field(default_factory=Lengths)
    max_input_len: int | None = None
    max_output_len: int | None = None
    rate: float | None = None
    """Requests per second; None: all at once, and a trace at its own times."""
    burstiness: float = 1.0
    speed: float = 1.0
    """A trace's own times are divided by it."""
    vocab_size: int | None = None
    seed: int = 0

    def plan(self) -> list[Planned]:
        """Return the requests.

        Raises:
            WorkloadError: the trace cannot be read.
        """
        endless = arrival_times(float("inf") if self.rate is None else self.rate, self.burstiness, seed=self.seed)
        if self.dataset == "random":
            times = list(islice(endless, self.num_prompts))
            return random_requests(self.num_prompts, self.lengths, times, seed=self.seed, vocab_size=self.vocab_size)
        if self.path is None:
            raise WorkloadError("--dataset-name trace needs --dataset-path: a file of arrivals, or builtin")
        found = arrivals(self.path, self.seed)[: self.num_prompts]
        own = [each.time_s / self.speed for each in found]
        return trace_requests(
            found,
            own if self.rate is None else list(islice(endless, len(found))),
            seed=self.seed,
            vocab_size=self.vocab_size,
            max_input_len=self.max_input_len,
            max_output_len=self.max_output_len,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeResult:
    """All requests of a run, and its numbers."""

    outcomes: list[RequestResult]
    numbers: dict[str, Any]


async def first_model(target: ServerTarget) -> ServerTarget:
    """Return the target with the model that the server serves, if none is named; it is asked in any case.

    Raises:
        Unreachable: no OpenAI-compatible server answers.
    """
    served = await models(target.base_url, target.headers)
    if target.model:
        return target
    if not served:
        raise OnbeatError(f"{target.base_url} serves no model; give --model")
    return replace(target, model=served[0])


async def _run(
    target: ServerTarget,
    planned: Sequence[Planned],
    max_concurrency: int | None,
    warmups: int,
    progress: Callable[[RequestResult], None] | None,
) -> tuple[ServerTarget, list[RequestResult], float]:
    target = await first_model(target)
    if warmups:
        again = [Planned(0.0, each.prompt, each.prompt_len, each.output_len) for each in planned[:warmups]]
        await drive(target, again)
    outcomes, duration = await drive(target, planned, max_concurrency=max_concurrency, progress=progress)
    return target, outcomes, duration


def serve(
    target: ServerTarget,
    load: Load,
    planned: Sequence[Planned],
    *,
    max_concurrency: int | None = None,
    warmups: int = 0,
    percentiles: tuple[float, ...] = (50, 90, 99),
    goodput: Mapping[str, float] | None = None,
    progress: Callable[[RequestResult], None] | None = None,
) -> ServeResult:
    """Send a load to a server.

    Args:
        load: where the requests come from; it is told in the result.
        planned: the requests, `load.plan()`.
        max_concurrency: most requests under way at once.
        warmups: requests, the first ones of the load, that are sent beforehand and not measured.
        goodput: milliseconds by metric.
        progress: told of each request that has ended.

    Raises:
        Unreachable: no OpenAI-compatible server answers.
    """
    target, outcomes, duration = asyncio.run(_run(target, planned, max_concurrency, warmups, progress))
    numbers = summary(outcomes, duration, percentiles=percentiles, goodput=goodput)
    numbers = {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": "openai-chat" if target.chat else "openai",
        "base_url": target.base_url,
        "model_id": target.model,
        "dataset": load.dataset,
        "num_prompts": len(planned),
        "request_rate": "inf" if load.rate is None and load.dataset == "random" else load.rate or "trace",
        "burstiness": load.burstiness,
        "max_concurrency": max_concurrency,
        "seed": load.seed,
        "goodput": dict(goodput or {}),
        **numbers,
    }
    return ServeResult(outcomes=outcomes, numbers=numbers)
