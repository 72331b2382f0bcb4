"""Measure what the coordination of a group costs: everything in a step but the model and its layers' collectives.

Ranks are processes with the real step loop (scheduler, monitor, protocol, reports) and an executor without a model, of
which only the agreement on the forward's sizes is left. Then what goes over the wire: an exchange of votes, and one
expert layer without its experts, through shared memory and through gloo.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks._report import machine
from onbeat_engine.parallel.experts import ExpertParallel, Way, split_experts
from onbeat_engine.parallel.group import Group, Through
from onbeat_engine.parallel.place import GroupPlace
from onbeat_engine.rank.core import EngineCore
from onbeat_engine.rank.parts import Built
from onbeat_engine.testing.fake import FakeExecutor
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.messages import LogEntry, NewRequest
from onbeat_engine.wire.params import SamplingParams
from onbeat_engine.wire.ports import free_port
from onbeat_spec.protocol import GroupSettings, Vote

HIDDEN, EXPERTS, TOP_K = 576, 4, 2
TOKENS = (1, 16, 64, 256)
WAYS: tuple[Way, ...] = ("all-gather", "all-to-all")
CONFIG = EngineConfig(num_gpu_blocks_override=4096, max_model_len=2048, prefill_schedule_interval=2)


class Agreeing(FakeExecutor):
    """What is left of a forward without a model: the ranks agree on its sizes."""

    def __init__(self, group: Group, tokens: int) -> None:
        super().__init__(CONFIG.block_size)
        self._ranks = group
        self._tokens = tokens

    def _forward(self) -> None:
        self._ranks.forward_shape(self._tokens)


def turns(group: Group, decodes: int, steps: int) -> list[float]:
    """Take turns with `decodes` requests on each rank; return the seconds of each."""
    executor = Agreeing(group, decodes)
    core = EngineCore(CONFIG, Built(executor, 4096, 2048, group), rank=group.rank)
    for number in range(decodes):
        prompt = [(number + k) % 250 for k in range(16)]
        new = NewRequest(id=f"r{number}", prompt=prompt, params=SamplingParams(temperature=0.0), max_tokens=1500)
        core.read(LogEntry(number=number + 1, kind="request", request=new))
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        core.turn()
        core.take()
        seconds.append(time.perf_counter() - began)
    return seconds[steps // 4 :]


def timed(call: Callable[[], Any], times: int) -> float:
    """Return the median seconds of a call."""
    seconds = []
    for _ in range(times + 10):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return median(seconds[10:])


def layer(group: Group, tokens: int, way: Way, times: int) -> float:
    """Return the median seconds of an expert layer whose experts do nothing."""
    x, weights = torch.randn(tokens, HIDDEN), torch.rand(tokens, TOP_K)
    ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(tokens)])
    shared = ExpertParallel(group, lambda _layer, x, _ids, _weights: x, split_experts(EXPERTS, group.size), way)
    shared.begin(tokens)
    return timed(lambda: shared(0, x, ids, weights), times)


def rank(place: GroupPlace, steps: int, send: Connection) -> None:
    """Be a rank; tell what was measured."""
    torch.set_num_threads(1)
    medians: dict[str, Any] = {}
    throughs: tuple[Through, ...] = ("memory", "gloo")
    for attempt, through in enumerate(throughs):
        where = GroupPlace(place.rank, place.size, port=place.port + attempt)
        group = Group.join(where, GroupSettings(2, 16), {}, through=through, timeout=30.0)
        medians[f"vote {through}"] = timed(partial(group.exchange, Vote(1, True)), steps)
        for tokens in TOKENS:
            for way in WAYS:
                medians[f"{way} {tokens} {through}"] = layer(group, tokens, way, steps // 4)
        if through == "memory":
            for decodes in (1, 32, 128):
                medians[f"turn {decodes}"] = median(turns(group, decodes, steps))
        group.close()
    send.send(medians)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args(arguments)
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe(duplex=False) for _ in range(options.ranks)]
    port = free_port()
    places = [GroupPlace(number, options.ranks, port=port) for number in range(options.ranks)]
    ranks = [
        context.Process(target=rank, args=(place, options.steps, send), daemon=True)
        for place, (_, send) in zip(places, pairs, strict=True)
    ]
    for process in ranks:
        process.start()
    answers = [get.recv() for get, _ in pairs]
    for process in ranks:
        process.join()
    slowest = {name: max(one[name] for one in answers) for name in answers[0]}
    console = Console(width=100)
    console.print(machine(os.getloadavg()[0], os.cpu_count() or 1))
    console.print(f"{options.ranks} ranks: median microseconds of a turn without the model")
    for decodes in (1, 32, 128):
        console.print(f"  {decodes:4} decodes on each rank: {1e6 * slowest[f'turn {decodes}']:7.0f}")
    table = Table(title="On the wire", box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("", "shared memory", "gloo"):
        table.add_column(heading, justify="right")
    rows = [("votes", "vote {}")]
    rows += [(f"{tokens} tokens, {way}", f"{way} {tokens} {{}}") for tokens in TOKENS for way in WAYS]
    for text, key in rows:
        table.add_row(text, *(f"{1e6 * slowest[key.format(through)]:.0f}" for through in ("memory", "gloo")))
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
