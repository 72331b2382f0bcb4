"""Drive one rank's scheduler through a workload, in virtual time and without a model."""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple, Protocol

from onbeat_reference import Outputs, Request, Scheduler
from onbeat_reference.workload import BLOCK_TOKENS, MAX_HASH, Arrival
from onbeat_spec.cadence import clock_for
from onbeat_spec.config import Config
from onbeat_spec.errors import RequestRefused
from onbeat_spec.policy import is_decode
from onbeat_spec.records import Step, Violation

DEPLOYMENT = Config(max_num_batched_tokens=8192, max_num_seqs=256, block_size=16, num_blocks=20_000)
"""A common deployment on one 80 GB GPU: what weights of 32 GB leave holds some 320,000 tokens of KV."""

BASE_S = 0.014
PREFILL_S = 60e-6
DECODE_S = 60e-6

EMPTY_STEPS = 100
"""Steps in a row without a token that a scheduler may take beyond what holds and steps in flight explain."""

PROGRESS_STEPS = 4096


def step_seconds(prefill_tokens: int, decodes: int) -> float:
    """Return the seconds that a step of so many prefill tokens and decodes takes.

    The constants are illustrative, not measured: 14 ms per step, 60 us per prefill token and 60 us per decode are of
    the order of a dense 32B model in 8 bits on one 80 GB GPU (32 GB of weights read at 2.3 TB/s, 64 GFLOP per token
    at 1.1 PFLOP/s, 1,000 tokens of KV at 128 KB each read per decode).
    """
    return BASE_S + PREFILL_S * prefill_tokens + DECODE_S * decodes


class RunMonitor(Protocol):
    """What watches a run; made from the scheduler before the first step."""

    @property
    def violations(self) -> Sequence[Violation]: ...

    def step(self, step: Step) -> object:
        """`schedule` has just returned `step`."""

    def delivered(self, outputs: Outputs) -> object:
        """`update` has just returned `outputs`."""


class Percentiles(NamedTuple):
    """Nearest-rank percentiles, in virtual seconds, rounded to microseconds."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class ArrivalsReport:
    """What became of a workload. Times are virtual seconds unless they say wall."""

    requests: int
    finished: int
    """Ended with exactly the tokens that they were due."""
    refused: int
    """Not accepted (`RequestRefused`): what can never fit."""
    lost: int
    """All others: never ended, or ended with more or fewer tokens. 0, or the scheduler is wrong."""
    stalled: bool
    """The run was given up: the scheduler had work and let nothing come of it."""
    steps: int
    executed_steps: int
    """Steps that scheduled at least one token."""
    held_steps: int
    """Steps that passed at least one request over because of the hold."""
    prefill_tokens: int
    """Scheduled tokens of requests with more than one token of local work, recomputation included."""
    decode_tokens: int
    """Scheduled tokens of requests with one token of local work."""
    preemptions: int
    max_waiting: int
    """Most requests waiting at the beginning of a step."""
    blocks_missing: int
    """KV blocks not free at the end; 0, or the scheduler leaks. Nothing runs then, unless requests were lost."""
    blocks_promised: int
    """Blocks still promised at the end; 0, as above."""
    violations: tuple[Violation, ...]
    """What the monitor found."""
    duration_s: float
    """From the first arrival to the last output."""
    ttft: Percentiles | None
    """Arrival to first token. None without any."""
    itl: Percentiles | None
    """Between two tokens of one request. None without any."""
    wall_s: float
    """Wall seconds of the run itself."""

    @property
    def clean(self) -> bool:
        """Nothing lost, every block back, nothing violated."""
        return not (self.lost or self.blocks_missing or self.blocks_promised or self.violations)


def drive(
    scheduler_class: Callable[[Config], Scheduler],
    config: Config,
    arrivals: Sequence[Arrival],
    *,
    interval: int = 1,
    monitor: Callable[[Scheduler], RunMonitor] | None = None,
    progress: Callable[[int, int], object] | None = None,
    seconds_per_step: Callable[[int, int], float] = step_seconds,
) -> ArrivalsReport:
    """Run a workload to its end on one scheduler.

    Each step takes the virtual time that `seconds_per_step` says; requests are handed over once that time has passed
    their arrival; the clock of `onbeat_spec.cadence` decides which steps are throttled; each step's outputs are
    delivered at its end. An empty step takes no time on a rank of its own. Every request samples its `output_tokens`,
    or up to its limit. With `async_depth` 2 each step is scheduled while the one before it runs.

    Args:
        scheduler_class: makes the scheduler, from `config` with `prefill_schedule_interval` set to `interval`.
        config: sizes and modes; `DEPLOYMENT` is a realistic one.
        arrivals: in the order of their times.
        interval: the prefill step cadence; 1 = off.
        monitor: makes what watches the run, from the scheduler.
        progress: called every few thousand steps and at the end, with the requests done and their number.
        seconds_per_step: of so many prefill tokens and decodes.

    Raises:
        ConfigError: `interval` does not go with `config`.
    """
    run = _Run(
        scheduler_class,
        config,
        arrivals,
        interval=interval,
        monitor=monitor,
        seconds_per_step=seconds_per_step,
    )
    began = perf_counter()
    while run.turn():
        if progress is not None and run.steps % PROGRESS_STEPS == 0:
            progress(run.refused + run.ended, len(arrivals))
    wall_s = perf_counter() - began
    if progress is not None:
        progress(run.refused + run.ended, len(arrivals))
    return run.report(wall_s)


class _Track:
    """What the driver knows of a request that was accepted and has not ended."""

    __slots__ = ("arrived", "delivered", "due", "last")

    def __init__(self, arrived: float, due: int) -> None:
        self.arrived = arrived
        self.due = due
        """Tokens until it must end."""
        self.delivered = 0
        self.last = arrived
        """When its latest token came."""


class _Flight(NamedTuple):
    """A step under way."""

    step: Step
    sampled: dict[str, Sequence[int]]
    seconds: float


_TOKEN = (0,)
"""What every request samples. One object for all: the scheduler only reads it."""


class _Run:
    """A run under way."""

    def __init__(
        self,
        scheduler_class: Callable[[Config], Scheduler],
        config: Config,
        arrivals: Sequence[Arrival],
        *,
        interval: int,
        monitor: Callable[[Scheduler], RunMonitor] | None,
        seconds_per_step: Callable[[int, int], float],
    ) -> None:
        config = replace(config, prefill_schedule_interval=interval)
        self.config = config
        self.arrivals = arrivals
        self.seconds_per_step = seconds_per_step
        self.clock = clock_for(interval, config.data_parallel_size)
        self.scheduler = scheduler_class(config)
        self.watch = monitor(self.scheduler) if monitor is not None else None
        self.now = 0.0
        self.flights: deque[_Flight] = deque()
        self.tracks: dict[str, _Track] = {}
        self.wrong: set[str] = set()
        """Requests that got more or fewer tokens than they were due."""
        self.next = 0
        self.refused = self.ended = 0
        self.steps = self.executed = self.held = 0
        self.prefill_tokens = self.decode_tokens = 0
        self.preemptions = self.max_waiting = 0
        self.stalled = False
        self.quiet = self.empty = 0
        """Steps in a row that delivered nothing; that scheduled nothing."""
        self.most_empty = EMPTY_STEPS + config.max_hold_steps + config.remote_load_timeout
        # One token a step is little, but it is progress.
        self.most_quiet = self.most_empty + config.max_model_len
        self.ttft = array("d")
        self.itl = array("d")

    def turn(self) -> bool:
        """One step, or the wait for the next request; False: the run is over."""
        self._admit_due()
        if self.scheduler.has_unfinished_requests():
            self._schedule()
            if len(self.flights) == self.config.async_depth:
                self._update()
        elif self.flights:
            self._update()
        elif self.next < len(self.arrivals):
            self.clock.idle()
            self.now = max(self.now, self.arrivals[self.next].time_s)
        else:
            return False
        self.stalled = self.empty > self.most_empty or self.quiet > self.most_quiet
        return not self.stalled

    def _admit_due(self) -> None:
        """Hand over every request whose time has come."""
        while self.next < len(self.arrivals) and self.arrivals[self.next].time_s <= self.now:
            arrival = self.arrivals[self.next]
            request = Request(f"r{self.next}", self._prompt(self.next, arrival), arrival.output_tokens)
            self.next += 1
            try:
                self.scheduler.add_request(request)
            except RequestRefused:
                self.refused += 1
            else:
                self.tracks[request.id] = _Track(arrival.time_s, request.limit - request.num_prompt)

    def _prompt(self, index: int, arrival: Arrival) -> list[int]:
        """Tokens that are equal where the hashes are, and nobody else's beyond them."""
        # A longer prompt can fit just as little, and building it would only cost memory.
        length = min(arrival.prompt_tokens, self.config.longest_request)
        prompt: list[int] = []
        for block_hash in arrival.block_hashes:
            prompt += [block_hash] * BLOCK_TOKENS
        del prompt[length:]
        return prompt + [MAX_HASH + 1 + index] * (length - len(prompt))

    def _schedule(self) -> None:
        self.max_waiting = max(self.max_waiting, len(self.scheduler.waiting))
        step = self.scheduler.schedule(self.clock.throttle())
        if self.watch is not None:
            self.watch.step(step)
        tokens = sum(step.scheduled.values())
        self.clock.executed(tokens, step.prefill, step.holding)
        sampled: dict[str, Sequence[int]] = dict.fromkeys(step.scheduled, _TOKEN)
        prefill = self._prefill(step, sampled) if step.prefill else 0
        self.steps += 1
        self.executed += tokens > 0
        self.held += bool(step.held)
        self.prefill_tokens += prefill
        self.decode_tokens += tokens - prefill
        self.preemptions += len(step.evictions)
        self.quiet += 1
        self.empty = 0 if tokens or step.loading else self.empty + 1
        seconds = 0.0
        # Without tokens nothing is launched, unless other ranks wait in this step's collectives.
        if tokens or self.config.data_parallel_size > 1:
            seconds = self.seconds_per_step(prefill, tokens - prefill)
        self.flights.append(_Flight(step, sampled, seconds))

    def _prefill(self, step: Step, sampled: dict[str, Sequence[int]]) -> int:
        """Count a step's prefill tokens, and take those requests out of `sampled` that did not reach their last."""
        requests = self.scheduler.requests
        prefill = 0
        for id, tokens in step.scheduled.items():
            # Whoever will sample has a placeholder for it.
            if requests[id].num_placeholders == 0:
                del sampled[id]
                prefill += tokens
            elif not is_decode(tokens):
                prefill += tokens
        return prefill

    def _update(self) -> None:
        step, sampled, seconds = self.flights.popleft()
        self.now += seconds
        outputs = self.scheduler.update(step, sampled)
        if self.watch is not None:
            self.watch.delivered(outputs)
        if not outputs.tokens:
            return
        self.quiet = 0
        now, tracks, gap = self.now, self.tracks, self.itl.append
        for id, tokens in outputs.tokens.items():
            track = tracks.get(id)
            if track is None:
                self.wrong.add(id)
                continue
            if track.delivered:
                gap(now - track.last)
            else:
                self.ttft.append(now - track.arrived)
            track.last = now
            track.delivered += len(tokens)
        for request in outputs.finished:
            track = tracks.pop(request.id, None)
            if track is None or track.delivered != track.due:
                self.wrong.add(request.id)
            if track is not None:
                self.ended += 1

    def report(self, wall_s: float) -> ArrivalsReport:
        """Sum up."""
        pool = self.scheduler.pool
        finished = self.ended - len(self.wrong - self.tracks.keys())
        return ArrivalsReport(
            requests=len(self.arrivals),
            finished=finished,
            refused=self.refused,
            lost=len(self.arrivals) - self.refused - finished,
            stalled=self.stalled,
            steps=self.steps,
            executed_steps=self.executed,
            held_steps=self.held,
            prefill_tokens=self.prefill_tokens,
            decode_tokens=self.decode_tokens,
            preemptions=self.preemptions,
            max_waiting=self.max_waiting,
            blocks_missing=pool.num_blocks - pool.free,
            blocks_promised=pool.promised,
            violations=tuple(self.watch.violations) if self.watch is not None else (),
            duration_s=round(self.now, 6),
            ttft=percentiles(self.ttft),
            itl=percentiles(self.itl),
            wall_s=wall_s,
        )


def percentiles(seconds: Iterable[float]) -> Percentiles | None:
    """Return the nearest-rank percentiles of durations in seconds; None if there are none."""
    ordered = sorted(seconds)
    if not ordered:
        return None
    p50, p90, p99 = (round(ordered[-(-percent * len(ordered) // 100) - 1], 6) for percent in (50, 90, 99))
    return Percentiles(p50, p90, p99)
