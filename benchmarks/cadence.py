"""Measure what prefills on the beat do for a group of ranks: the same arrivals at several intervals, in one run.

A model with experts on several ranks of this machine: in every step all wait for the slowest. First the engine is
asked how long a step of decodes takes (D), and the prefill of one prompt (P); then requests arrive at random moments,
the same for every interval. The loads:

- decode: arrivals so frequent that without a cadence most steps have a prefill somewhere (a little more than one in
  D + P seconds), below what the ranks can serve;
- saturation: all requests are there from the start;
- prefill: prompts of 16 times the outputs, as frequent as the ranks can serve them.

Times are the client's, taken in the front end. The intervals take turns, `--rounds` times.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import mean, median

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks._report import machine
from onbeat_engine.async_llm import AsyncLLM
from onbeat_engine.config import EngineConfig
from onbeat_engine.sampling_params import SamplingParams

LOADS = ("decode", "saturation", "prefill")
MARGIN = 1.15
"""Arrivals of the decode load in D + P seconds: above 1, most steps have a prefill somewhere."""


@dataclass(frozen=True)
class Load:
    """Requests: when they come, in seconds from the start, and how long they are, in tokens."""

    name: str
    arrivals: tuple[float, ...]
    prompt: int
    output: int


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


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that `percent` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def prompt(number: int, length: int) -> list[int]:
    """Return a prompt that shares no block with another."""
    random_ = random.Random(number)
    return [random_.randrange(100, 10_000) for _ in range(length)]


async def ask(engine: AsyncLLM, id: str, tokens: list[int], output: int) -> list[float]:
    """Ask for `output` tokens; return when it was asked, and when each token came."""
    params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    times = [time.perf_counter()]
    async for each in engine.generate(tokens, params, id, output_kind="cumulative"):
        now = time.perf_counter()
        times += [now] * (1 + len(each.outputs[0].token_ids) - len(times))
        if each.finished and each.outputs[0].finish_reason != "length":
            raise RuntimeError(f"request {id} ended: {each.outputs[0].error}")
    return times


async def calibrate(config: EngineConfig, length: int) -> tuple[float, float]:
    """Return seconds of a step of decodes, four on each rank, and of a step with one prompt."""
    engine = await AsyncLLM.from_config(config)
    try:
        several = 4 * config.data_parallel_size
        await asyncio.gather(*(ask(engine, f"w{i}", prompt(-1 - i, length), 4) for i in range(several)))
        runs = await asyncio.gather(*(ask(engine, f"d{i}", prompt(-50 - i, 8), 24) for i in range(several)))
        decode = median(b - a for times in runs for a, b in pairwise(times[8:]))
        first = []
        for i in range(3):
            asked, got = (await ask(engine, f"p{i}", prompt(-100 - i, length), 1))[:2]
            first.append(got - asked)
        return decode, median(first)
    finally:
        await engine.shutdown()


def loads(names: Sequence[str], decode: float, prefill: float, options: argparse.Namespace) -> list[Load]:
    """Return the loads, with arrivals at random moments."""
    random_ = random.Random(options.seed)

    def poisson(rate: float, count: int) -> tuple[float, ...]:
        at, times = 0.0, []
        for _ in range(count):
            at += random_.expovariate(rate)
            times.append(at)
        return tuple(times)

    known = {
        "decode": lambda: Load(
            "decode", poisson(MARGIN / (decode + prefill), options.requests), options.prompt, options.output
        ),
        "saturation": lambda: Load("saturation", (0.0,) * options.requests, options.prompt, options.output),
        "prefill": lambda: Load(
            "prefill",
            poisson(1.6 / (prefill + 4 * decode), options.requests),
            options.prompt,
            max(2, options.prompt // 16),
        ),
    }
    return [known[name]() for name in names]


async def serve(engine: AsyncLLM, load: Load, result: Result) -> None:
    """Serve a load, and add what was seen to the result."""
    before = engine.stats()
    began = time.perf_counter()

    async def one(number: int, at: float) -> list[float]:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        return await ask(engine, f"{load.name}-{began}-{number}", prompt(number, load.prompt), load.output)

    runs = await asyncio.gather(*(one(number, at) for number, at in enumerate(load.arrivals)))
    result.seconds += max(times[-1] for times in runs) - began
    result.tokens += sum(len(times) - 1 for times in runs)
    result.ttft += [times[1] - times[0] for times in runs]
    result.itl += [b - a for times in runs for a, b in pairwise(times[1:])]
    await asyncio.sleep(0.2)  # the last reports of the ranks
    for old, new in zip(before, engine.stats(), strict=True):
        result.steps += new.steps - old.steps
        result.dummies += new.dummy_steps - old.dummy_steps
        result.violations += sum(new.violations.values()) - sum(old.violations.values())


async def measure(config: EngineConfig, load: Load, intervals: Sequence[int], rounds: int) -> list[Result]:
    """Serve a load at each interval, `rounds` times in turn."""
    results = {interval: Result(interval) for interval in intervals}
    for _ in range(rounds):
        for interval, result in results.items():
            engine = await AsyncLLM.from_config(replace(config, prefill_schedule_interval=interval))
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


async def run(options: argparse.Namespace, console: Console) -> int:
    """Measure and print; 1 if an invariant was violated meanwhile."""
    config = EngineConfig(
        model=options.model,
        dtype=options.dtype,
        device=options.device,
        moe_upcycle=options.experts,
        data_parallel_size=options.ranks,
        max_model_len=options.prompt + options.output + 16,
        max_num_batched_tokens=options.max_num_batched_tokens,
        enable_prefix_caching=False,
        num_gpu_blocks_override=options.blocks,
    )
    about = machine(os.getloadavg()[0], os.cpu_count() or 1)
    decode, prefill = await calibrate(config, options.prompt)
    console.print(
        f"{about}{options.ranks} ranks; a step of 4 decodes on each: D = {1e3 * decode:.0f} ms; with one prompt "
        f"of {options.prompt}: P = {1e3 * prefill:.0f} ms = {prefill / decode:.1f} D\n"
    )
    told, violations = [], 0
    for load in loads(options.loads, decode, prefill, options):
        results = await measure(config, load, options.intervals, options.rounds)
        console.print(table(load, results, decode))
        violations += sum(result.violations for result in results)
        told.append({"load": asdict(load), "results": [asdict(result) for result in results]})
    console.print(f"{violations} violations of invariants")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": about, "decode": decode, "prefill": prefill, "loads": told}, file)
    return 1 if violations else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""

    def numbers(text: str) -> list[int]:
        return [int(each) for each in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--experts", type=int, default=4, help="copies of each FFN; 0: the model has experts itself")
    parser.add_argument("--intervals", type=numbers, default=[1, 2, 4])
    parser.add_argument("--loads", type=lambda text: text.split(","), default=["decode"])
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    parser.add_argument("--output", type=int, default=32, help="tokens")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--blocks", type=int, default=1024, help="KV blocks of each rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write everything that was measured there")
    options = parser.parse_args(arguments)
    if unknown := set(options.loads) - set(LOADS):
        parser.error(f"unknown loads {sorted(unknown)}; there are {', '.join(LOADS)}")
    return asyncio.run(run(options, Console(width=120)))


if __name__ == "__main__":
    sys.exit(main())
