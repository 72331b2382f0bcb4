"""Engine ranks in processes of a test: real models, real groups, requests that come from a log."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch

from onbeat_engine.parallel.group import Group
from onbeat_engine.parallel.place import GroupPlace
from onbeat_engine.rank.build import build
from onbeat_engine.rank.core import EngineCore
from onbeat_engine.runner.graphs import Captured, Forward
from onbeat_engine.runner.model_runner import ModelRunner
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.errors import EngineDead
from onbeat_engine.wire.messages import Abort, Ended, LogEntry, NewRequest, RankOutputs
from onbeat_engine.wire.params import SamplingParams
from onbeat_spec import protocol

LENGTH = 10
CONFIG = EngineConfig(
    dtype="float32",
    device="cpu",
    block_size=4,
    num_gpu_blocks_override=22,
    max_model_len=84,
    max_num_batched_tokens=32,
    max_num_seqs=6,
    dp_sync_interval=3,
    on_violation="stop",
    collective_timeout=20.0,
)
PROMPTS = {f"r{i}": [(13 * i + 7 * k) % 290 + 3 for k in range(4 + 17 * i % 59)] for i in range(14)}


@dataclass
class Ran:
    """What one rank says of its run."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    preemptions: int = 0
    dummies: int = 0
    exchanges: int = 0
    forwards: int = 0
    held: int = 0
    replays: int = 0
    captures: int = 0


def events(
    size: int, seed: int, prompts: Mapping[str, list[int]] = PROMPTS, length: int = LENGTH, *, sleeps: bool = False
) -> list[list[LogEntry]]:
    """By rank, the log of a group whose requests arrive at random ranks, with a pause in between, perhaps asleep."""
    random_ = random.Random(seed)
    front = protocol.Front(tuple(range(size)))
    log: list[list[LogEntry]] = [[] for _ in range(size)]
    for number, (id, prompt) in enumerate(prompts.items()):
        steps = [protocol.request(front, random_.randrange(size))]
        if number == len(prompts) // 2:
            steps.append(protocol.pause(steps[0][0], "keep", holds=True))
            if sleeps:
                steps.append(protocol.sleep(steps[-1][0]))
            steps.append(protocol.resume(steps[-1][0]))
        front = steps[-1][0]
        for _, sent in steps:
            for rank, event in sent:
                new = NewRequest(id=id, prompt=prompt, params=SamplingParams(temperature=0.0), max_tokens=length)
                here = new if event.kind == "request" else None
                log[rank].append(LogEntry(number=event.number, kind=event.kind, mode=event.mode, request=here))
    return log


def alone(
    config: EngineConfig, prompts: Mapping[str, list[int]] = PROMPTS, length: int = LENGTH
) -> dict[str, list[int]]:
    """Return what one rank gives, one request after the other, in a pool that is never short."""
    torch.set_num_threads(1)
    config = replace(config, num_gpu_blocks_override=200, max_num_seqs=1)
    core = EngineCore(config, build(config, 0))
    ran = Ran()
    for (entry,) in zip(*events(1, 0, prompts, length), strict=True):
        core.read(entry)
    while core.turn():
        take(core, ran)
    take(core, ran)
    assert set(ran.tokens) == set(prompts)
    return ran.tokens


class How(NamedTuple):
    """How a rank is driven."""

    seed: int
    aborts: bool
    graphs: bool = False
    """Steps that only decode are run again from what was captured, as CUDA graphs are."""
    unmasked: bool = False
    """A fault: padding goes to experts like tokens."""


def serve(place: GroupPlace, config: EngineConfig, log: list[list[LogEntry]], how: How) -> Ran:
    """Be a rank: read the log at random moments, take turns until the group has stopped after all of it."""
    config = replace(config, data_parallel_size=place.size)
    ran = Ran()
    built = build(config, place.rank)
    if how.graphs:
        assert isinstance(built.executor, ModelRunner)
        built.executor._capture = partial(capture, ran)
        if how.unmasked:
            decoder = built.executor.model.decoder
            forward, decoder.forward = decoder.forward, lambda *given: forward(*given[:4])  # type: ignore[method-assign]
    core = EngineCore(config, built, rank=place.rank)
    assert isinstance(built.exchange, Group)
    assert built.exchange.size == place.size
    random_ = random.Random(1000 * how.seed + place.rank)
    left = list(reversed(log[place.rank]))
    while True:
        early = bool(left) and left[-1].kind == "resume" and core.state.sleep and not core.state.asleep
        if left and not early and random_.random() < 0.4:
            core.read(left.pop())
        if how.aborts and core.scheduler.requests and random_.random() < 0.02:
            core.read(Abort(ids=(random_.choice(sorted(core.scheduler.requests)),)))
        if not core.turn():
            if core.ended or not left:
                break
            core.read(left.pop())
        take(core, ran)
    take(core, ran)
    if core.ended:
        raise EngineDead(core.ended)
    built.exchange.close()
    ran.exchanges, ran.forwards = built.exchange.exchanges, built.exchange.forwards
    return ran


def capture(ran: Ran, forward: Forward) -> Captured:
    """Stand in for a CUDA graph: whatever Python decides was decided when it was captured, for padding alone."""
    logits = forward()
    ran.captures += 1

    def replay() -> None:
        forward()
        ran.replays += 1

    return Captured(replay, logits)


def take(core: EngineCore, ran: Ran) -> None:
    for message in core.take():
        assert isinstance(message, RankOutputs | Ended)
        if isinstance(message, RankOutputs):
            for output in message.outputs:
                ran.tokens.setdefault(output.id, []).extend(output.tokens)
                if output.finish_reason == "abort":
                    ran.aborted.append(output.id)
            if message.stats is not None:
                ran.preemptions, ran.dummies = message.stats.preemptions, message.stats.dummy_steps
                ran.held = message.stats.held_steps


def differently(place: GroupPlace, config: EngineConfig) -> Ran:
    return serve(place, replace(config, block_size=8) if place.rank else config, events(2, 0), How(0, aborts=False))
