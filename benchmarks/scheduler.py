"""Measure the reference scheduler on pure-decode steps, beside vLLM's own, and what it costs to check a scheduler.

Three figures, none of which needs a GPU or a model:

    scheduler   median microseconds of `schedule()` and `update()` while n requests decode, prefix caching off and on;
                with --vllm-python beside those of vLLM's Scheduler (`_vllm_peer.py`), in the same run
    monitor     what watching every step adds
    search      checked steps per second of the audit's exhaustive search

Both sides get the same shape: prompts of 32 tokens, blocks of 16, as many warm-up and measured steps. Outputs are made
up outside the timed region, and the garbage collector stays on. The sides take turns in rounds, so that a busy machine
slows all of them down, and the round with the least medians counts: a step of milliseconds loses more to other jobs
than one of microseconds, so any other choice would flatter the faster side.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table

from onbeat_reference import Request, Scheduler
from onbeat_reference.watch import Watch
from onbeat_spec.config import Config
from onbeat_spec.policy import Policy
from onbeat_spec.records import Step

PEER = Path(__file__).with_name("_vllm_peer.py")

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


T = TypeVar("T", Times, Watching)


class Search(NamedTuple):
    """What the exhaustive search did."""

    scopes: int
    steps: int
    seconds: float


class Row(NamedTuple):
    """The result for one shape."""

    shape: Shape
    onbeat: Times
    vllm: Times | None
    watching: Watching

    @property
    def ratio(self) -> float | None:
        """How many of our steps fit into one of vLLM's."""
        return None if self.vllm is None else self.vllm.both_us / self.onbeat.both_us

    @property
    def monitor_us(self) -> float:
        """Microseconds that the monitor adds to a step, its looks at the whole state spread over the steps between."""
        return self.watching.step_us + (self.watching.whole_us - self.watching.step_us) / DEFAULT_LOOKS

    @property
    def monitor_share(self) -> float:
        """The same in percent of a step that nobody watches."""
        return 100 * self.monitor_us / self.onbeat.both_us


class PeerError(Exception):
    """vLLM's side could not be measured."""


# --- One scheduler ---------------------------------------------------------------------------------------------------


def build_scheduler(prefix_caching: bool) -> Scheduler:
    """Build what is measured."""
    return Scheduler(
        Config(
            block_size=BLOCK_SIZE,
            num_blocks=NUM_BLOCKS,
            max_num_batched_tokens=MAX_BATCHED_TOKENS,
            max_num_seqs=MAX_SEQS,
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=prefix_caching,
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


# --- vLLM's side -----------------------------------------------------------------------------------------------------


class Peer:
    """vLLM's scheduler, measured by the Python of an environment that has it."""

    def __init__(self, python: str) -> None:
        self.python = python
        self.version = ""
        """vLLM's, once it has been measured."""

    def measure(self, shapes: Sequence[Shape], effort: Effort) -> list[Times]:
        """Measure every shape, in one process.

        Raises:
            PeerError: it cannot be started, or says that it cannot measure.
        """
        report = self._run(
            "--decodes=" + ",".join(str(n) for n in dict.fromkeys(shape.decodes for shape in shapes)),
            "--prefix-caching=off,on",
            f"--steps={effort.steps}",
            f"--warmup={effort.warmup}",
        )
        self.version = report["vllm"]
        rows = {Shape(row["decodes"], row["prefix_caching"]): row for row in report["rows"]}
        return [Times(*(rows[shape][name] for name in Times._fields)) for shape in shapes]

    def _run(self, *arguments: str) -> dict[str, Any]:
        try:
            run = subprocess.run([self.python, str(PEER), *arguments], capture_output=True, text=True, check=False)
        except OSError as error:
            raise PeerError(f"{self.python} cannot be run: {error.strerror}") from error
        if run.returncode != 0:
            last = run.stderr.strip().splitlines()[-1:] or [f"{PEER.name} ended with exit code {run.returncode}"]
            raise PeerError(last[0])
        try:
            report: dict[str, Any] = json.loads(run.stdout)
        except ValueError as error:
            raise PeerError(f"{self.python} printed something else than results") from error
        return report


# --- The search ------------------------------------------------------------------------------------------------------


def measure_search(operations: int) -> Search:
    """Explore all small worlds of the audit, as deep as a quick one goes; at most so many operations in each."""
    # Late, so that nothing but the scheduler is loaded while it is measured.
    from onbeat_proofs.audit import LIMITS  # noqa: PLC0415
    from onbeat_proofs.scopes import SCOPES  # noqa: PLC0415
    from onbeat_proofs.search import Exploration  # noqa: PLC0415

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
    return Search(len(explored), sum(each.steps for each in explored), sum(each.seconds for each in explored))


# --- All of it -------------------------------------------------------------------------------------------------------


def measure_rows(
    shapes: Sequence[Shape], effort: Effort, peer: Peer | None, progress: Callable[[str], object]
) -> list[Row]:
    """Measure all sides in turns: each round from the first side to the last, or back."""
    ours: list[list[Times]] = []
    theirs: list[list[Times]] = []
    watching: list[list[Watching]] = []
    turns: list[tuple[str, Callable[[], None]]] = [
        ("onbeat", lambda: ours.append([measure(shape, effort) for shape in shapes])),
        ("monitor", lambda: watching.append([measure_watch(shape, effort) for shape in shapes])),
    ]
    if peer is not None:
        turns.append(("vLLM", lambda: theirs.append(peer.measure(shapes, effort))))
    for index in range(effort.rounds):
        for name, turn in turns if index % 2 == 0 else reversed(turns):
            progress(f"round {index + 1} of {effort.rounds}: {name}")
            turn()
    others = quietest(theirs) if peer is not None else [None] * len(shapes)
    return [Row(*each) for each in zip(shapes, quietest(ours), others, quietest(watching), strict=True)]


def quietest(rounds: Sequence[Sequence[T]]) -> list[T]:
    """Return for each shape what its least disturbed round gave."""
    return [min(each, key=sum) for each in zip(*rounds, strict=True)]


# --- Output ----------------------------------------------------------------------------------------------------------


def scheduler_table(rows: Sequence[Row], peer: Peer | None) -> Table:
    """Lay out the comparison."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    headings = ["decodes", "prefix\ncache", "\nschedule", "onbeat\nupdate", "\nboth"]
    if peer is not None:
        headings += ["\nschedule", f"vLLM {peer.version}\nupdate", "\nboth", "vLLM /\nonbeat"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [str(row.shape.decodes), switch(row.shape), *map(figure, row.onbeat)]
        if row.vllm is not None:
            cells += [*map(figure, row.vllm), f"{row.ratio:.1f}"]
        table.add_row(*cells)
    return table


def monitor_table(rows: Sequence[Row]) -> Table:
    """Lay out what watching costs."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    for heading in (
        "decodes",
        "prefix\ncache",
        "most\nsteps",
        f"one step\nin {DEFAULT_LOOKS}",
        "on\naverage",
        "in % of\nschedule + update",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        figures = map(figure, (*row.watching, row.monitor_us))
        table.add_row(str(row.shape.decodes), switch(row.shape), *figures, f"{row.monitor_share:.1f}")
    return table


def switch(shape: Shape) -> str:
    """Say whether prefix caching is on."""
    return "on" if shape.prefix_caching else "off"


def figure(microseconds: float) -> str:
    """Write a duration with as many digits as mean something."""
    return f"{microseconds:,.1f}" if microseconds < 100 else f"{microseconds:,.0f}"


def machine(load: float, cpus: int) -> str:
    """Describe where this runs, and warn if other jobs run there too."""
    text = f"Python {platform.python_version()}, {cpus} CPUs, load {load:.1f}\n"
    if load > cpus / 2:
        text += "Other jobs run here. Long steps lose more to them than short ones, so large ratios are too large.\n"
    return text


def show(rows: Sequence[Row], peer: Peer | None, search: Search) -> None:
    """Print everything."""
    console = Console()
    print("Scheduler: median microseconds of a step of n decodes")
    console.print(scheduler_table(rows, peer))
    if peer is None:
        print("To compare with vLLM, give --vllm-python PATH or set ONBEAT_VLLM_PYTHON: a Python that has it.\n")
    else:
        print("vLLM's step also makes the worker's input and the clients' messages, and caches a block as soon as")
        print("it is full; onbeat caches the blocks of a decode when the request ends.\n")
    print("Monitor: median microseconds that it adds to such a step")
    console.print(monitor_table(rows))
    print(
        f"Search: {search.steps:,} checked steps in {search.seconds:.1f} s, {search.steps / search.seconds:,.0f} per "
        f"second ({search.scopes} small worlds)."
    )


def as_json(rows: Sequence[Row], peer: Peer | None, search: Search, effort: Effort) -> dict[str, Any]:
    """Return everything as values of JSON. Figures in `_us` are microseconds per step."""
    return {
        "onbeat": version("onbeat"),
        "vllm": None if peer is None else peer.version,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        **{name: value for name, value in effort._asdict().items() if name != "operations"},
        "rows": [row_json(row) for row in rows],
        "search": {**search._asdict(), "steps_per_s": search.steps / search.seconds},
    }


def row_json(row: Row) -> dict[str, Any]:
    """Return one row as values of JSON."""
    return {
        **row.shape._asdict(),
        "onbeat": row.onbeat._asdict(),
        "vllm": None if row.vllm is None else row.vllm._asdict(),
        "ratio": row.ratio,
        "monitor": {
            **row.watching._asdict(),
            "whole_every": DEFAULT_LOOKS,
            "average_us": row.monitor_us,
            "share_percent": row.monitor_share,
        },
    }


# --- The command line ------------------------------------------------------------------------------------------------


def counts(text: str) -> list[int]:
    """Parse `1,64`: numbers of running decodes."""
    values = [int(part) for part in text.split(",")]
    if not all(1 <= value <= MAX_SEQS for value in values):
        raise argparse.ArgumentTypeError(f"each must lie in 1..{MAX_SEQS}: {text}")
    return values


def at_least(low: int) -> Callable[[str], int]:
    """Return a parser of numbers from `low` on."""

    def parse(text: str) -> int:
        if int(text) < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}: {text}")
        return int(text)

    return parse


def parse_options(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Effort]:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="scheduler.py", description="Measure the scheduler, its monitor, the search.")
    parser.add_argument("--decodes", type=counts, default=[1, 64, 256, 1024], help="running decodes, as 1,64")
    parser.add_argument(
        "--vllm-python",
        metavar="PATH",
        default=os.environ.get("ONBEAT_VLLM_PYTHON"),
        help="a Python that has vLLM, to compare with it; by default $ONBEAT_VLLM_PYTHON",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to FILE")
    parser.add_argument("--quick", action="store_true", help="a fast run, good for orders of magnitude")
    parser.add_argument("--rounds", type=at_least(1), help="how often every side has its turn")
    parser.add_argument("--steps", type=at_least(LOOK_EVERY), help="measured steps of each round")
    parser.add_argument("--warmup", type=at_least(0), help="unmeasured steps before them")
    options = parser.parse_args(arguments)
    given = {name: value for name in ("rounds", "steps", "warmup") if (value := getattr(options, name)) is not None}
    effort = (QUICK if options.quick else FULL)._replace(**given)
    # Requests prefilled first decode on while the others are prefilled; 16 steps are more than that takes.
    tokens = PROMPT_TOKENS + effort.warmup + effort.steps + 16
    if tokens > MAX_MODEL_LEN or max(options.decodes) * -(-tokens // BLOCK_SIZE) >= NUM_BLOCKS:
        parser.error(f"{tokens} tokens each for {max(options.decodes)} decodes do not fit the KV cache; ask for less")
    return options, effort


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code: 0, or 2 if vLLM's side could not be measured."""
    options, effort = parse_options(arguments)
    peer = Peer(options.vllm_python) if options.vllm_python else None
    print(machine(os.getloadavg()[0], os.cpu_count() or 1), flush=True)
    shapes = [Shape(decodes, caching) for caching in (False, True) for decodes in options.decodes]

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        rows = measure_rows(shapes, effort, peer, progress)
    except PeerError as error:
        progress(f"scheduler.py: error: {error}")
        return 2
    progress("search")
    search = measure_search(effort.operations)
    show(rows, peer, search)
    if options.json is not None:
        report = as_json(rows, peer, search, effort)
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
