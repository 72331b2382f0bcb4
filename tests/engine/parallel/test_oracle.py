"""The exact oracle: ranks that split the experts of a model give its tokens on one rank, whatever the schedule.

A dense model made into a mixture of identical experts must give the dense model's own tokens.
"""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from onbeat_engine.build import build
from onbeat_engine.config import EngineConfig
from onbeat_engine.core import EngineCore
from onbeat_engine.errors import EngineDead
from onbeat_engine.messages import Abort, Ended, LogEntry, NewRequest, Outputs
from onbeat_engine.parallel.place import Place, free_port
from onbeat_engine.sampling_params import SamplingParams
from onbeat_proofs.check_trace import check_trace
from onbeat_spec import protocol
from onbeat_spec.errors import ConfigError
from tests.engine.models import tiny
from tests.engine.parallel.ranks import run, well

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


def events(size: int, seed: int) -> list[list[LogEntry]]:
    """By rank, the log of a group whose requests arrive at random ranks, with a pause in between."""
    random_ = random.Random(seed)
    front = protocol.Front(tuple(range(size)))
    log: list[list[LogEntry]] = [[] for _ in range(size)]
    for number, (id, prompt) in enumerate(PROMPTS.items()):
        steps = [protocol.request(front, random_.randrange(size))]
        if number == len(PROMPTS) // 2:
            paused = protocol.pause(steps[0][0], "keep")
            steps += [paused, protocol.resume(paused[0])]
        front = steps[-1][0]
        for _, sent in steps:
            for rank, event in sent:
                new = NewRequest(id=id, prompt=prompt, params=SamplingParams(temperature=0.0), max_tokens=LENGTH)
                here = new if event.kind == "request" else None
                log[rank].append(LogEntry(number=event.number, kind=event.kind, mode=event.mode, request=here))
    return log


def serve(place: Place, config: EngineConfig, log: list[list[LogEntry]], seed: int, aborts: bool) -> Ran:
    """Be a rank: read the log at random moments, take turns until the group has stopped after all of it."""
    config = replace(config, data_parallel_size=place.size)
    built = build(config, place.rank)
    core = EngineCore(config, built, rank=place.rank)
    assert built.exchange.size == place.size
    random_ = random.Random(1000 * seed + place.rank)
    left = list(reversed(log[place.rank]))
    ran = Ran()
    while True:
        if left and random_.random() < 0.4:
            core.read(left.pop())
        if aborts and core.scheduler.requests and random_.random() < 0.02:
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
    ran.exchanges, ran.forwards = built.exchange.exchanges, built.exchange.forwards  # type: ignore[attr-defined]  a Group
    return ran


def take(core: EngineCore, ran: Ran) -> None:
    for message in core.take():
        assert isinstance(message, Outputs | Ended)
        if isinstance(message, Outputs):
            for output in message.outputs:
                ran.tokens.setdefault(output.id, []).extend(output.tokens)
                if output.finish_reason == "abort":
                    ran.aborted.append(output.id)
            if message.stats is not None:
                ran.preemptions, ran.dummies = message.stats.preemptions, message.stats.dummy_steps
                ran.held = message.stats.held_steps


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[int]]]:
    folder = tmp_path_factory.mktemp("llama")
    tiny.llama(folder)
    return folder, alone(replace(CONFIG, model=str(folder)))


def alone(config: EngineConfig) -> dict[str, list[int]]:
    """Return what one rank gives, one request after the other, in a pool that is never short."""
    torch.set_num_threads(1)
    config = replace(config, num_gpu_blocks_override=100, max_num_seqs=1)
    core = EngineCore(config, build(config, 0))
    ran = Ran()
    for (entry,) in zip(*events(1, 0), strict=True):
        core.read(entry)
    while core.turn():
        take(core, ran)
    take(core, ran)
    assert all(len(tokens) == LENGTH for tokens in ran.tokens.values())
    assert set(ran.tokens) == set(PROMPTS)
    return ran.tokens


def compare(ranks: list[Ran], expected: dict[str, list[int]]) -> None:
    got = {id: tokens for ran in ranks for id, tokens in ran.tokens.items()}
    aborted = {id for ran in ranks for id in ran.aborted}
    assert set(got) | aborted == set(PROMPTS)
    for id, tokens in got.items():
        assert tokens == expected[id][: len(tokens)], id
        assert id in aborted or len(tokens) == LENGTH
    assert len({(ran.exchanges, ran.forwards) for ran in ranks}) == 1
    assert sum(ran.dummies for ran in ranks) > 0


@pytest.mark.parametrize(("size", "interval"), [(2, 1), (2, 2), (2, 4), (3, 2)])
def test_an_upcycled_model_gives_the_dense_models_tokens(
    size: int, interval: int, llama: tuple[Path, dict[str, list[int]]], tmp_path: Path
) -> None:
    folder, expected = llama
    config = replace(
        CONFIG,
        model=str(folder),
        moe_upcycle=4,
        prefill_schedule_interval=interval,
        trace_dir=str(tmp_path),
        data_parallel_port=free_port(),
    )
    ranks = well(run(size, serve, config, events(size, interval), interval, True, limit=60))
    compare(ranks, expected)
    assert any(ran.aborted for ran in ranks)
    assert sum(ran.preemptions for ran in ranks) > 0
    report = check_trace(sorted(map(str, tmp_path.glob("*"))))
    assert report.findings == []
    assert report.lock_steps > 0


def test_a_mixture_of_experts_gives_its_own_tokens(tmp_path: Path) -> None:
    tiny.qwen3_moe(tmp_path)
    config = replace(CONFIG, model=str(tmp_path), prefill_schedule_interval=2, data_parallel_port=free_port())
    compare(well(run(2, serve, config, events(2, 7), 7, False, limit=60)), alone(config))


def differently(place: Place, config: EngineConfig) -> Any:
    change = {"block_size": 8} if place.rank else {}
    return serve(place, replace(config, **change), events(2, 0), 0, False)


def test_ranks_that_differ_are_refused(llama: tuple[Path, dict[str, list[int]]]) -> None:
    for error in run(
        2, differently, replace(CONFIG, model=str(llama[0]), moe_upcycle=4, data_parallel_port=free_port())
    ):
        assert isinstance(error, ConfigError)
        assert "differ in block_size (rank 0: 4, rank 1: 8)" in str(error)
