"""Kill ranks of a group, or make them hang, many times in a row: nothing waits longer than stated, nothing is left.

In each round an engine of several ranks, with a small model of random weights, gets requests; then one of its ranks is
killed (SIGKILL) or made to hang (SIGSTOP), at a random moment. Every request must end, and with it the round, within
the bound: at once after a kill; after a hang, when the collective's timeout is over and the rank that hangs is given
up. Then processes, sockets, ports and shared memory are counted.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks._weights import SHAPES, write_model
from benchmarks.cadence import prompt
from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.testing.fake import tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.params import SamplingParams

TIMEOUT = 2.0
"""Of a collective, in seconds."""
BOUNDS = {signal.SIGKILL: 2.0, signal.SIGSTOP: TIMEOUT + 2.0}
"""Seconds until every request has ended."""


@dataclass(frozen=True)
class Round:
    """What one round brought."""

    how: str
    seconds: float
    """From the fault until every request had ended."""
    ended: dict[str, int]
    left: list[str]
    """What is still there of it."""


def remains(pids: Sequence[int], before: set[str]) -> list[str]:
    """Return what a round has left behind."""
    left = [f"process {pid}" for pid in pids if psutil.pid_exists(pid)]
    return left + sorted(things() - before)


def things() -> set[str]:
    """Name shared memory, folders of sockets, and open files. Semaphores there belong to other programs."""
    names = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if not name.startswith("sem.")}
    names |= {str(path) for path in Path(tempfile.gettempdir()).glob("onbeat-*")}
    return names | {f"file {number}" for number in os.listdir("/proc/self/fd")}


async def one(
    config: EngineConfig, number: signal.Signals, random_: random.Random
) -> tuple[float, dict[str, int], list[int]]:
    """Run a round: return seconds, how requests ended, and the ranks' processes."""
    engine = await AsyncLLM.from_config(config, tokenizer=tokenizer())
    pids = [rank.pid for rank in engine.ranks]
    ended: dict[str, int] = {}

    async def ask(i: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
        last = None
        async for last in engine.generate(prompt(i, 20 + i), params, f"r{i}"):  # noqa: B007  the last one counts
            pass
        reason = str(last.outputs[0].finish_reason) if last is not None else "nothing"
        ended[reason] = ended.get(reason, 0) + 1

    try:
        tasks = [asyncio.ensure_future(ask(i)) for i in range(12)]
        while all(rank_stats.generation_tokens == 0 for rank_stats in engine.stats()):
            await asyncio.sleep(0.005)
        await asyncio.sleep(random_.random() * 0.3)
        began = time.monotonic()
        os.kill(random_.choice(pids), number)
        await asyncio.wait_for(asyncio.gather(*tasks), 60.0)
        return time.monotonic() - began, ended, pids
    finally:
        await engine.shutdown(timeout=1.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds; return 1 if a bound or a count does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    random_ = random.Random(options.seed)
    bad = 0
    slowest = dict.fromkeys(BOUNDS, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # nobody else's sockets are in it
        config = EngineConfig(
            model=write_model(SHAPES["attentive"], Path(folder), ascii_only=True),
            moe_upcycle=4,
            data_parallel_size=options.ranks,
            max_model_len=512,
            num_gpu_blocks_override=512,
            prefill_schedule_interval=2,
            collective_timeout=TIMEOUT,
        )
        before = things()
        for number in range(options.rounds):
            how = random_.choice(list(BOUNDS))
            seconds, ended, pids = asyncio.run(one(config, how, random_))
            left = remains(pids, before)
            slowest[how] = max(slowest[how], seconds)
            wrong = seconds > BOUNDS[how] or left or "error" not in ended
            bad += bool(wrong)
            print(
                f"{number + 1:3} {how.name:7} {seconds:5.2f} s  {ended}  {'LEFT ' + str(left) if left else ''}",
                flush=True,
            )
    for how, bound in BOUNDS.items():
        print(f"{how.name}: the slowest took {slowest[how]:.2f} s; the bound is {bound:g} s")
    print(f"{options.rounds} rounds, {bad} with something wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
