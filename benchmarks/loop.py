"""Measure what a rank's step loop costs beside the executor: a step of running decodes, with the monitor and without.

Counted is all that a rank's process does for a step but execute it and wait for it: the protocol's turns, schedule and
update, the invariants, the trace, outputs and stats, and their encoding. With `--model` a real model executes them, and
the share of the whole step is shown, of which the forward pass and the sampling are the rest.

    python -m benchmarks.loop [--decodes 32 ...] [--model [MODEL]]
"""

import argparse
import gc
import json
import statistics
import tempfile
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import msgspec

from onbeat_engine.rank.core import EngineCore
from onbeat_engine.rank.parts import Built
from onbeat_engine.runner.executor import BatchRow, EngineRequest, Executor, Pending, StepOutputs
from onbeat_engine.testing.fake import FakeExecutor
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.messages import LogEntry, NewRequest
from onbeat_engine.wire.params import SamplingParams

VARIANTS: dict[str, dict[str, Any]] = {
    "monitor off": {"monitor": False},
    "monitor on": {},
    "monitor on, one step ahead": {"async_scheduling": True},
    "monitor on, trace": {"trace_dir": ""},
}
PROMPT_TOKENS = 48


class Result(NamedTuple):
    """Medians over steps, microseconds."""

    variant: str
    decodes: int
    loop_us: float
    step_us: float

    @property
    def share(self) -> float:
        """The loop's part of the step."""
        return self.loop_us / self.step_us


class Timed:
    """An executor, and how long it has been at work."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.spent_ns = 0
        self.steps = 0

    def execute(self, rows: Sequence[BatchRow]) -> "Waiting":
        """Begin a step."""
        began = perf_counter_ns()
        pending = self.inner.execute(rows)
        self.spent_ns += perf_counter_ns() - began
        self.steps += 1
        return Waiting(self, pending)

    def dummy(self) -> int | None:
        """Take part in a forward."""
        return self.inner.dummy()

    def release(self, request: EngineRequest) -> None:
        """A request has ended."""
        self.inner.release(request)

    def sleep(self) -> None:
        """Give memory up."""
        self.inner.sleep()

    def wake_up(self) -> None:
        """Take it back."""
        self.inner.wake_up()


class Waiting:
    """A step of `Timed`."""

    def __init__(self, timed: Timed, pending: Pending) -> None:
        self.timed = timed
        self.pending = pending

    def wait(self) -> StepOutputs:
        """Wait for it."""
        began = perf_counter_ns()
        outputs = self.pending.wait()
        self.timed.spent_ns += perf_counter_ns() - began
        return outputs


def build(config: EngineConfig, real: bool) -> Built:
    """Build a rank, with a real model or without one."""
    if not real:
        return Built(FakeExecutor(config.block_size), 20_000, 4096)
    from onbeat_engine.rank.build import build as build_rank  # noqa: PLC0415 - torch, only where a model is wanted

    return build_rank(config, 0)


def measure(variant: str, decodes: int, steps: int, real: bool, **config: Any) -> Result:
    """Measure one variant."""
    engine_config = EngineConfig(max_num_seqs=max(256, decodes), **config)
    built = build(engine_config, real)
    timed = Timed(built.executor)
    core = EngineCore(engine_config, Built(timed, built.num_blocks, built.max_model_len))
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    longest = built.max_model_len - PROMPT_TOKENS
    for number in range(1, decodes + 1):
        prompt = [(number + k) % 200 for k in range(PROMPT_TOKENS)]
        new = NewRequest(id=f"r{number}", prompt=prompt, params=params, max_tokens=longest)
        core.read(LogEntry(number=number, kind="request", request=new))
    encoder = msgspec.msgpack.Encoder()
    while len(core.scheduler.running) < decodes or any(r.num_tokens == r.num_prompt for r in core.scheduler.running):
        core.turn()
        core.take()
    gc.collect()
    loops, wholes = [], []
    for _ in range(steps):
        before, timed.spent_ns = timed.steps, 0
        began = perf_counter_ns()
        while timed.steps == before:
            core.turn()
            for message in core.take():
                encoder.encode(message)
        whole = perf_counter_ns() - began
        wholes.append(whole / 1000)
        loops.append((whole - timed.spent_ns) / 1000)
    if core.ended:
        raise RuntimeError(core.ended)
    return Result(variant, decodes, statistics.median(loops), statistics.median(wholes))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decodes", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--model", nargs="?", const="", help="a real model; without a value the default one")
    parser.add_argument("--json", action="store_true", help="print results as JSON lines")
    options = parser.parse_args(arguments)
    real = options.model is not None
    more = {"model": options.model or None, "max_model_len": 1024, "num_gpu_blocks_override": 4096} if real else {}
    for decodes in options.decodes:
        for variant, config in VARIANTS.items():
            with tempfile.TemporaryDirectory() as folder:
                traced = {"trace_dir": folder} if "trace_dir" in config else {}
                result = measure(variant, decodes, options.steps, real, **{**more, **config, **traced})
            if options.json:
                print(json.dumps({**result._asdict(), "share": result.share if real else None}))
                continue
            share = f", {result.share:.2%} of a step of {result.step_us / 1000:.1f} ms" if real else ""
            print(f"{decodes:4} decodes, {variant:28} {result.loop_us:7.0f} us{share}", flush=True)


if __name__ == "__main__":
    main()
