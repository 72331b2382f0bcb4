"""The asynchronous engine over real processes of ranks, with the model that needs none."""

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from onbeat_engine.front import outputs, restarts
from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.front.outputs import RequestOutput
from onbeat_engine.front.preparing import Preparer
from onbeat_engine.front.supervision import LEAST_PATIENCE
from onbeat_engine.testing.fake import expected, tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.errors import BadRequest, EngineDead, TryLater
from onbeat_engine.wire.messages import Output
from onbeat_engine.wire.params import SamplingParams, StructuredOutput
from onbeat_proofs.traces.check import check_trace
from onbeat_spec.errors import ConfigError, ProtocolMisuse

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, seed=0)
FAKE = "onbeat_engine.testing.fake:build"
LONG = SamplingParams(temperature=0.0, max_tokens=900, seed=0)


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder of our own for sockets: other engines on this machine are not ours to look at."""
    tmp_path_factory.getbasetemp()  # pytest's own is not to be made in there
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


def leftovers() -> tuple[list[str], set[int]]:
    """Folders of sockets, and children."""
    return os.listdir(tempfile.gettempdir()), {child.pid for child in psutil.Process().children(recursive=True)}


@contextlib.asynccontextmanager
async def running(**config: Any) -> AsyncIterator[AsyncLLM]:
    """An engine, of which nothing is left afterwards."""
    before = leftovers()
    engine = await AsyncLLM.from_config(EngineConfig(**config), build=FAKE, tokenizer=tokenizer())
    try:
        yield engine
    finally:
        await engine.shutdown()
    assert leftovers() == before


def run(work: Callable[[], Awaitable[None]], limit: float = 30.0) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work(), limit)

    asyncio.run(limited())


async def final(engine: AsyncLLM, prompt: str | list[int], params: SamplingParams = GREEDY) -> RequestOutput:
    return await anext(engine.generate(prompt, params, "x", output_kind="final"))


async def until(holds: Callable[[], bool], limit: float = 5.0) -> float:
    """Wait for something; return how long it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < limit
        await asyncio.sleep(0.005)
    return time.monotonic() - began


def test_requests_are_served_streamed_and_refused() -> None:
    async def work() -> None:
        async with running(async_scheduling=True) as engine:
            await engine.check_health()
            served = await asyncio.gather(*(final(engine, [i, 2, 3]) for i in range(20)))
            for i, output in enumerate(served):
                assert output.outputs[0].token_ids == expected([i, 2, 3], 12)
            parts = [part async for part in engine.generate("ab", GREEDY, "same", output_kind="delta")]
            assert [token for part in parts for token in part.outputs[0].token_ids] == expected(b"ab", 12)
            for bad in ("", "x" * 2000):
                with pytest.raises(BadRequest):
                    engine.generate(bad, GREEDY, "same")
            assert (engine.num_unfinished, engine.num_held) == (0, 0)
            await until(lambda: engine.stats()[0].running == 0)
            assert engine.stats()[0].generation_tokens == 21 * 12

    run(work)


def test_readers_are_not_starved_by_a_fast_rank() -> None:
    async def work() -> None:
        async with running() as engine:
            params = SamplingParams(temperature=0.0, max_tokens=300, seed=0)

            async def chunks(i: int) -> int:
                return len([1 async for _ in engine.generate([i], params, "x", output_kind="delta")])

            counts = await asyncio.gather(*(chunks(i) for i in range(32)))
            assert min(counts) > 20

    run(work)


def test_the_fault_of_one_request_is_no_other_s(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    push = outputs.Choice.push

    def faulty(self: outputs.Choice, output: Output) -> bool:
        if self.params.max_tokens == 13:
            raise RuntimeError("planted failure")
        return push(self, output)

    monkeypatch.setattr(outputs.Choice, "push", faulty)

    async def work() -> None:
        async with running() as engine:
            bad = SamplingParams(temperature=0.0, max_tokens=13, seed=0)
            both = await asyncio.gather(*(final(engine, [1], params) for params in (bad, GREEDY)))
            assert [each.outputs[0].finish_reason for each in both] == ["error", "length"]
            assert "planted failure" in (both[0].outputs[0].error or "")
            await until(lambda: engine.stats()[0].running == 0)

    run(work)


def test_n_completions_differ_and_are_reproducible() -> None:
    """Case B102."""

    async def work() -> None:
        async with running() as engine:
            params = SamplingParams(n=4, seed=7, max_tokens=8)
            first, second = await final(engine, "a", params), await final(engine, "a", params)
            texts = [tuple(each.token_ids) for each in first.outputs]
            assert len(set(texts)) == 4
            assert texts == [tuple(each.token_ids) for each in second.outputs]
            assert texts == [tuple(expected(b"a", 8, seed=7 + child)) for child in range(4)]

    run(work)


def test_whoever_goes_away_takes_the_request_with_them() -> None:
    """Case B91: by cancelling, closing, or letting go of the stream; and by a stop string."""

    async def work() -> None:
        async with running(model="delay=0.002") as engine:

            async def cancelled() -> None:
                async for _ in engine.generate("a", LONG, "a"):
                    pass

            task = asyncio.create_task(cancelled())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with engine.generate("b", LONG, "b") as stream:
                await anext(stream)
            dropped = engine.generate("c", LONG, "c")
            await anext(dropped)
            del dropped
            gc.collect()
            text = tokenizer().decode(expected(b"d", 900))
            stop = next(text[i : i + 2] for i in range(20, 80) if text[i : i + 2].isascii())
            stopped = await final(engine, "d", SamplingParams(temperature=0, max_tokens=900, seed=0, stop=(stop,)))
            assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", stop)
            await until(lambda: engine.stats()[0].running + engine.stats()[0].waiting == 0, 1.0)
            assert engine.stats()[0].kv_cache_usage == 0
            assert engine.num_unfinished == 0

    run(work)


def test_abort_ends_the_stream() -> None:
    async def work() -> None:
        async with running(model="delay=0.002") as engine:
            stream = engine.generate("a", LONG, "mine")
            await anext(stream)
            await engine.abort(["mine", "unknown"])
            rest = [output async for output in stream]
            assert rest[-1].outputs[0].finish_reason == "abort"

    run(work)


@pytest.mark.parametrize("ranks", [1, 2])
def test_pause_sleep_and_resume(ranks: int, tmp_path: Path) -> None:
    """Case B107."""

    async def work() -> None:
        async with running(model="delay=0.001", data_parallel_size=ranks, trace_dir=str(tmp_path)) as engine:
            streams = [engine.generate([i], LONG, str(i), output_kind="final") for i in range(4)]
            await asyncio.sleep(0.05)
            await engine.pause_generation(mode="keep")
            await engine.pause_generation(mode="keep")
            held = engine.generate([9], GREEDY, "held", output_kind="final")
            assert (engine.is_paused, engine.num_held) == (True, 1)
            await engine.sleep()
            assert engine.is_sleeping
            assert all(stats.asleep for stats in engine.stats())
            await engine.wake_up()
            assert (engine.is_paused, engine.is_sleeping) == (True, False)
            await engine.resume_generation()
            await engine.resume_generation()
            for i, stream in enumerate(streams):
                assert (await anext(stream)).outputs[0].token_ids == expected([i], 900)
            assert (await anext(held)).outputs[0].token_ids == expected([9], 12)
            await engine.sleep()
            with pytest.raises(TryLater):
                engine.generate([1], GREEDY, "late")
            with pytest.raises(ProtocolMisuse):
                await engine.pause_generation(mode="wait")
            await engine.wake_up()
            assert not engine.is_paused
            assert await engine.reset_prefix_cache()
            assert (await final(engine, [1])).outputs[0].token_ids == expected([1], 12)

    run(work)
    report = check_trace([str(path) for path in tmp_path.iterdir()])
    assert report.steps
    assert report.findings == []


def test_who_is_awake_need_not_be_woken() -> None:
    async def work() -> None:
        async with running(model="delay=0.01") as engine:
            stream = engine.generate([1], LONG, "x", output_kind="delta")
            await anext(stream)
            await engine.wake_up()
            assert engine.num_unfinished == 1, "it has not waited for the ranks to stop"
            await stream.aclose()

    run(work)


def test_no_step_waits_for_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_in: list[int] = []

    def check_structured(self: Preparer, structured: StructuredOutput) -> None:
        compiled_in.append(threading.get_ident())

    monkeypatch.setattr(Preparer, "check_structured", check_structured)
    wanted = StructuredOutput(json_object=True)

    async def work() -> None:
        async with running(model="compile=2", data_parallel_size=2) as engine:
            compiling = asyncio.create_task(engine.compile_structured(wanted))
            await until(lambda: bool(compiled_in))
            for _ in range(4):
                assert (await final(engine, [1])).outputs[0].token_ids == expected([1], 12)
            assert not compiling.done(), "both ranks have served while they compiled"
            await compiling
            await engine.compile_structured(wanted)
            assert len(compiled_in) == 1, "every rank has it"
            assert threading.get_ident() not in compiled_in, "the event loop does not wait for it either"
            with pytest.raises(BadRequest, match="response_format"):
                await engine.compile_structured(StructuredOutput(json_schema={"const": 1 << 70}))

    run(work)


def test_a_killed_rank_is_noticed_and_the_others_go_on(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with running(model="delay=0.002", data_parallel_size=2) as engine:
            streams = [engine.generate([i], LONG, str(i), output_kind="final") for i in range(4)]
            await asyncio.sleep(0.05)
            os.kill(engine.ranks[0].pid, signal.SIGKILL)
            assert await until(lambda: not engine.ranks[0].alive) < 1.0
            outputs = [(await anext(stream)).outputs[0] for stream in streams]
            assert [each.finish_reason for each in outputs] == ["error", "length", "error", "length"]
            assert "signal 9" in (outputs[0].error or "")
            await engine.check_health()
            assert (await final(engine, [1])).outputs[0].token_ids == expected([1], 12)
            os.kill(engine.ranks[1].pid, signal.SIGKILL)
            assert await until(lambda: engine.errored) < 1.0
            with pytest.raises(EngineDead, match="signal 9"):
                await engine.check_health()
            with pytest.raises(EngineDead):
                engine.generate([1], GREEDY, "late")

    run(work)


def test_a_rank_that_died_is_started_again(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with running(model="delay=0.002", restart=True) as engine:
            for _ in range(3):
                stream = engine.generate([1], LONG, "a", output_kind="final")
                await asyncio.sleep(0.05)
                os.kill(engine.ranks[0].pid, signal.SIGKILL)
                assert (await anext(stream)).outputs[0].finish_reason == "error"
                assert engine.is_restarting
                assert not engine.errored
                assert not engine.is_running
                assert not engine.ranks[0].alive
                with pytest.raises(TryLater, match="started again"):
                    engine.generate([1], GREEDY, "late")
                await until(lambda: not engine.is_restarting)
                assert (await final(engine, [1])).outputs[0].token_ids == expected([1], 12)
            assert engine.ranks[0].epoch == 3

    run(work)


def test_a_rank_comes_back_as_paused_as_the_others_are(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with running(restart=True, data_parallel_size=2) as engine:
            await engine.sleep(mode="keep")
            os.kill(engine.ranks[1].pid, signal.SIGKILL)
            await until(lambda: engine.is_restarting)
            held = [engine.generate([i], GREEDY, "held", output_kind="final") for i in range(4)]
            await until(lambda: not engine.is_restarting)
            await until(lambda: [stats.asleep for stats in engine.stats()] == [True, True])
            assert engine.num_held == 4
            await engine.wake_up()
            outputs = [await anext(stream) for stream in held]
            assert [each.outputs[0].token_ids for each in outputs] == [expected([i], 12) for i in range(4)]
            assert sorted(each.rank for each in outputs) == [0, 0, 1, 1]

    run(work)


def test_what_is_held_waits_for_the_only_group_to_come_back(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with running(restart=True) as engine:
            await engine.pause_generation(mode="keep")
            held = engine.generate([7], GREEDY, "held", output_kind="final")
            os.kill(engine.ranks[0].pid, signal.SIGKILL)
            await until(lambda: engine.is_restarting)
            await engine.resume_generation()
            assert (await anext(held)).outputs[0].token_ids == expected([7], 12)

    run(work)


def test_a_rank_that_cannot_come_back_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(restarts, "RESTART_AFTER", (0.0, 0.1))

    async def work() -> None:
        async with running(restart=True) as engine:
            engine._processes.build = "onbeat_engine.nothing:build"
            os.kill(engine.ranks[0].pid, signal.SIGKILL)
            await until(lambda: engine.errored)
            with pytest.raises(EngineDead):
                engine.generate([1], GREEDY, "late")

    run(work)


def test_a_failing_step_ends_the_rank_with_its_reason(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with running(model="fail_at=5") as engine:
            output = await final(engine, [1])
            assert output.outputs[0].finish_reason == "error"
            assert "planted failure" in (output.outputs[0].error or "")
            await until(lambda: engine.errored)
            await until(lambda: not psutil.pid_exists(engine.ranks[0].pid))

    run(work)


@pytest.mark.parametrize("timeout", [0.01, 0.8])
def test_a_rank_that_hangs_is_killed(timeout: float, capfd: pytest.CaptureFixture[str]) -> None:
    """However short the timeout: a rank on its own has no collectives, and is watched all the same."""

    async def work() -> None:
        async with running(model="hang_at=5", collective_timeout=timeout) as engine:
            output = await final(engine, [1])
            assert "hung" in (output.outputs[0].error or "")

    run(work)


def test_an_idle_rank_is_left_alone_however_short_the_timeout() -> None:
    """It tells twice a second that it lives."""

    async def work() -> None:
        async with running(collective_timeout=0.15) as engine:
            await asyncio.sleep(1.2 * LEAST_PATIENCE)
            assert (await final(engine, [1])).outputs[0].token_ids == expected([1], 12)

    run(work)


def test_a_rank_whose_step_takes_long_is_left_alone() -> None:
    """A step may take longer than a rank may be silent, if it works."""

    async def work() -> None:
        async with running(model="busy_at=5,busy=2.5", collective_timeout=0.6) as engine:
            assert (await final(engine, [1])).outputs[0].token_ids == expected([1], 12)

    run(work)


def test_drain_and_shutdown_end_every_stream() -> None:
    """Case B105."""

    async def work() -> None:
        async with running(model="delay=0.005") as engine:
            short = engine.generate([1], SamplingParams(temperature=0, max_tokens=20, seed=0), "a", output_kind="final")
            long = engine.generate([2], LONG, "b", output_kind="final")
            reading = [asyncio.create_task(anext(stream)) for stream in (short, long)]
            await asyncio.sleep(0.02)
            engine.stop_admission()
            with pytest.raises(TryLater):
                engine.generate([1], GREEDY, "late")
            assert not await engine.drain(0.5)
            await engine.shutdown()
            await engine.shutdown()
            reasons = [(await each).outputs[0].finish_reason for each in reading]
            assert reasons == ["length", "abort"]
            assert await engine.drain(1.0)
            assert not engine.is_running

    run(work)


@pytest.mark.parametrize(
    ("config", "build", "why"),
    [
        ({"model": "unheard=1"}, FAKE, "knows no unheard"),
        ({}, "onbeat_engine.nothing:build", "names no function"),
        ({"model": "load=x"}, FAKE, "ValueError"),
    ],
)
def test_a_rank_that_cannot_start_says_why(
    config: dict[str, Any], build: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        before = leftovers()
        with pytest.raises(EngineDead, match=why):
            await AsyncLLM.from_config(EngineConfig(data_parallel_size=2, **config), build=build, tokenizer=tokenizer())
        assert leftovers() == before

    run(work)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_a_rank_may_be_started_elsewhere() -> None:
    async def work() -> None:
        address = f"tcp://127.0.0.1:{free_port()}"
        path = os.pathsep.join(entry for entry in sys.path if entry)
        command = [sys.executable, "-m", "onbeat_engine.rank", "--connect", address]
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, "RANK": "1"}) as remote:
            config = EngineConfig(data_parallel_size=2)
            engine = await AsyncLLM.from_config(
                config, build=FAKE, tokenizer=tokenizer(), listen=address, local_ranks=1
            )
            assert engine.ranks[1].pid == remote.pid
            outputs = await asyncio.gather(*(final(engine, [i]) for i in range(6)))
            assert [each.outputs[0].token_ids for each in outputs] == [expected([i], 12) for i in range(6)]
            assert [stats.read for stats in engine.stats()] == [3, 3]
            await asyncio.sleep(1.2)  # so that a ping is sent
            await engine.shutdown()
            assert await asyncio.to_thread(remote.wait, 5) == 0

    run(work)


IMPATIENT = """
import sys
from onbeat_engine.rank import process
process.ALONE = 3.0
sys.exit(process.main(sys.argv[1:]))
"""


def test_a_front_end_does_not_keep_the_ranks_of_the_one_before() -> None:
    """It comes at the same address. They miss the old one, end with 1, and are started again by what started them."""

    async def start(address: str) -> AsyncLLM:
        config = EngineConfig(data_parallel_size=2)
        return await AsyncLLM.from_config(config, build=FAKE, tokenizer=tokenizer(), listen=address, local_ranks=1)

    def rank(address: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        command = [sys.executable, "-c", IMPATIENT, "--connect", address]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, "RANK": "1"})

    async def crash(engine: AsyncLLM) -> None:
        processes = engine._processes
        for task in processes._tasks:
            task.cancel()
        await asyncio.gather(*processes._tasks, return_exceptions=True)
        await processes._end([0])
        channels = processes._channels
        assert channels._socket is not None
        assert channels._context is not None
        channels._socket.close(linger=0)
        channels._context.term()
        shutil.rmtree(channels.folder)

    async def work() -> None:
        address = f"tcp://127.0.0.1:{free_port()}"
        with rank(address) as old:
            await crash(await start(address))
            with rank(address) as new:
                engine = await start(address)
                try:
                    assert engine.ranks[1].pid == new.pid
                    assert await asyncio.to_thread(old.wait, 15) == 1
                    outputs = await asyncio.gather(*(final(engine, [i]) for i in range(4)))
                    assert [each.outputs[0].token_ids for each in outputs] == [expected([i], 12) for i in range(4)]
                finally:
                    await engine.shutdown()
                    old.kill()

    run(work)


def test_a_process_that_is_no_rank_is_told_so(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        address = f"tcp://127.0.0.1:{free_port()}"
        path = os.pathsep.join(entry for entry in sys.path if entry)
        command = [sys.executable, "-m", "onbeat_engine.rank", "--connect"]
        starting = asyncio.ensure_future(
            AsyncLLM.from_config(
                EngineConfig(data_parallel_size=2), build=FAKE, tokenizer=tokenizer(), listen=address, local_ranks=1
            )
        )
        for rank, to, why in (
            ("2", address, "RANK is 2; there are 2 ranks, from 0 on, of which 0 to 0 are started by the front end"),
            ("0", address, "RANK is 0; there are 2 ranks"),
            ("1", "elsewhere", "cannot connect to the front end: Invalid argument (addr='elsewhere')"),
        ):
            environment = {**os.environ, "PYTHONPATH": path, "RANK": rank}
            ran = await asyncio.to_thread(
                subprocess.run, [*command, to], env=environment, capture_output=True, text=True, timeout=20, check=False
            )
            assert ran.returncode == 2
            assert f"error: {why}" in ran.stderr
            assert "Traceback" not in ran.stderr
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    run(work)


def test_an_address_that_is_taken_is_one_line() -> None:
    async def work() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(ConfigError, match="cannot listen"):
                await AsyncLLM.from_config(EngineConfig(), build=FAKE, tokenizer=tokenizer(), listen=address)
        with pytest.raises(ConfigError, match="0 of 1 ranks"):
            await AsyncLLM.from_config(EngineConfig(), build=FAKE, tokenizer=tokenizer(), local_ranks=0)

    run(work)


def test_ranks_end_with_their_front_end() -> None:
    """Kill -9 the front end: its ranks and the folder of their sockets go too."""
    script = """
import asyncio
from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.testing.fake import tokenizer

async def main():
    engine = await AsyncLLM.from_config(EngineConfig(), build="onbeat_engine.testing.fake:build", tokenizer=tokenizer())
    print(engine.ranks[0].pid, engine._processes._channels.folder, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment) as front:
        assert front.stdout is not None
        pid, folder = front.stdout.readline().split()
        assert Path(folder).is_dir()
        front.kill()
    until_gone = time.monotonic() + 5
    while psutil.pid_exists(int(pid)) and psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until_gone
        time.sleep(0.05)
    assert not Path(folder).exists()
