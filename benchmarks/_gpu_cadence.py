"""The engine's own step loop on a GPU: the cadence with graphs and without, and ranks that share experts over NCCL."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.rank.core import EngineCore
from onbeat_engine.rank.parts import Built
from onbeat_engine.runner.model_runner import ModelRunner
from onbeat_engine.runner.models.load import LoadedModel
from onbeat_engine.runner.sampling.sampler import Sampler
from onbeat_engine.testing.fake import tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.lane_steps import LaneStep
from onbeat_engine.wire.messages import LogEntry, NewRequest, RankOutputs
from onbeat_engine.wire.params import SamplingParams

INTERVALS = (1, 2)
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass
class Cadence:
    """One run of the loop."""

    interval: int
    graphs: bool
    seconds: float = 0.0
    steps: list[LaneStep] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    violations: int = 0

    @property
    def off_beat(self) -> list[LaneStep]:
        """Steps with prefill though the rank should have held it: neither the beat nor an exception explains them."""
        return [step for step in self.steps if step.prefills and not step.beat and not step.why]

    def times(self, *, prefills: bool) -> list[float]:
        """Return the milliseconds of the steps that have prefill, or of those that only decode."""
        return [1e3 * step.duration for step in self.steps if step.duration and step.prefills == prefills]


class Loop:
    """The step loop of one rank on its own, without processes."""

    def __init__(self, runner: ModelRunner, config: EngineConfig, max_model_len: int) -> None:
        self.core = EngineCore(config, Built(runner, runner.num_blocks, max_model_len))
        self.steps: list[LaneStep] = []
        self.tokens: dict[str, list[int]] = {}
        self._number = 0

    def add(self, id: str, prompt: Sequence[int], output: int) -> None:
        """Hand a request in."""
        self._number += 1
        new = NewRequest(id=id, prompt=list(prompt), params=GREEDY, max_tokens=output)
        self.core.read(LogEntry(number=self._number, kind="request", request=new))

    def turn(self) -> bool:
        """Take a turn; False: there was nothing to do."""
        busy = self.core.turn()
        for message in self.core.take():
            if isinstance(message, RankOutputs):
                self.steps += message.lane_steps
                for output in message.outputs:
                    self.tokens.setdefault(output.id, []).extend(output.tokens)
        return busy


def run_loop(
    model: LoadedModel, config: EngineConfig, *, decodes: int, prompts: int, length: int, **parts: Any
) -> Cadence:
    """Run the step loop with `decodes` sequences that decode; every second step a prompt of `length` arrives.

    Args:
        model: dense; one rank on its own, so the cadence is that of its own clock.
        parts: for the runner.
    """
    runner = ModelRunner(model, config, Sampler(model.config.vocab_size, model.device, config.max_num_seqs), **parts)
    loop = Loop(runner, config, model.max_model_len)

    def prompt(number: int, size: int) -> list[int]:
        return [(37 * number + k * (number + 3)) % model.config.vocab_size for k in range(size)]

    for index in range(decodes):
        loop.add(f"d{index}", prompt(index + 1, 8), 2 * prompts + 16)
    for _ in range(8):  # all decode by now; kernels are compiled
        loop.turn()
    loop.steps.clear()
    began = time.perf_counter()
    for index in range(prompts):
        loop.add(f"p{index}", prompt(decodes + index + 1, length), 4)
        loop.turn()
        loop.turn()
    while loop.turn():
        pass
    return Cadence(
        config.prefill_schedule_interval,
        graphs=runner._graphs is not None,
        seconds=time.perf_counter() - began,
        steps=loop.steps,
        tokens=loop.tokens,
        violations=sum(loop.core.monitor.counts.values()) if loop.core.monitor is not None else 0,
    )


def check_cadence(model: LoadedModel, config: EngineConfig, **sizes: Any) -> list[Cadence]:
    """Run the loop at each interval, with graphs and without; the first run decides what is right.

    Args:
        sizes: as `run_loop` has them.
    """
    runs = []
    for eager in (False, True):
        for interval in INTERVALS:
            changed = replace(config, enforce_eager=eager, prefill_schedule_interval=interval, on_violation="log")
            parts = {**sizes, "capture": None} if eager and "capture" in sizes else sizes
            runs.append(run_loop(model, changed, **parts))
    return runs


def faults(runs: Sequence[Cadence]) -> dict[str, int]:
    """Count what must not be, by name."""
    first = runs[0].tokens
    return {
        "requests whose tokens depend on the cadence or on graphs": sum(
            tokens != run.tokens.get(id) for run in runs for id, tokens in first.items()
        ),
        "prefills off the beat without a reason": sum(len(run.off_beat) for run in runs),
        "violations of invariants in the step loop": sum(run.violations for run in runs),
    }


def show(runs: Sequence[Cadence]) -> None:
    """Print the table."""
    print("The step loop: one rank, decodes beside prompts that arrive every second step")
    print("  interval   graphs   steps   with prefill   decode ms   with prefill ms   seconds")
    for run in runs:
        decode, prefill = run.times(prefills=False), run.times(prefills=True)
        print(
            f"  {run.interval:8d}   {'on' if run.graphs else 'off':>6}   {len(run.steps):5d}   {len(prefill):12d}"
            f"   {median(decode or [0.0]):9.2f}   {median(prefill or [0.0]):15.2f}   {run.seconds:7.2f}"
        )
    print(flush=True)


async def _tokens(config: EngineConfig, requests: int, length: int) -> dict[str, list[int]]:
    engine = await AsyncLLM.from_config(config, tokenizer=tokenizer())

    async def ask(number: int) -> tuple[str, list[int]]:
        prompt = [(7 * number + 13 * k) % 250 for k in range(4 + 5 * number)]
        params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        output = await anext(engine.generate(prompt, params, f"r{number}", output_kind="final"))
        if output.outputs[0].finish_reason != "length":
            raise RuntimeError(f"request {number} ended: {output.outputs[0].error}")
        return output.request_id, list(output.outputs[0].token_ids)

    try:
        return dict(await asyncio.gather(*(ask(number) for number in range(requests))))
    finally:
        await engine.shutdown()


def check_group(folder: Path, config: EngineConfig, *, ranks: int, requests: int = 12, length: int = 24) -> int:
    """Count requests that ranks which share the experts of an upcycled model answer otherwise than the dense one does.

    Once with CUDA graphs, whose captures have the collectives in them, and once without.

    Args:
        folder: a model whose tokens are bytes, in safetensors.
        config: without the model; on CUDA each rank takes a GPU of its own, and NCCL carries the tokens.
        ranks: how many.

    Raises:
        EngineDead, RuntimeError: they could not serve.
    """
    plain = replace(config, model=str(folder), data_parallel_size=1)
    right = asyncio.run(_tokens(plain, requests, length))
    shared = replace(plain, data_parallel_size=ranks, moe_upcycle=4, prefill_schedule_interval=2)
    different = 0
    for eager in (False, True):
        generated = asyncio.run(_tokens(replace(shared, enforce_eager=eager), requests, length))
        different += sum(generated[id] != tokens for id, tokens in right.items())
    return different
