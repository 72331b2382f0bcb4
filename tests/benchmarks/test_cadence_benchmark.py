"""The benchmark of the cadence, with an engine whose steps take known times on a clock that jumps."""

import argparse
import asyncio
import io
import json
import selectors
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from rich.console import Console

from benchmarks import cadence
from onbeat_engine.wire.config import EngineConfig

T = TypeVar("T")
Tokens = asyncio.Queue[None]
DECODE, TOKEN = 0.010, 0.001
"""Seconds of a step, and what each token of the longest prompts in it adds."""


class Clock:
    """Time that passes only while everybody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        clock = self

        class Jumping(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                clock.now += timeout or 0.0
                return super().select(0)

        loop = asyncio.SelectorEventLoop(Jumping())
        loop.time = lambda: clock.now  # type: ignore[method-assign]  # the loop has no other way to be given a clock
        try:
            return loop.run_until_complete(main)
        finally:
            loop.close()


class Engine:
    """Two ranks in lock step; prompts start on the beat."""

    def __init__(self, config: EngineConfig, broken: str = "") -> None:
        self.interval = config.prefill_schedule_interval
        self.broken = broken
        self.arrived: list[tuple[int, int, Tokens]] = []
        """Rank, length and queue of each prompt."""
        self.held: list[tuple[int, int, Tokens]] | None = None
        """What came in a pause; None: there is none."""
        self.running: set[Tokens] = set()
        self.steps = 0
        self.asked = 0
        self.down = False
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        phase = 0
        while True:
            if not self.arrived and not self.running:
                phase = 0
                await asyncio.sleep(0.001)
                continue
            fresh: list[tuple[int, int, Tokens]] = []
            if phase == 0 or not self.running:
                fresh, self.arrived = self.arrived, []
            self.running.update(queue for _, _, queue in fresh)
            longest = max(sum(length for rank, length, _ in fresh if rank == each) for each in (0, 1))
            await asyncio.sleep(DECODE + TOKEN * longest)
            for queue in self.running:
                queue.put_nowait(None)
            await asyncio.sleep(0)  # who has all leaves
            phase = (phase + 1) % self.interval
            self.steps += 1

    async def generate(self, tokens: list[int], params: Any, id: str, output_kind: str) -> AsyncIterator[Any]:
        assert output_kind == "cumulative"
        queue: Tokens = asyncio.Queue()
        (self.arrived if self.held is None else self.held).append((self.asked % 2, len(tokens), queue))
        self.asked += 1
        for count in range(1, params.max_tokens + 1):
            await queue.get()
            last = count == params.max_tokens
            if last:
                self.running.discard(queue)
            why = "error" if self.broken else "length"
            one = SimpleNamespace(token_ids=[7] * count, finish_reason=why, error=self.broken)
            yield SimpleNamespace(outputs=[one], finished=last)

    @property
    def num_held(self) -> int:
        return len(self.held or ())

    async def pause_generation(self, mode: str) -> None:
        assert mode == "keep"
        self.held = []

    async def resume_generation(self) -> None:
        assert self.held is not None
        self.arrived += self.held
        self.held = None

    def stats(self) -> list[Any]:
        return [SimpleNamespace(steps=self.steps, dummy_steps=0, violations={"x": 0})] * 2

    async def shutdown(self) -> None:
        self.down = True
        self._task.cancel()


class Starts:
    """Starts engines, and remembers them."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.engines: list[Engine] = []

    async def __call__(self, config: EngineConfig) -> Any:
        self.engines.append(Engine(config, self.broken))
        return self.engines[-1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("benchmarks.cadence.time.perf_counter", lambda: made.now)
    return made


CONFIG = EngineConfig(data_parallel_size=2, max_model_len=1024)


def test_prompts_are_as_long_as_the_ratio_says(clock: Clock) -> None:
    starts = Starts()
    times = clock.run(cadence.calibrate(starts, CONFIG, 20.0))
    assert times.decode == pytest.approx(DECODE)
    assert times.one / times.decode == pytest.approx(20.0, rel=0.1)
    assert times.all == pytest.approx(times.one, rel=0.05)
    assert DECODE + TOKEN * times.length == pytest.approx(times.one, rel=0.1)
    assert starts.engines[0].down


def options(**changes: Any) -> argparse.Namespace:
    known = {"used": 0.75, "ranks": 2, "burstiness": 4.0, "seed": 1, "requests": 40, "output": 16, "seats": 3}
    return argparse.Namespace(**known | changes)


def test_loads() -> None:
    times = cadence.Times(0.01, 0.2, 0.25, 190)
    decode, saturation, prefill = cadence.loads(("decode", "saturation", "prefill"), times, options(requests=4000))
    assert decode.arrivals[-1] == pytest.approx(4000 * 0.25 / 0.75 / 2, rel=0.05)
    assert (decode.prompt, decode.output, decode.seats) == (190, 16, 0)
    assert prefill.arrivals == decode.arrivals
    assert (prefill.prompt, prefill.output) == (190, 11)
    assert set(saturation.arrivals) == {0.0}
    assert saturation.seats == 3


def test_intervals_take_turns_and_are_compared(clock: Clock) -> None:
    starts = Starts()
    (load,) = cadence.loads(("decode",), cadence.Times(0.01, 0.2, 0.2, 190), options())
    first, second = clock.run(cadence.measure(starts, CONFIG, load, (1, 2), 2))
    assert [engine.interval for engine in starts.engines] == [1, 2, 2, 1]  # there and back
    assert all(engine.down for engine in starts.engines)
    for result in (first, second):
        assert len(result.ttft) == 80
        assert len(result.itl) == 80 * 15
        assert result.tokens == 80 * 16
        assert min(result.itl) == pytest.approx(DECODE)
    # Nothing but prefills differs: with a beat most gaps have none, without one most do.
    assert sorted(second.itl)[len(second.itl) // 2] == pytest.approx(DECODE)
    assert sorted(first.itl)[len(first.itl) // 2] >= 0.19
    assert first.throughput == pytest.approx(second.throughput, rel=0.1)


def test_a_saturated_engine_gets_all_requests_in_one_step(clock: Clock) -> None:
    (load,) = cadence.loads(("saturation",), cadence.Times(0.01, 0.2, 0.2, 190), options())
    (result,) = clock.run(cadence.measure(Starts(), CONFIG, load, (4,), 1))
    assert result.tokens == 40 * 16
    whole = DECODE + TOKEN * 20 * 190 + 15 * DECODE  # 20 prompts on each rank, then decodes
    assert result.seconds == pytest.approx(whole, rel=0.05)


def test_the_whole_is_printed_and_written(clock: Clock, tmp_path: Path) -> None:
    out = io.StringIO()
    chosen = options(
        model=None, dtype="auto", device="cpu", experts=4, max_model_len=1024, max_num_batched_tokens=4096,
        blocks=64, trace_dir=None, ratio=20.0, loads=["decode"], intervals=[1, 2], rounds=1, json=str(tmp_path / "j"),
    )  # fmt: skip
    assert clock.run(cadence.run(chosen, Starts(), Console(file=out, width=120))) == 0
    told = json.loads((tmp_path / "j").read_text())
    assert told["loads"][0]["results"][1]["tokens"] == 40 * 16
    last = next(line.split() for line in out.getvalue().splitlines() if line.split()[:2] == ["2", "10"])
    assert int(last[2]) <= -80  # per cent
    assert "0 violations" in out.getvalue()


def test_a_request_that_fails_ends_the_benchmark(clock: Clock) -> None:
    starts = Starts("no memory")
    (load,) = cadence.loads(("decode",), cadence.Times(0.01, 0.2, 0.2, 190), options())
    with pytest.raises(RuntimeError, match=r"warm-0 ended: no memory"):
        clock.run(cadence.measure(starts, CONFIG, load, (1,), 1))
    assert starts.engines[0].down


def test_unknown_loads_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cadence.main(["--loads", "decode,idle"])
    assert "unknown loads ['idle']" in capsys.readouterr().err
