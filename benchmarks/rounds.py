"""Kill and hang ranks, round after round: who is affected is told so, the others finish, and ranks come back.

Two ranks on their own, without a model, under load. Each round kills one (SIGKILL), every fifth stops one (SIGSTOP) so
that it hangs. It fails at the first request that ends otherwise than it should, at the first wrong token, and if a
process or a file descriptor is left at the end.

    python -m benchmarks.rounds [--rounds 50]
"""

import argparse
import asyncio
import os
import random
import signal
import statistics
import time
from collections.abc import Sequence

import psutil

from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.testing.fake import expected, tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.params import SamplingParams

LENGTH = 150
PARAMS = SamplingParams(temperature=0.0, max_tokens=LENGTH, seed=0)
HANG_EVERY = 5
BOUND = 10.0
"""Seconds within which a rank is back, whatever happened to it."""


async def one_round(engine: AsyncLLM, number: int, choice: random.Random) -> float:
    """Do one round; return the seconds until the rank was back."""
    streams = [engine.generate([prompt], PARAMS, "x", output_kind="final") for prompt in range(6)]
    await asyncio.sleep(choice.random() * 0.2)
    victim, before = choice.randrange(2), sum(info.epoch for info in engine.ranks)
    hangs = number % HANG_EVERY == HANG_EVERY - 1
    began = time.monotonic()
    os.kill(engine.ranks[victim].pid, signal.SIGSTOP if hangs else signal.SIGKILL)
    for prompt, stream in enumerate(streams):
        output = await anext(stream)
        only = output.outputs[0]
        right = only.finish_reason == "error" or only.token_ids == expected([prompt], LENGTH)
        if not right or (only.finish_reason == "error" and output.rank not in (victim, -1)):
            raise RuntimeError(f"round {number}: a request at rank {output.rank} ended as {only}; {victim} was killed")
    while engine.is_restarting or sum(info.epoch for info in engine.ranks) == before:
        if time.monotonic() - began > BOUND:
            raise RuntimeError(f"round {number}: rank {victim} is not back after {BOUND} s")
        await asyncio.sleep(0.005)
    return time.monotonic() - began


def _descriptors(me: psutil.Process, ranks: int) -> int:
    """Return how many file descriptors are open, every rank counted with two connections if it has fewer.

    A rank opens its second connection once a step of its takes long (`rank/channel.py`), so it may come at any time.
    """
    connections = sum(str(connection.laddr).endswith("/ranks") for connection in me.net_connections("unix"))
    return me.num_fds() - connections + max(connections, 1 + 2 * ranks)  # one listens


async def _leaked(me: psutil.Process, ranks: int, files: int) -> int:
    """Return how many file descriptors there are more than before, once what belonged to the killed is closed."""
    until = time.monotonic() + BOUND
    while _descriptors(me, ranks) > files and time.monotonic() < until:
        await asyncio.sleep(0.05)
    return _descriptors(me, ranks) - files


async def run(rounds: int) -> None:
    """Do all rounds, and print what was seen."""
    config = EngineConfig(model="delay=0.002", data_parallel_size=2, restart=True, collective_timeout=1.0)
    engine = await AsyncLLM.from_config(config, build="onbeat_engine.testing.fake:build", tokenizer=tokenizer())
    me, choice = psutil.Process(), random.Random(1)
    others = set(me.children()) - {psutil.Process(info.pid) for info in engine.ranks}  # whoever runs this may have some
    files = _descriptors(me, len(engine.ranks))
    times = [await one_round(engine, number, choice) for number in range(rounds)]
    leaked = await _leaked(me, len(engine.ranks), files)
    await engine.shutdown()
    left = len(set(me.children()) - others)
    print(f"{rounds} rounds: back after {statistics.median(times):.2f} s (median), {max(times):.2f} s (most)")
    print(f"left behind: {left} processes, {leaked} file descriptors")
    if left or leaked > 0:
        raise SystemExit(1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    asyncio.run(run(parser.parse_args(arguments).rounds))


if __name__ == "__main__":
    main()
