"""Measure what prefills on the beat do for a group of ranks: the same arrivals at several intervals, in one run.

A model with experts on several ranks of this machine: in every step all wait for the slowest. First the engine is
asked how long a step of decodes takes (D), and a step with one prompt (P); the prompts are made so long that P is
`--ratio` times D. Then requests arrive at random moments, the same for every interval. The loads:

- decode: `--used` of the prompts that the ranks could take if all had one in each step, for which they take A seconds.
  The median gap can only fall by 80 % if without a cadence half of the steps have a prefill on some rank, and a step
  with one takes five times as long as one without. So prefills then take most of the time, whatever the load is
  called: with many ranks little of each rank's time, with two a good part of it. Whether half of the steps have one
  is, with two ranks, an accident of the arrivals, unless these are steadier than a Poisson process (`--burstiness`);
- saturation: all requests are there from the start, and ranks take `--seats` at once: somebody always waits. They come
  while a long prompt occupies every rank. Otherwise one rank begins before the other, and since a saturated rank holds
  nothing, the ranks go on to prefill at different steps, each waiting for the other, at any interval;
- prefill: prompts of 16 times the outputs, as frequent.

Times are the client's, taken in the front end. The intervals take turns, `--rounds` times.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from statistics import mean, median

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks._report import machine
from benchmarks._weights import SHAPES, write_model
from onbeat_engine.bench.prompts import arrival_times
from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.testing.fake import tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.params import SamplingParams

LOADS = ("decode", "saturation", "prefill")
CONTEXT = 256
"""Tokens of the prompts of the decodes that are measured."""
SHORT = 64
"""Tokens of the prompts from which the search for the length of all others begins."""


@dataclass(frozen=True)
class Load:
    """Requests: when they come, in seconds from the start, and how long they are, in tokens."""

    name: str
    arrivals: tuple[float, ...]
    prompt: int
    output: int
    seats: int = 0
    """Requests that a rank takes at once; 0: as many as it does."""


@dataclass
class Result:
    """One interval under one load; seconds, pooled over the rounds."""

    interval: int
    itl: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    dummies: int = 0
    violations: int = 0

    @property
    def throughput(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds


Start = Callable[[EngineConfig], Awaitable[AsyncLLM]]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that `percent` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def prompt(number: int, length: int) -> list[int]:
    """Return a prompt that shares no block with another."""
    random_ = random.Random(number)
    return [random_.randrange(128) for _ in range(length)]


async def ask(engine: AsyncLLM, id: str, tokens: list[int], output: int) -> list[float]:
    """Ask for `output` tokens; return when it was asked, and when each token came."""
    params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    times = [time.perf_counter()]
    async for answer in engine.generate(tokens, params, id, output_kind="cumulative"):
        now = time.perf_counter()
        times += [now] * (1 + len(answer.outputs[0].token_ids) - len(times))
        if answer.finished and answer.outputs[0].finish_reason != "length":
            raise RuntimeError(f"request {id} ended: {answer.outputs[0].error}")
    return times


@dataclass(frozen=True)
class Times:
    """Seconds of steps, and the length of the prompts in them."""

    decode: float
    """With four decodes on each rank."""
    one: float
    """With one prompt, on one rank; decodes on all."""
    all: float
    """With one prompt on each rank; decodes on all."""
    length: int


async def calibrate(start: Start, config: EngineConfig, ratio: float) -> Times:
    """Measure steps; prompts are made so long that a step with one takes `ratio` times one of decodes."""
    engine = await start(replace(config, trace_dir=None))
    several = 4 * config.data_parallel_size

    async def prefill(length: int, count: int) -> float:
        """Prompts that come together, in the middle of a step of decodes: all are in the next, unless one is late.

        So the shortest counts: whatever else happens takes longer.
        """
        took = []
        for i in range(9):
            prompts = [ask(engine, f"p{i}", prompt(-100 - several * i - k, length), 1) for k in range(count)]
            took.append(max(times[1] - times[0] for times in await asyncio.gather(*prompts)))
        return min(took) - decode / 2

    def decodes(output: int) -> Awaitable[list[list[float]]]:
        return asyncio.gather(*(ask(engine, f"d{i}", prompt(-50 - i, CONTEXT), output) for i in range(several)))

    try:
        runs = await decodes(32)
        decode = median(b - a for times in runs for a, b in pairwise(times[8:]))
        under_way = asyncio.ensure_future(decodes((config.max_model_len or 0) - CONTEXT - 1))
        await asyncio.sleep(5 * decode + several * 0.1)
        length = SHORT
        for _ in range(3):  # a token of a long prompt takes less than one of a short prompt
            wanted = round(length * (ratio - 1) * decode / max(1e-3, await prefill(length, 1) - decode))
            length = min(max(8, wanted), (config.max_model_len or 0) - 32)
        times = Times(decode, await prefill(length, 1), await prefill(length, config.data_parallel_size), length)
        if under_way.done():
            raise RuntimeError("the decodes were over before the prefills had been measured; raise --max-model-len")
        under_way.cancel()
        with suppress(asyncio.CancelledError):
            await under_way
        return times
    finally:
        await engine.shutdown()


def loads(names: Sequence[str], times: Times, options: argparse.Namespace) -> list[Load]:
    """Return the loads, with arrivals at random moments."""
    rate = options.used * options.ranks / times.all
    moments = tuple(islice(arrival_times(rate, options.burstiness, seed=options.seed), options.requests))
    length = times.length
    by_name = {
        "decode": Load("decode", moments, length, options.output),
        "saturation": Load("saturation", (0.0,) * options.requests, length, options.output, options.seats),
        "prefill": Load("prefill", moments, length, max(2, length // 16)),
    }
    return [by_name[name] for name in names]


async def plug(engine: AsyncLLM, load: Load) -> Awaitable[list[list[float]]]:
    """Occupy every rank with a long prompt, all in the same step; requests that come meanwhile begin together."""
    await engine.pause_generation(mode="keep")
    ranks = len(engine.stats())
    long = [ask(engine, f"plug-{time.perf_counter()}-{k}", prompt(-300 - k, 2 * load.prompt), 1) for k in range(ranks)]
    plugs = asyncio.gather(*long)
    while engine.num_held < ranks:
        await asyncio.sleep(0.01)
    await engine.resume_generation()
    return plugs


async def serve(engine: AsyncLLM, load: Load, result: Result) -> None:
    """Serve a load, and add what was seen to the result."""
    before = engine.stats()
    plugs = await plug(engine, load) if load.seats else None
    began = time.perf_counter()

    async def one(number: int, at: float) -> list[float]:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        return await ask(engine, f"{load.name}-{began}-{number}", prompt(number, load.prompt), load.output)

    runs = await asyncio.gather(*(one(number, at) for number, at in enumerate(load.arrivals)))
    if plugs is not None:
        began = max(times[-1] for times in await plugs)
    result.seconds += max(times[-1] for times in runs) - began
    result.tokens += sum(len(times) - 1 for times in runs)
    result.ttft += [times[1] - times[0] for times in runs]
    result.itl += [b - a for times in runs for a, b in pairwise(times[1:])]
    await asyncio.sleep(0.2)  # the last reports of the ranks
    for old, new in zip(before, engine.stats(), strict=True):
        result.steps += new.steps - old.steps
        result.dummies += new.dummy_steps - old.dummy_steps
        result.violations += sum(new.violations.values()) - sum(old.violations.values())


async def measure(
    start: Start, config: EngineConfig, load: Load, intervals: Sequence[int], rounds: int
) -> list[Result]:
    """Serve a load at each interval, `rounds` times in turn."""
    results = {interval: Result(interval) for interval in intervals}
    if load.seats:
        config = replace(config, max_num_seqs=load.seats)
    for number in range(rounds):
        in_turn = list(results.items())
        for interval, result in reversed(in_turn) if number % 2 else in_turn:  # machines grow slower, or faster
            folder = f"{config.trace_dir}/{load.name}-{interval}" if config.trace_dir else None
            engine = await start(replace(config, prefill_schedule_interval=interval, trace_dir=folder))
            try:
                for i in range(2 * config.data_parallel_size):
                    await ask(engine, f"warm-{i}", prompt(-200 - i, load.prompt), 4)
                await serve(engine, load, result)
            finally:
                await engine.shutdown()
    return list(results.values())


def table(load: Load, results: Sequence[Result], decode: float) -> Table:
    """Lay out one load."""
    title = (
        f"{load.name}: {len(load.arrivals)} requests, {load.prompt} in / {load.output} out, {load.arrivals[-1]:.0f} s"
    )
    shown = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for heading in (
        "interval", "ITL p50\nms", "against\nthe first", "ITL p90\nms", "ITL p99\nms", "gaps with\na prefill",
        "output\ntokens/s", "against\nthe first", "TTFT mean\ns", "TTFT p99\ns", "dummies",
    ):  # fmt: skip
        shown.add_column(heading, justify="right")
    first = results[0]
    for result in results:
        shown.add_row(
            str(result.interval),
            f"{1e3 * median(result.itl):.0f}",
            f"{100 * (median(result.itl) / median(first.itl) - 1):+.0f} %",
            f"{1e3 * percentile(result.itl, 90):.0f}",
            f"{1e3 * percentile(result.itl, 99):.0f}",
            f"{100 * mean(gap > 2 * decode for gap in result.itl):.0f} %",
            f"{result.throughput:.1f}",
            f"{100 * (result.throughput / first.throughput - 1):+.1f} %",
            f"{mean(result.ttft):.2f}",
            f"{percentile(result.ttft, 99):.2f}",
            f"{100 * result.dummies / (result.steps + result.dummies):.0f} %",
        )
    return shown


async def run(options: argparse.Namespace, start: Start, console: Console) -> int:
    """Measure and print; 1 if an invariant was violated meanwhile."""
    config = EngineConfig(
        model=options.model,
        dtype=options.dtype,
        device=options.device,
        moe_upcycle=options.experts,
        data_parallel_size=options.ranks,
        max_model_len=options.max_model_len,
        collective_timeout=300.0,
        max_num_batched_tokens=options.max_num_batched_tokens,
        enable_prefix_caching=False,
        num_gpu_blocks_override=options.blocks,
        trace_dir=options.trace_dir,
    )
    about = machine(os.getloadavg()[0], os.cpu_count() or 1)
    times = await calibrate(start, config, options.ratio)
    console.print(
        f"{about}{options.ranks} ranks; a step of 4 decodes on each: D = {1e3 * times.decode:.0f} ms; with a prompt of "
        f"{times.length} on one: P = {1e3 * times.one:.0f} ms = {times.one / times.decode:.1f} D; "
        f"on all: A = {1e3 * times.all:.0f} ms\n"
    )
    reports, violations = [], 0
    for load in loads(options.loads, times, options):
        results = await measure(start, config, load, options.intervals, options.rounds)
        console.print(table(load, results, times.decode))
        violations += sum(result.violations for result in results)
        reports.append({"load": asdict(load), "results": [asdict(result) for result in results]})
    console.print(f"{violations} violations of invariants")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": about, "times": asdict(times), "loads": reports}, file)
    return 1 if violations else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--experts", type=int, default=4, help="copies of each FFN; 0: the model has experts itself")
    parser.add_argument("--intervals", type=numbers, default=[1, 2, 4])
    parser.add_argument("--loads", type=lambda text: text.split(","), default=["decode"])
    parser.add_argument("--random", action="store_true", help="a small model of random weights, with shorter steps")
    parser.add_argument("--ratio", type=float, default=20.0, help="of a step with one prompt to a step of decodes")
    parser.add_argument("--used", type=float, default=0.7, help="share of what the ranks could take (load: decode)")
    parser.add_argument("--burstiness", type=float, default=4.0, help="of the arrivals; 1: a Poisson process")
    parser.add_argument("--output", type=int, default=16, help="tokens")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seats", type=int, default=16, help="requests that a rank takes at once (load: saturation)")
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192)
    parser.add_argument("--blocks", type=int, default=2048, help="KV blocks of each rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace-dir", help="write the ranks' step records there, a folder for each load and interval")
    parser.add_argument("--json", help="write everything that was measured there")
    options = parser.parse_args(arguments)
    if unknown := set(options.loads) - set(LOADS):
        parser.error(f"unknown loads {sorted(unknown)}; there are {', '.join(LOADS)}")
    console = Console(width=120)
    if not options.random:
        return asyncio.run(run(options, AsyncLLM.from_config, console))
    with tempfile.TemporaryDirectory() as folder:
        options.model = write_model(SHAPES["attentive"], Path(folder), ascii_only=True)
        return asyncio.run(run(options, partial(AsyncLLM.from_config, tokenizer=tokenizer()), console))


if __name__ == "__main__":
    sys.exit(main())
