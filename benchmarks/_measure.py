"""What the scheduler's benchmark measures of onbeat: a step, the monitor on it, and the audit's search."""

import gc
import statistics
from collections.abc import Iterable, Sequence
from time import perf_counter_ns
from typing import NamedTuple

from onbeat_reference import Request, Scheduler
from onbeat_reference.watch import Watch
from onbeat_spec.config import Config
from onbeat_spec.policy import Policy
from onbeat_spec.records import Step

# The peer's, by the same names; a test compares them.
BLOCK_SIZE = 16
NUM_BLOCKS = 20_000
MAX_BATCHED_TOKENS = 8192
MAX_SEQS = 1024
PROMPT_TOKENS = 32
MAX_MODEL_LEN = 8192

LOOK_EVERY = 8
"""Steps between two looks of the monitor at the whole state, here; the result is converted to the monitor's default."""


class Effort(NamedTuple):
    """How long to measure."""

    rounds: int
    steps: int
    """Measured steps of each round."""
    warmup: int
    operations: int
    """Most operations in one scope of the search."""


FULL = Effort(5, 200, 50, 1_000_000)
QUICK = Effort(2, 40, 10, 300)


class Shape(NamedTuple):
    """What is measured once: so many running decodes."""

    decodes: int
    prefix_caching: bool


class Times(NamedTuple):
    """Median microseconds of one step; `both_us` is the median of the sums."""

    schedule_us: float
    update_us: float
    both_us: float


class Watching(NamedTuple):
    """Median microseconds that the monitor adds to one step: to most steps, and to one in which it looks at it all."""

    step_us: float
    whole_us: float


class Search(NamedTuple):
    """What the exhaustive search did."""

    scopes: int
    steps: int
    seconds: float


# --- One scheduler ---------------------------------------------------------------------------------------------------


def build_scheduler(prefix_caching: bool, threshold: int = 0, kind: type[Scheduler] = Scheduler) -> Scheduler:
    """Build what is measured; prefills get at most `threshold` tokens a step (0: no cap)."""
    return kind(
        Config(
            block_size=BLOCK_SIZE,
            num_blocks=NUM_BLOCKS,
            max_num_batched_tokens=MAX_BATCHED_TOKENS,
            max_num_seqs=MAX_SEQS,
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=prefix_caching,
            long_prefill_token_threshold=threshold,
        )
    )


DEFAULT_LOOKS = Watch(build_scheduler(False)).audit_every


def build_requests(count: int) -> list[Request]:
    """Build requests whose prompts share no token, and which never end by themselves."""
    return [
        Request(
            f"r{number}",
            range(number * PROMPT_TOKENS, (number + 1) * PROMPT_TOKENS),
            MAX_MODEL_LEN - PROMPT_TOKENS,
        )
        for number in range(count)
    ]


def sampled(scheduler: Scheduler, step: Step, token: int) -> dict[str, Sequence[int]]:
    """Return the outputs of a step: one token for each request that has no prompt left to compute."""
    return {id: [token] for id in step.scheduled if scheduler.requests[id].num_placeholders}


def start(scheduler: Scheduler, decodes: int, watch: Watch | None = None) -> None:
    """Step until so many requests have their whole prompt computed and their first token sampled."""
    for request in build_requests(decodes):
        scheduler.add_request(request)
    while any(request.num_tokens == request.num_prompt for request in scheduler.requests.values()):
        step = scheduler.schedule()
        if watch is not None:
            watch.step(step)
        outputs = scheduler.update(step, sampled(scheduler, step, 1))
        if watch is not None:
            watch.delivered(outputs)
    gc.collect()


def timed_step(scheduler: Scheduler, decodes: int, token: int) -> tuple[int, int]:
    """Take one pure-decode step; return the nanoseconds of `schedule()` and of `update()`."""
    began = perf_counter_ns()
    step = scheduler.schedule()
    schedule_ns = perf_counter_ns() - began
    if len(step.scheduled) != decodes or sum(step.scheduled.values()) != decodes:
        raise RuntimeError(f"a step with {decodes} decodes scheduled {sum(step.scheduled.values())} tokens")
    outputs = sampled(scheduler, step, token)
    began = perf_counter_ns()
    scheduler.update(step, outputs)
    return schedule_ns, perf_counter_ns() - began


def measure(shape: Shape, effort: Effort) -> Times:
    """Measure a scheduler of its own."""
    scheduler = build_scheduler(shape.prefix_caching)
    start(scheduler, shape.decodes)
    samples = [timed_step(scheduler, shape.decodes, token) for token in range(effort.warmup + effort.steps)]
    del samples[: effort.warmup]
    return Times(
        median_us(schedule for schedule, _ in samples),
        median_us(update for _, update in samples),
        median_us(schedule + update for schedule, update in samples),
    )


def watched_step(scheduler: Scheduler, watch: Watch, token: int) -> tuple[bool, int]:
    """Take one watched step; return whether the monitor looked at the whole state, and its nanoseconds."""
    step = scheduler.schedule()
    began = perf_counter_ns()
    watch.step(step)
    watch_ns = perf_counter_ns() - began
    outputs = scheduler.update(step, sampled(scheduler, step, token))
    began = perf_counter_ns()
    watch.delivered(outputs)
    return step.index % watch.audit_every == 0, watch_ns + perf_counter_ns() - began


def measure_watch(shape: Shape, effort: Effort) -> Watching:
    """Measure the monitor, on a scheduler of its own."""
    scheduler = build_scheduler(shape.prefix_caching)
    watch = Watch(scheduler, audit_every=LOOK_EVERY)
    start(scheduler, shape.decodes, watch)
    samples = [watched_step(scheduler, watch, token) for token in range(effort.warmup + effort.steps)]
    del samples[: effort.warmup]
    if watch.violations:
        raise RuntimeError(f"the monitor found {watch.violations[0]}")
    return Watching(
        median_us(taken for whole, taken in samples if not whole),
        median_us(taken for whole, taken in samples if whole),
    )


def median_us(nanoseconds: Iterable[int]) -> float:
    """Return the median in microseconds."""
    return statistics.median(nanoseconds) / 1000


# --- The search ------------------------------------------------------------------------------------------------------


def measure_search(operations: int) -> Search:
    """Explore all small worlds of the audit, as deep as a quick one goes; at most so many operations in each."""
    # Late, so that nothing but the scheduler is loaded while it is measured.
    from onbeat_proofs.audit.budgets import LIMITS  # noqa: PLC0415
    from onbeat_proofs.audit.search import Exploration  # noqa: PLC0415
    from onbeat_proofs.audit.worlds import SCOPES  # noqa: PLC0415

    def found(violation: object, scenario: object) -> None:
        raise RuntimeError(f"the search found {violation}")

    limits = LIMITS["quick"]
    explored = []
    for scope in SCOPES:
        exploration = Exploration(scope, Scheduler, Policy(), found, most=min(limits.operations, operations))
        depth = scope.depths[limits.depth]
        for level in range(depth):
            exploration.level(last=level == depth - 1)
        explored.append(exploration.explored)
    return Search(len(explored), sum(part.steps for part in explored), sum(part.seconds for part in explored))
