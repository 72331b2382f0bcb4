"""The data-parallel engine as a whole: front end and ranks in processes of their own, real models, faults."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.front.outputs import RequestOutput
from onbeat_engine.front.supervision import LEAST_PATIENCE
from onbeat_engine.parallel.exchange import Alone
from onbeat_engine.rank.build import build
from onbeat_engine.rank.core import EngineCore
from onbeat_engine.testing.fake import expected, tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.errors import EngineDead, TryLater
from onbeat_engine.wire.params import SamplingParams
from onbeat_engine.wire.ports import free_port
from onbeat_proofs.traces.check import check_trace
from tests.engine.parallel.serving import CONFIG as ALONE
from tests.engine.parallel.serving import PROMPTS as LONG
from tests.engine.parallel.serving import alone
from tests.engine.runner.models import tiny

LENGTH = 12
PROMPTS = {id: [token % 256 for token in prompt] for id, prompt in LONG.items()}
CONFIG = replace(
    ALONE,
    num_gpu_blocks_override=60,
    max_model_len=120,
    max_num_seqs=8,
    data_parallel_size=2,
    dp_sync_interval=4,
    prefill_schedule_interval=2,
    collective_timeout=3.0,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.llama(path, vocab_size=256)
    return path


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def running(work: Coroutine[Any, Any, Any], limit: float = 60.0) -> Any:
    return asyncio.run(asyncio.wait_for(work, limit))


async def start(config: EngineConfig) -> AsyncLLM:
    return await AsyncLLM.from_config(config, tokenizer=tokenizer())


async def ask(engine: AsyncLLM, id: str, prompt: list[int], max_tokens: int = LENGTH) -> RequestOutput:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, seed=0)
    return [output async for output in engine.generate(prompt, params, id)][-1]


async def all_of(config: EngineConfig, length: int = LENGTH) -> dict[str, list[int]]:
    engine = await start(config)
    try:
        outputs = await asyncio.gather(*(ask(engine, id, prompt, length) for id, prompt in PROMPTS.items()))
        stats = engine.stats()
        assert all(not each.violations for each in stats)
        assert len({each.rank for each in stats if each.prompt_tokens}) == config.data_parallel_size
        return {output.request_id: list(output.outputs[0].token_ids) for output in outputs}
    finally:
        await engine.shutdown()


def test_two_ranks_that_share_experts_give_one_rank_s_tokens(folder: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, model=str(folder), moe_upcycle=4, trace_dir=str(tmp_path))
    assert running(all_of(config)) == alone(replace(CONFIG, model=str(folder)), PROMPTS, LENGTH)
    report = check_trace(sorted(map(str, tmp_path.glob("*"))))
    assert report.findings == []
    assert report.lock_steps > 0


def test_ranks_of_a_dense_model_are_on_their_own(folder: Path) -> None:
    """Case B80: nobody meets anybody, so a second rank need not be there."""
    built = build(replace(CONFIG, model=str(folder)), 1)
    assert isinstance(built.exchange, Alone)
    assert not EngineCore(CONFIG, built, rank=1).coupled


def test_the_end_of_a_group_at_work_is_quiet(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> list[str | None]:
        engine = await start(replace(CONFIG, model=str(folder), moe_upcycle=4))
        asked = [asyncio.ensure_future(ask(engine, id, prompt, 90)) for id, prompt in PROMPTS.items()]
        while min(each.generation_tokens for each in engine.stats()) == 0:
            await asyncio.sleep(0.01)
        children, stop = dict(engine._processes._children.processes), engine._processes.stop

        together: list[bool] = []

        async def told_to_end(timeout: float) -> None:
            together.append(engine._client.stopped)
            await stop(timeout)

        monkeypatch.setattr(engine._processes, "stop", told_to_end)
        await engine.shutdown()
        assert together == [True], "no rank may wait for another one when they are told to end"
        assert [child.returncode for child in children.values()] == [0, 0]
        return [(await each).outputs[0].finish_reason for each in asked]

    assert "abort" in running(work())
    assert "ends" not in capfd.readouterr().err


def test_a_group_of_which_a_rank_was_killed_is_started_again(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        engine = await start(replace(CONFIG, model=str(folder), moe_upcycle=4, restart=True, trace_dir=str(tmp_path)))
        try:
            right = list((await ask(engine, "a", [5, 6, 7])).outputs[0].token_ids)
            asked = [asyncio.ensure_future(ask(engine, id, prompt, 90)) for id, prompt in PROMPTS.items()]
            while min(each.generation_tokens for each in engine.stats()) == 0:
                await asyncio.sleep(0.01)
            began = time.monotonic()
            os.kill(engine.ranks[0].pid, signal.SIGKILL)
            ends = [output.outputs[0] for output in await asyncio.gather(*asked)]
            assert time.monotonic() - began < 2.0
            assert "error" in {end.finish_reason for end in ends} <= {"error", "length"}
            assert all("rank 0" in str(end.error) for end in ends if end.finish_reason == "error")
            assert engine.is_restarting
            with pytest.raises(TryLater):
                await ask(engine, "meanwhile", [5, 6, 7])
            while engine.is_restarting:
                await asyncio.sleep(0.01)
            again = await asyncio.gather(*(ask(engine, f"b{i}", [5, 6, 7]) for i in range(4)))
            assert [list(output.outputs[0].token_ids) for output in again] == [right] * 4
            assert [rank.epoch for rank in engine.ranks] == [1, 1]
        finally:
            await engine.shutdown()

    running(work())
    report = check_trace(sorted(map(str, tmp_path.glob("*"))))
    assert (report.files, report.findings) == (4, [])
    assert report.lock_steps > 0


FRONT = """
import asyncio, sys
import msgspec
from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.testing.fake import expected, tokenizer
from onbeat_engine.wire.params import SamplingParams

async def main():
    config = msgspec.json.decode(sys.argv[1], type=EngineConfig)
    engine = await AsyncLLM.from_config(config, tokenizer=tokenizer())
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    streams = [engine.generate([i, 2, 3], params, str(i)) for i in range(6)]
    for stream in streams:
        await anext(stream)
    print(*(rank.pid for rank in engine.ranks), engine._processes._channels.folder, flush=True)
    async for _ in streams[0]:
        pass
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_front_end_is_killed_and_started_again(folder: Path) -> None:
    """Under load: its ranks end by themselves, nothing of them is left, and the same port can be used again."""
    memory = set(os.listdir("/dev/shm"))
    config = replace(CONFIG, model=str(folder), moe_upcycle=4, data_parallel_port=free_port())
    command = [sys.executable, "-c", FRONT, msgspec.json.encode(config).decode()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as front:
            assert front.stdout is not None
            *pids, sockets = front.stdout.readline().split()
            assert Path(sockets).is_dir()
            front.kill()
        began = time.monotonic()
        while any(lives(int(pid)) for pid in pids):
            assert time.monotonic() - began < 4.0
            time.sleep(0.02)
        assert not Path(sockets).exists()
        assert not {name for name in set(os.listdir("/dev/shm")) - memory if name.startswith("onbeat")}


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_rank_whose_step_takes_long_ends_nobody() -> None:
    """Neither it, nor those who wait for it: more than twice as long as a rank may be silent."""

    async def work() -> list[RequestOutput]:
        config = EngineConfig(model="rank=1,busy_at=9,busy=3.1", data_parallel_size=2, collective_timeout=0.4)
        engine = await AsyncLLM.from_config(config, build="tests.engine.parallel.faked:build", tokenizer=tokenizer())
        try:
            return await asyncio.gather(*(ask(engine, f"r{i}", [i], 20) for i in range(4)))
        finally:
            await engine.shutdown()

    began = time.monotonic()
    outputs = running(work())
    assert [list(output.outputs[0].token_ids) for output in outputs] == [expected([i], 20) for i in range(4)]
    assert time.monotonic() - began > 2 * LEAST_PATIENCE


def test_a_rank_that_hangs_ends_its_group(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    timeout = 1.0

    async def work() -> list[RequestOutput]:
        engine = await start(replace(CONFIG, model=str(folder), moe_upcycle=4, collective_timeout=timeout))
        pids = [rank.pid for rank in engine.ranks]
        try:
            asked = [asyncio.ensure_future(ask(engine, id, prompt, 90)) for id, prompt in PROMPTS.items()]
            while engine.stats()[1].generation_tokens == 0:
                await asyncio.sleep(0.01)
            began = time.monotonic()
            os.kill(pids[1], signal.SIGSTOP)
            outputs = await asyncio.gather(*asked)
            assert time.monotonic() - began < 2 * timeout + 2.0
            with pytest.raises(EngineDead):
                await engine.check_health()
            return outputs
        finally:
            await engine.shutdown(timeout=0.1)
            assert not [pid for pid in pids if psutil.pid_exists(pid)]

    ends = [output.outputs[0] for output in running(work())]
    assert "error" in {end.finish_reason for end in ends} <= {"error", "length"}
    assert all("rank 1" in str(end.error) for end in ends if end.finish_reason == "error")
