"""One rank's step loop, and two of a group in two threads; with an executor that needs no model."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from onbeat_engine.front.group_watch import GroupWatch
from onbeat_engine.parallel.exchange import Alone
from onbeat_engine.rank.core import EngineCore, trace_options
from onbeat_engine.rank.parts import Built
from onbeat_engine.testing.fake import FakeExecutor, LocalExchange, LocalGroup, expected
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.lane_steps import LaneStep
from onbeat_engine.wire.messages import Abort, Answer, Ended, LogEntry, NewRequest, Output, RankOutputs, RankStats
from onbeat_engine.wire.messages import ResetPrefixCache as Reset
from onbeat_engine.wire.params import SamplingParams, StructuredOutput
from onbeat_proofs.traces.check import check_trace
from onbeat_reference.trace_writer import TraceOptions
from onbeat_spec.errors import ConfigError
from onbeat_spec.policy import POLICIES, Policy
from onbeat_spec.protocol import GroupSettings, PauseMode, Rank, Seen, Turn, before_step
from onbeat_spec.records import Member


class Rig:
    """A rank, numbered events for it, and what came from it."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.number = 0
        self.tokens: dict[str, list[int]] = {}
        self.outputs: dict[str, list[Output]] = {}
        self.stats: list[RankStats] = []
        self.lock_steps: list[Member] = []
        self.other: list[object] = []

    def event(self, kind: Seen, mode: PauseMode = "keep", request: NewRequest | None = None) -> None:
        self.number += 1
        self.core.read(LogEntry(number=self.number, kind=kind, mode=mode, request=request))

    def add(
        self, id: str, prompt: Sequence[int], max_tokens: int = 8, stop: tuple[int, ...] = (), **params: Any
    ) -> None:
        new = NewRequest(
            id=id, prompt=list(prompt), params=SamplingParams(**params), max_tokens=max_tokens, stop_token_ids=stop
        )
        self.event("request", request=new)

    def take(self) -> None:
        for message in self.core.take():
            if isinstance(message, RankOutputs):
                self.lock_steps.extend(message.lock_steps)
                if message.stats is not None:
                    self.stats.append(message.stats)
                for output in message.outputs:
                    self.outputs.setdefault(output.id, []).append(output)
                    self.tokens.setdefault(output.id, []).extend(output.tokens)
            else:
                self.other.append(message)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.core.turn()
            self.take()

    def run(self) -> None:
        while self.core.turn():
            self.take()
        self.take()

    def last(self, id: str) -> Output:
        return self.outputs[id][-1]


def make(exchange: LocalExchange | None = None, rank: int = 0, delay: float = 0.0, **config: Any) -> Rig:
    config = {"num_gpu_blocks_override": 64, "max_model_len": 200, "block_size": 4, **config}
    executor = FakeExecutor(config["block_size"], forward=exchange, delay=delay)
    built = Built(executor, config["num_gpu_blocks_override"], config["max_model_len"], exchange or Alone())
    return Rig(EngineCore(EngineConfig(**config), built, rank=rank))


def fake(rig: Rig) -> FakeExecutor:
    assert isinstance(rig.core.executor, FakeExecutor)
    return rig.core.executor


PROMPTS = {f"r{i}": [(7 * i + k) % 250 for k in range(3 + 11 * i % 37)] for i in range(12)}


@pytest.mark.parametrize("interval", [1, 2, 4])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("blocks", [64, 15])
def test_tokens_do_not_depend_on_the_schedule(ahead: bool, interval: int, blocks: int) -> None:
    rig = make(
        async_scheduling=ahead,
        prefill_schedule_interval=interval,
        num_gpu_blocks_override=blocks,
        max_num_batched_tokens=16,
        max_num_seqs=5,
        on_violation="stop",
    )
    for i, (id, prompt) in enumerate(PROMPTS.items()):
        rig.add(id, prompt, max_tokens=5 + i)
        rig.turns(3)
    rig.run()
    for i, (id, prompt) in enumerate(PROMPTS.items()):
        assert rig.tokens[id] == expected(prompt, 5 + i)
        assert rig.last(id).finish_reason == "length"
    assert fake(rig).deepest == (2 if ahead else 1)
    assert sorted(fake(rig).released) == sorted(PROMPTS)
    stats = rig.stats[-1]
    assert (stats.running, stats.waiting, stats.tokens, stats.kv_cache_usage) == (0, 0, 0, 0.0)
    assert stats.generation_tokens == sum(map(len, rig.tokens.values()))
    assert (stats.preemptions > 0) == (blocks == 15)
    assert not stats.violations
    assert stats.stopped == rig.number


def test_first_come_is_first_served() -> None:
    rig = make(max_num_batched_tokens=8, enable_prefix_caching=False)
    for id in ("a", "b", "c"):
        rig.add(id, [1] * 8, max_tokens=2)
    first: list[str] = []
    while rig.core.turn():
        rig.take()
        first.extend(id for id in rig.tokens if id not in first)
    assert first == ["a", "b", "c"]


def test_better_priority_is_served_first() -> None:
    rig = make(scheduling_policy="priority", max_num_seqs=1)
    for id, priority in (("a", 2), ("b", 1)):
        new = NewRequest(id=id, prompt=[1], params=SamplingParams(), max_tokens=1, priority=priority)
        rig.event("request", request=new)
    rig.run()
    assert list(rig.outputs) == ["b", "a"]


def test_a_stop_token_ends_and_is_told() -> None:
    tokens = expected([1, 2], 6)
    rig = make(async_scheduling=True)
    rig.add("a", [1, 2], stop=(tokens[3],))
    rig.run()
    assert rig.tokens["a"] == tokens[: tokens.index(tokens[3]) + 1]
    assert (rig.last("a").finish_reason, rig.last("a").stop_token) == ("stop", tokens[3])


def test_a_structured_request_is_not_scheduled_ahead() -> None:
    rig = make(async_scheduling=True)
    rig.add("a", [1, 2], structured=StructuredOutput(json_object=True))
    rig.add("b", [3, 4])
    rig.run()
    assert fake(rig).deepest == 1
    assert rig.tokens == {"a": expected([1, 2], 8), "b": expected([3, 4], 8)}
    rig.add("c", [5], max_tokens=8)
    rig.run()
    assert fake(rig).deepest == 2


def test_what_can_never_fit_leaves_no_trace() -> None:
    """Case B97; and B111: outputs of one turn are merged."""
    rig = make(max_model_len=100)
    rig.add("d", [1] * 10)
    rig.turns(4)
    rig.add("p", [1] * 101)
    rig.run()
    assert rig.last("p").refused
    assert rig.last("p").finish_reason == "error"
    assert "can never fit" in (rig.last("p").error or "")
    assert rig.tokens["d"] == expected([1] * 10, 8)
    assert (rig.stats[-1].waiting, rig.stats[-1].read, rig.stats[-1].tokens) == (0, 2, 0)


def test_an_abort_takes_effect_before_the_next_step() -> None:
    """Case B91; and B103: what changes without a step is told."""
    rig = make(async_scheduling=True)
    for i in range(6):
        rig.add(f"r{i}", [i] * 9, max_tokens=100)
    rig.turns(9)
    steps = fake(rig).executed
    rig.core.read(Abort(ids=(*tuple(f"r{i}" for i in range(6)), "unknown")))
    rig.take()
    assert (rig.stats[-1].running, rig.stats[-1].waiting, rig.stats[-1].kv_cache_usage) == (0, 0, 0.0)
    assert all(rig.last(f"r{i}").finish_reason == "abort" for i in range(6))
    rig.run()
    assert fake(rig).executed == steps
    assert len(fake(rig).released) == 6


def test_prompt_logprobs_come_once_with_the_first_token() -> None:
    """Case B109; also when the prompt is preempted half way."""
    rig = make(max_num_batched_tokens=16, num_gpu_blocks_override=20)
    prompt = [(3 * k) % 256 for k in range(60)]
    rig.add("a", prompt, max_tokens=3, prompt_logprobs=1, logprobs=0)
    rig.turns(4)
    rig.core.read(Reset(call=1))
    rig.run()
    assert [len(output.tokens) for output in rig.outputs["a"]] == [1, 1, 1]
    first, *later = rig.outputs["a"]
    assert first.prompt_logprobs is not None
    assert [each.token for each in first.prompt_logprobs] == prompt[1:]
    assert all(each.prompt_logprobs is None for each in later)
    assert [each.logprobs[0].token for each in rig.outputs["a"] if each.logprobs] == rig.tokens["a"]
    assert rig.other == [Answer(rank=0, call=1, ok=True)]


def test_cached_tokens_are_told_with_the_first_token() -> None:
    rig = make()
    for id in ("a", "b"):
        rig.add(id, range(20), max_tokens=2)
        rig.run()
    assert [output.num_cached_tokens for output in rig.outputs["b"]] == [16, 0]
    assert (rig.stats[-1].prefix_cache_queries, rig.stats[-1].prefix_cache_hits) == (40, 16)


# --- Pause, sleep ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True])
def test_pause_keep_keeps_and_resume_goes_on(ahead: bool) -> None:
    rig = make(async_scheduling=ahead)
    rig.add("a", [1, 2, 3], max_tokens=20)
    rig.turns(9)
    rig.event("pause", "keep")
    rig.run()
    seen = len(rig.tokens["a"])
    assert 0 < seen < 20
    assert (rig.stats[-1].stopped, rig.stats[-1].paused, rig.stats[-1].running) == (rig.number, "keep", 1)
    assert not fake(rig).flights
    rig.event("pause", "keep")
    rig.run()
    rig.event("resume")
    rig.event("resume")
    rig.run()
    assert rig.tokens["a"] == expected([1, 2, 3], 20)


def test_pause_wait_finishes_and_pause_abort_drops() -> None:
    rig = make()
    rig.add("a", [1], max_tokens=10)
    rig.turns(5)
    rig.event("pause", "wait")
    rig.run()
    assert rig.tokens["a"] == expected([1], 10)
    assert rig.stats[-1].stopped == rig.number
    rig.event("resume")
    rig.add("b", [2], max_tokens=10)
    rig.turns(5)
    rig.event("pause", "abort")
    rig.run()
    assert rig.last("b").finish_reason == "abort"
    assert rig.stats[-1].stopped == rig.number


def test_pause_of_an_idle_rank_costs_no_forward() -> None:
    """Case B82."""
    rig = make()
    rig.event("pause", "keep")
    rig.run()
    assert (fake(rig).executed, rig.stats[-1].stopped) == (0, 1)


@pytest.mark.parametrize("ahead", [False, True])
def test_sleep_loses_the_cache_and_no_token(ahead: bool) -> None:
    rig = make(async_scheduling=ahead)
    rig.add("a", range(9), max_tokens=20)
    rig.turns(9)
    rig.event("pause", "keep")
    rig.event("sleep")
    rig.run()
    assert fake(rig).asleep
    assert (rig.stats[-1].asleep, rig.stats[-1].kv_cache_usage, rig.stats[-1].waiting) == (True, 0.0, 1)
    rig.event("rouse")
    rig.run()
    assert not fake(rig).asleep
    rig.event("sleep")
    rig.run()
    rig.event("resume")
    rig.run()
    assert rig.tokens["a"] == expected(range(9), 20)


# --- Ends ------------------------------------------------------------------------------------------------------------


def test_a_failing_executor_ends_the_rank_and_tells_everybody(caplog: pytest.LogCaptureFixture) -> None:
    rig = make()
    fake(rig).fail_at = 3
    rig.add("a", [1])
    rig.run()
    assert rig.last("a").finish_reason == "error"
    assert "planted failure" in (rig.last("a").error or "")
    assert [type(each) for each in rig.other] == [Ended]
    rig.add("b", [1])
    rig.run()
    assert rig.last("b").finish_reason == "error"
    assert not rig.last("b").refused
    rig.core.read(Reset(call=4))
    rig.take()
    assert isinstance(rig.other[-1], Answer)
    assert not rig.other[-1].ok


def test_a_gap_in_the_log_ends_the_rank() -> None:
    rig = make()
    rig.add("a", [1])
    rig.number += 1
    rig.add("b", [1])
    rig.take()
    assert {id: rig.last(id).finish_reason for id in ("a", "b")} == {"a": "error", "b": "error"}
    assert rig.core.ended == "event 2 was lost"


def test_shut_down_aborts_and_tells() -> None:
    rig = make()
    rig.add("a", [1], max_tokens=50)
    rig.turns(6)
    rig.core.shut_down()
    rig.core.shut_down()
    rig.take()
    assert rig.last("a").finish_reason == "abort"
    assert rig.other == [Ended(rank=0, why="the engine was shut down", expected=True)]


# --- The monitor -----------------------------------------------------------------------------------------------------


class Greedy(Policy):
    """Holds decodes too: against the invariants."""

    name: ClassVar[str] = "greedy"

    def holds_running(self, work: int) -> bool:
        return True


@pytest.fixture
def greedy(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setitem(POLICIES, "greedy", Greedy)
    return {"policy": "greedy", "prefill_schedule_interval": 2, "max_num_batched_tokens": 8}


def violate(rig: Rig) -> None:
    rig.add("a", [1] * 4, max_tokens=20)
    rig.turns(8)
    rig.add("b", [2] * 30, max_tokens=20)
    rig.run()


def test_violations_are_logged_with_the_step_and_counted(
    greedy: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    rig = make(**greedy)
    with caplog.at_level(logging.ERROR):
        violate(rig)
    assert sum(rig.stats[-1].violations.values()) > 0
    assert rig.tokens["a"] == expected([1] * 4, 20)
    assert '"step"' in caplog.text
    assert "violates" in caplog.text


def test_a_violation_may_stop_the_rank(greedy: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    rig = make(on_violation="stop", **greedy)
    violate(rig)
    assert "violates" in rig.core.ended
    assert rig.last("a").finish_reason == "error"


def test_the_monitor_may_be_off(greedy: dict[str, Any]) -> None:
    rig = make(monitor=False, **greedy)
    violate(rig)
    assert rig.stats[-1].violations == {}


# --- A group of two --------------------------------------------------------------------------------------------------


class Pair:
    """Two ranks in lock step, each in a thread; events go to both in one order."""

    def __init__(self, **config: Any) -> None:
        self.group = LocalGroup(2)
        self.rigs = [make(LocalExchange(self.group, rank), rank, **config) for rank in (0, 1)]

    def add(self, rank: int, id: str, prompt: Sequence[int], **more: Any) -> None:
        self.rigs[rank].add(id, prompt, **more)
        self.rigs[1 - rank].event("wake")

    def event(self, kind: Seen, mode: PauseMode = "keep") -> None:
        for rig in self.rigs:
            rig.event(kind, mode)

    def each(self, call: Callable[[Rig], None]) -> None:
        threads = [threading.Thread(target=call, args=(rig,)) for rig in self.rigs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)

    def run(self) -> None:
        self.each(Rig.run)


@pytest.mark.parametrize("interval", [1, 2, 4])
@pytest.mark.parametrize("ahead", [False, True])
def test_two_ranks_step_together(interval: int, ahead: bool, tmp_path: Path) -> None:
    pair = Pair(
        prefill_schedule_interval=interval,
        async_scheduling=ahead,
        dp_sync_interval=3,
        trace_dir=str(tmp_path),
        on_violation="stop",
        max_num_batched_tokens=16,
        num_gpu_blocks_override=15,
    )
    for i, (id, prompt) in enumerate(PROMPTS.items()):
        pair.add(i * i % 3 % 2, id, prompt, max_tokens=4 + i)
        pair.each(lambda rig: rig.turns(3))
    pair.run()
    for rig in pair.rigs:
        assert rig.stats[-1].stopped == rig.number
        assert not rig.core.ended
        for id, tokens in rig.tokens.items():
            assert tokens == expected(PROMPTS[id], 4 + int(id[1:]))
    assert sum(len(rig.tokens) for rig in pair.rigs) == len(PROMPTS)
    assert fake(pair.rigs[0]).executed == fake(pair.rigs[1]).executed
    assert sum(rig.stats[-1].dummy_steps for rig in pair.rigs) > 0
    report = check_trace([str(path) for path in tmp_path.iterdir()])
    assert (report.ranks, report.findings) == ([0, 1], [])
    assert report.lock_steps > 50
    watch = GroupWatch((0, 1), "stop")
    assert [watch.observe(rank, rig.lock_steps) for rank, rig in enumerate(pair.rigs)] == ["", ""]
    assert watch.lock_steps == report.lock_steps


def watched(pair: Pair) -> dict[str, int]:
    """What the group's invariants say of the turns so far."""
    watch = GroupWatch((0, 1), "log")
    for rank, rig in enumerate(pair.rigs):
        watch.observe(rank, rig.lock_steps)
    return watch.counts


def test_a_rank_that_takes_dummies_with_work_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It misses every beat, so its second request is never let in; live and in the trace."""
    faulty = False

    def lazy(rank: Rank, has_work: bool, settings: GroupSettings) -> Turn:
        turn = before_step(rank, has_work, settings)
        return turn._replace(kind="dummy") if faulty and turn.kind == "step" and turn.phase == 0 else turn

    monkeypatch.setattr("onbeat_engine.rank.core.before_step", lazy)
    pair = Pair(prefill_schedule_interval=3, trace_dir=str(tmp_path))
    pair.add(1, "a", [1, 2], max_tokens=40)
    pair.each(lambda rig: rig.turns(3))
    assert watched(pair) == {}
    faulty = True
    pair.add(1, "b", [3] * 9)
    pair.each(lambda rig: rig.turns(12))
    faulty = False
    pair.run()
    assert pair.rigs[1].tokens["b"] == expected([3] * 9, 8)
    assert pair.rigs[0].stats[-1].violations == {}
    live = {*watched(pair), *pair.rigs[1].stats[-1].violations}
    assert live == {"wake-not-lost", "held-at-most", "flag-lag"}
    watch = GroupWatch((0, 1), "stop")
    told = [watch.observe(rank, rig.lock_steps) for rank, rig in enumerate(pair.rigs)]
    assert "violates wake-not-lost: rank 1 runs a dummy, and has 2 requests that may run" in told[1]
    report = check_trace([str(path) for path in tmp_path.iterdir()])
    assert {row.invariant for row in report.rows if row.violations} == live


@pytest.mark.parametrize(
    ("blocks", "rows", "message"),
    [(0, 8, "8 rows of the dummy of rank 1 reached an expert"), (1, 0, "the dummy of rank 1 took 1 KV blocks")],
)
def test_a_dummy_that_takes_something_is_found(blocks: int, rows: int, message: str, tmp_path: Path) -> None:
    pair = Pair(trace_dir=str(tmp_path))
    executor, pool = fake(pair.rigs[1]), pair.rigs[1].core.scheduler.pool

    def greedy() -> int:
        FakeExecutor.dummy(executor)
        pool.free -= blocks
        return rows

    executor.dummy = greedy  # type: ignore[method-assign]  # a fault of this executor
    pair.add(0, "a", [1, 2], max_tokens=5)
    pair.run()
    assert watched(pair).keys() == {"fillers-are-free"}
    report = check_trace([str(path) for path in tmp_path.iterdir()])
    assert any(message in finding.message for finding in report.findings if finding.invariant == "fillers-are-free")


def test_two_ranks_pause_sleep_and_go_on() -> None:
    pair = Pair(dp_sync_interval=4)
    pair.add(0, "a", [1, 2], max_tokens=30)
    pair.each(lambda rig: rig.turns(7))
    pair.event("pause", "keep")
    pair.event("sleep")
    pair.run()
    assert [fake(rig).asleep for rig in pair.rigs] == [True, True]
    assert [rig.stats[-1].stopped for rig in pair.rigs] == [3, 3]
    assert any(each.dummy and each.live for each in pair.rigs[0].lock_steps)
    assert watched(pair) == {}
    pair.event("resume")
    pair.run()
    assert pair.rigs[0].tokens["a"] == expected([1, 2], 30)
    forwards = fake(pair.rigs[0]).executed
    pair.event("pause", "wait")
    pair.run()
    assert fake(pair.rigs[0]).executed == forwards


def test_a_rank_leaves_and_the_other_goes_on() -> None:
    pair = Pair(dp_sync_interval=2)
    pair.add(0, "a", [1, 2], max_tokens=10)
    pair.each(lambda rig: rig.turns(3))
    pair.event("pause", "keep")
    pair.rigs[0].event("leave")
    pair.rigs[1].event("remove")
    pair.run()
    assert pair.rigs[0].core.ended == "removed"
    assert pair.rigs[0].last("a").finish_reason == "abort"
    assert pair.rigs[1].core.state.members == 1


def test_a_rank_that_is_left_alone_goes_by_its_own_clock() -> None:
    pair = Pair(dp_sync_interval=2, prefill_schedule_interval=2)
    pair.event("pause", "keep")
    pair.run()
    alone = pair.rigs[1]
    pair.rigs[0].event("leave")
    alone.event("remove")
    pair.run()
    alone.core.exchange, fake(alone).group = Alone(), None  # the communicator of those who are left
    alone.event("resume")
    alone.add("a", range(4), max_tokens=32)
    alone.turns(4)
    for number in range(4):
        alone.add(f"b{number}", range(9), max_tokens=2)
        alone.turns(2)
    alone.run()
    assert alone.stats[-1].held_steps > 0
    assert alone.tokens["a"] == expected(range(4), 32)


def test_a_dead_rank_ends_the_other(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(dp_sync_interval=2)
    pair.add(0, "a", [1, 2], max_tokens=10)
    pair.rigs[1].core.exchange.close()
    pair.rigs[0].run()
    assert "another rank does not come" in pair.rigs[0].core.ended
    assert pair.rigs[0].last("a").finish_reason == "error"


def test_one_rank_s_trace_passes(tmp_path: Path) -> None:
    rig = make(trace_dir=str(tmp_path), async_scheduling=True, num_gpu_blocks_override=15, prefill_schedule_interval=2)
    for id, prompt in PROMPTS.items():
        rig.add(id, prompt)
        rig.turns(3)
    rig.core.read(Abort(ids=("r11",)))
    rig.event("pause", "keep")
    rig.event("sleep")
    rig.run()
    rig.event("resume")
    rig.run()
    report = check_trace([str(path) for path in tmp_path.iterdir()])
    assert report.steps
    assert report.findings == []


def test_what_only_counts_is_told_once_there_is_much_of_it_or_no_turn_follows() -> None:
    core = make(monitor=False).core
    core.take()
    for count, idle, told in ((15, False, False), (15, True, True), (16, False, True), (0, True, False)):
        core.reporter.lane_steps = [LaneStep(0, number, "dummy") for number in range(count)]
        sent = core.take(idle=idle)
        assert [len(message.lane_steps) for message in sent if isinstance(message, RankOutputs)] == [count] * told


def test_environment_variables_say_how_much_trace_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("ONBEAT_TRACE_")]:
        monkeypatch.delenv(name)
    assert trace_options(EngineConfig()) is None
    monkeypatch.setenv("ONBEAT_TRACE_DIR", "elsewhere")
    monkeypatch.setenv("ONBEAT_TRACE_MAX_FILES", "3")
    assert trace_options(EngineConfig()) == TraceOptions("elsewhere", max_files=3)
    assert trace_options(EngineConfig(trace_dir=str(tmp_path))) == TraceOptions(str(tmp_path), max_files=3)
    monkeypatch.setenv("ONBEAT_TRACE_MAX_FILES", "many")
    with pytest.raises(ConfigError, match="ONBEAT_TRACE_MAX_FILES is 'many'"):
        trace_options(EngineConfig())
