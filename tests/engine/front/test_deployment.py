"""A whole deployment in one process: a client, ranks in threads, and everything that may happen, at random."""

import queue
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onbeat_engine.front.client import Client
from onbeat_engine.parallel.exchange import Alone
from onbeat_engine.rank.core import EngineCore
from onbeat_engine.rank.parts import Built
from onbeat_engine.testing.fake import FakeExecutor, LocalExchange, LocalGroup, expected
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.errors import TryLater
from onbeat_engine.wire.messages import FromRank, NewRequest, Output, ToRank
from onbeat_engine.wire.params import SamplingParams, StructuredOutput
from onbeat_proofs.traces.check import check_trace
from onbeat_spec.errors import OnbeatError
from onbeat_spec.protocol import PauseMode

MODES: tuple[PauseMode, ...] = ("keep", "abort", "wait")


class Deployment:
    """Ranks in threads, and their client."""

    def __init__(self, ranks: int, coupled: bool, **config: Any) -> None:
        made = EngineConfig(
            block_size=4,
            max_model_len=100,
            data_parallel_size=ranks,
            on_violation="stop",
            **config,
        )
        group = LocalGroup(ranks, timeout=10.0)
        self.inboxes: list[queue.Queue[ToRank | None]] = [queue.Queue() for _ in range(ranks)]
        self.outbox: queue.Queue[FromRank] = queue.Queue()
        self.executors: list[FakeExecutor] = []
        self.cores: list[EngineCore] = []
        for rank in range(ranks):
            exchange = LocalExchange(group, rank) if coupled else None
            self.executors.append(FakeExecutor(4, forward=exchange))
            built = Built(self.executors[-1], made.num_gpu_blocks_override or 40, 100, exchange or Alone())
            self.cores.append(EngineCore(made, built, rank=rank))
        self.client = Client(ranks, coupled, lambda rank, message: self.inboxes[rank].put(message), on_violation="stop")
        self.threads = [threading.Thread(target=self._loop, args=(rank,), daemon=True) for rank in range(ranks)]
        for thread in self.threads:
            thread.start()

    def _loop(self, rank: int) -> None:
        core, inbox = self.cores[rank], self.inboxes[rank]
        busy = True
        while not core.ended:
            try:
                while (message := inbox.get(block=not busy)) is not None:
                    busy = True
                    core.read(message)
                return
            except queue.Empty:
                pass
            busy = core.turn()
            for each in core.take():
                self.outbox.put(each)

    def pump(self, holds: Callable[[], bool] | None = None) -> None:
        """Hand on what ranks have told; until something holds, if that is given."""
        until = time.monotonic() + 20
        while True:
            while not self.outbox.empty():
                self.client.received(self.outbox.get())
            if holds is None or holds():
                return
            assert time.monotonic() < until, "it does not come to an end"
            time.sleep(0.0005)

    def end(self) -> None:
        for inbox in self.inboxes:
            inbox.put(None)
        for thread in self.threads:
            thread.join(10)


class History:
    """Random things happen to a deployment."""

    def __init__(self, seed: int, deployment: Deployment) -> None:
        self.random = random.Random(seed)
        self.deployment = deployment
        self.asked: dict[str, NewRequest] = {}
        self.got: dict[str, list[Output]] = {}
        self.refused = 0

    def happen(self) -> None:
        """One thing happens."""
        client, chance = self.deployment.client, self.random.random()
        if chance < 0.5:
            self.add()
        elif chance < 0.6:
            client.abort(self.random.sample(sorted(self.asked), min(2, len(self.asked))))
        elif chance < 0.7:
            client.reset_prefix_cache(lambda error: None)
        elif chance < 0.75:
            try:
                client.pause(self.random.choice(MODES))
            except OnbeatError:
                assert client.sleeping
        elif chance < 0.8 and client.paused:
            client.sleep()
        elif chance < 0.84:
            client.rouse()
        else:
            client.resume()
        if self.random.random() < 0.7:
            time.sleep(self.random.random() * 0.004)
        self.deployment.pump()

    def add(self) -> None:
        """A request comes; many share a prefix, some can never fit, some stop early."""
        choice, number = self.random, len(self.asked)
        prompt = [choice.randrange(3)] * choice.randrange(1, 30) + [number % 250] * choice.randrange(3)
        length = choice.randrange(1, 25)
        stops = (expected(prompt, length)[length // 2],) if choice.random() < 0.3 else ()
        structured = StructuredOutput(json_object=True) if choice.random() < 0.1 else None
        new = NewRequest(
            id=f"r{number}",
            prompt=[1] * 101 if choice.random() < 0.05 else prompt,
            params=SamplingParams(structured=structured),
            max_tokens=length,
            stop_token_ids=stops,
            priority=choice.randrange(3),
        )
        got: list[Output] = []
        try:
            self.deployment.client.add(new, lambda output, rank: got.append(output))
        except TryLater:
            assert self.deployment.client.paused in ("wait", "abort")
            self.refused += 1
        else:
            self.asked[new.id], self.got[new.id] = new, got

    def judge(self) -> None:
        """Every request has ended once, and its tokens are the right ones."""
        for id, new in self.asked.items():
            ends = [output.finish_reason for output in self.got[id] if output.finish_reason is not None]
            tokens = [token for output in self.got[id] for token in output.tokens]
            right = expected(new.prompt, new.max_tokens)
            if new.stop_token_ids and new.stop_token_ids[0] in right:
                right = right[: right.index(new.stop_token_ids[0]) + 1]
            assert len(ends) == 1
            if len(new.prompt) > 100:
                assert ends in (["error"], ["abort"])
            elif ends == ["abort"]:
                assert tokens == right[: len(tokens)]
            else:
                assert ends == ["stop" if new.stop_token_ids and tokens[-1] in new.stop_token_ids else "length"]
                assert tokens == right


@pytest.mark.parametrize("seed", range(24))
def test_whatever_happens_nothing_is_lost(seed: int, tmp_path: Path) -> None:
    choice = random.Random(1000 + seed)
    ranks = 1 + seed % 3
    coupled = ranks > 1 and seed % 2 == 0
    deployment = Deployment(
        ranks,
        coupled,
        async_scheduling=choice.random() < 0.5,
        prefill_schedule_interval=choice.choice([1, 2, 4]),
        dp_sync_interval=choice.choice([1, 3, 16]),
        num_gpu_blocks_override=choice.choice([26, 40]),
        max_num_batched_tokens=choice.choice([8, 32]),
        max_num_seqs=choice.choice([3, 8]),
        scheduling_policy=choice.choice(["fcfs", "priority"]),
        trace_dir=str(tmp_path),
    )
    history = History(seed, deployment)
    for _ in range(60):
        history.happen()
    client = deployment.client
    client.resume()
    deployment.pump(lambda: not client.requests)
    client.pause("keep")
    deployment.pump(lambda: client.stopped)
    client.resume()
    deployment.pump(lambda: client.stopped)
    deployment.end()
    history.judge()
    assert history.asked
    assert not client.dead
    for core, executor in zip(deployment.cores, deployment.executors, strict=True):
        assert not core.ended
        assert not executor.flights
        assert core.scheduler.pool.free == core.scheduler.pool.num_blocks
        assert (client.stats[core.rank].running, client.stats[core.rank].tokens) == (0, 0)
    assert not any(watch.counts for watch in client.watches.values())
    report = check_trace([str(path) for path in tmp_path.iterdir()])
    assert (report.findings, report.notes) == ([], [])
    assert (report.lock_steps > 0) == coupled
