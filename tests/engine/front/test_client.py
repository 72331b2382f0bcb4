"""The front end's side, with ranks that are only lists of what they were sent."""

from collections.abc import Callable
from typing import Any

import pytest

from onbeat_engine.front.client import Client
from onbeat_engine.wire.errors import EngineDead, TryLater
from onbeat_engine.wire.messages import (
    Abort,
    Answer,
    Ended,
    LogEntry,
    NewRequest,
    Output,
    RankOutputs,
    RankStats,
    ResetPrefixCache,
    ToRank,
)
from onbeat_engine.wire.params import SamplingParams
from onbeat_spec import protocol
from onbeat_spec.errors import OnbeatError, ProtocolMisuse
from onbeat_spec.records import LockStep, Member


class World:
    """A client, and what it did."""

    def __init__(self, ranks: int, coupled: bool, **more: Any) -> None:
        self.sent: list[tuple[int, ToRank]] = []
        self.client = Client(ranks, coupled, lambda rank, message: self.sent.append((rank, message)), **more)
        self.got: dict[str, list[Output]] = {}
        self.done: list[OnbeatError | None] = []
        self._reports = 0

    def add(self, id: str, tokens: int = 1) -> None:
        new = NewRequest(id=id, prompt=[1] * tokens, params=SamplingParams(), max_tokens=4)
        got = self.got.setdefault(id, [])
        self.client.add(new, lambda output, rank: got.append(output))

    def rank_of(self, id: str) -> int:
        return self.client.requests[id].rank

    def report(self, rank: int, *outputs: Output, **stats: Any) -> None:
        self._reports += 1
        told = RankStats(rank=rank, number=self._reports, **stats)
        self.client.received(RankOutputs(rank=rank, outputs=list(outputs), stats=told))

    def stop_all(self) -> None:
        for front in self.client.fronts:
            for rank in front.members:
                self.report(rank, stopped=front.last)

    def kinds(self, rank: int) -> list[str]:
        return [message.kind for to, message in self.sent if to == rank and isinstance(message, LogEntry)]


def test_a_coupled_group_sees_every_event_in_one_order() -> None:
    world = World(3, True)
    world.add("a")
    world.add("b")
    assert [world.kinds(rank) for rank in range(3)] == [
        ["request", "wake"],
        ["wake", "request"],
        ["wake", "wake"],
    ]
    with_request = [rank for rank, message in world.sent if isinstance(message, LogEntry) and message.request]
    assert with_request == [0, 1]


def test_independent_ranks_see_only_their_own() -> None:
    """Case B80."""
    world = World(2, False)
    world.add("a")
    world.add("b")
    assert [world.kinds(rank) for rank in range(2)] == [["request"], ["request"]]


def test_load_counts_what_is_on_the_way_and_what_was_reported() -> None:
    """Cases B84 and B86."""
    world = World(2, False)
    for id in ("a", "b", "c", "d"):
        world.add(id)
    assert [world.rank_of(id) for id in ("a", "b", "c", "d")] == [0, 1, 0, 1]
    world.report(0, running=2, read=2)
    world.report(1, Output(id="b", finish_reason="stop"), Output(id="d", finish_reason="stop"), read=2)
    world.add("e")
    assert world.rank_of("e") == 1


def test_load_may_be_counted_in_tokens() -> None:
    """Case B87."""
    world = World(2, False, by_tokens=True)
    world.add("a", tokens=1000)
    world.add("b")
    world.add("c")
    assert [world.rank_of(id) for id in ("a", "b", "c")] == [0, 1, 1]


def test_outputs_reach_whom_they_are_for() -> None:
    world = World(1, False)
    world.add("a")
    world.report(0, Output(id="a", tokens=[5]), Output(id="unknown", tokens=[6]))
    world.report(0, Output(id="a", tokens=[7], finish_reason="length"))
    world.report(0, Output(id="a", tokens=[8]))
    assert [output.tokens for output in world.got["a"]] == [[5], [7]]
    assert not world.client.requests


def test_an_abort_tells_rank_and_caller_at_once() -> None:
    world = World(1, False)
    world.add("a")
    world.client.abort(["a", "a", "unknown"])
    assert [message for _, message in world.sent if isinstance(message, Abort)] == [Abort(ids=("a",))]
    assert [output.finish_reason for output in world.got["a"]] == ["abort"]


# --- Pauses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupled", [False, True])
def test_a_pause_is_complete_when_all_have_stopped(coupled: bool) -> None:
    world = World(2, coupled)
    world.add("a")
    world.client.pause("wait")
    world.client.pause("wait")
    world.client.when_stopped(world.done.append)
    world.report(0, stopped=world.client.fronts[0].last)
    assert world.done == []
    world.stop_all()
    assert world.done == [None]
    assert world.kinds(0) == ["request", "pause"]


@pytest.mark.parametrize("mode", ["wait", "abort"])
def test_a_paused_engine_refuses_at_once(mode: Any) -> None:
    """Case B107."""
    world = World(2, True)
    world.client.pause(mode)
    with pytest.raises(TryLater, match="paused"):
        world.add("a")
    assert world.client.num_held == 0
    world.client.resume()
    world.client.resume()
    world.add("b")
    assert world.kinds(0) == ["pause", "resume", "request"]


def test_pause_keep_holds_new_requests_and_counts_them() -> None:
    """Case B107."""
    world = World(2, True)
    world.client.pause("keep")
    for id in ("a", "b", "c"):
        world.add(id)
    assert (world.client.num_held, world.client.fronts[0].held) == (3, 3)
    world.client.abort(["b"])
    assert (world.client.num_held, world.client.fronts[0].held) == (2, 2)
    assert world.got["b"][0].finish_reason == "abort"
    world.client.resume()
    assert world.client.num_held == 0
    assert [world.rank_of(id) for id in ("a", "c")] == [0, 1]
    assert world.kinds(0) == ["pause", "resume", "request", "wake"]


def held(world: World) -> list[int]:
    return [front.held for front in world.client.fronts]


def test_each_group_counts_what_it_holds_whoever_dies() -> None:
    world = World(2, False)
    world.client.pause("keep")
    world.add("a")
    world.add("b")
    world.client.died(0, "killed")
    world.add("c")
    assert held(world) == [2, 1]
    world.client.abort(["a", "c"])
    assert (held(world), world.client.num_held) == ([1, 0], 1)
    world.client.joined(0, 1)
    assert held(world) == [1, 0]
    world.client.abort(["b"])
    assert (held(world), world.client.num_held) == ([0, 0], 0)


def test_a_group_that_died_counts_nothing_that_was_handed_in_since() -> None:
    world = World(2, False)
    world.client.pause("keep")
    world.add("a")
    world.client.died(0, "killed")
    world.client.resume()
    assert world.rank_of("a") == 1
    world.client.pause("keep")
    world.client.joined(0, 1)
    assert held(world) == [0, 0]
    world.add("b")
    assert held(world) == [1, 0]


def test_a_group_that_starts_again_is_as_the_others_became_meanwhile() -> None:
    world = World(2, False, restarts=True)
    world.client.died(0, "killed")
    world.client.recovering.add(0)
    world.client.pause("wait")
    world.client.pause("keep")
    world.client.sleep()
    before = len(world.sent)
    world.client.joined(0, 1)
    kinds = [(to, message.kind, message.mode) for to, message in world.sent[before:] if isinstance(message, LogEntry)]
    assert kinds == [(0, "pause", "keep"), (0, "sleep", "keep")]
    world.add("a")
    assert (world.client.paused, world.client.sleeping, world.client.num_held) == ("keep", True, 1)


def test_who_holds_a_request_is_its_rank_s_own_group() -> None:
    world = World(2, False)
    world.client.fronts[1] = protocol.pause(world.client.fronts[1], "keep", holds=True)[0]
    world.add("a")
    world.add("b")
    assert (world.rank_of("a"), held(world), list(world.client.requests)) == (0, [0, 1], ["a"])


@pytest.mark.parametrize("resumed", ["before", "after"])
def test_what_is_held_outlives_a_group_that_is_started_again(resumed: str) -> None:
    world = World(2, True, restarts=True)
    world.client.pause("keep")
    world.add("a")
    world.add("b")
    world.client.died(1, "killed")
    world.client.recovering.add(0)
    world.client.abort(["b"])
    if resumed == "before":
        world.client.resume()
        assert (world.client.num_held, world.got["a"]) == (1, [])
    world.client.joined(0, 1)
    if resumed == "after":
        assert (held(world), world.client.num_held) == ([1], 1)
        world.client.resume()
    assert (held(world), world.client.num_held, world.got["a"]) == ([0], 0, [])
    assert world.kinds(world.rank_of("a"))[-1] == "request"


def test_what_is_held_ends_with_a_group_that_is_given_up() -> None:
    world = World(2, True, restarts=True)
    world.client.pause("keep")
    world.add("a")
    world.client.died(1, "killed")
    world.client.recovering.add(0)
    world.client.given_up(0)
    assert "killed" in (world.got["a"][0].error or "")
    assert world.client.num_held == 0


def test_pause_abort_drops_what_is_held() -> None:
    world = World(1, False)
    world.client.pause("keep")
    world.add("a")
    world.client.pause("abort")
    assert [output.finish_reason for output in world.got["a"]] == ["abort"]
    assert world.client.fronts[0].held == 0


def test_sleep_needs_a_pause_and_is_idempotent() -> None:
    world = World(2, False)
    with pytest.raises(ProtocolMisuse):
        world.client.sleep()
    world.client.pause("keep")
    for call in (world.client.sleep, world.client.sleep, world.client.rouse, world.client.rouse):
        call()
    assert world.kinds(1) == ["pause", "sleep", "rouse"]
    world.client.sleep()
    assert world.client.sleeping
    with pytest.raises(ProtocolMisuse):
        world.client.pause("wait")
    world.client.resume()
    assert not world.client.sleeping


def test_who_waits_for_a_pause_is_told_of_a_resume() -> None:
    world = World(1, False)
    world.client.pause("keep")
    world.client.when_stopped(world.done.append)
    world.client.resume()
    assert isinstance(world.done[0], ProtocolMisuse)


def test_all_ranks_answer_a_reset() -> None:
    world = World(2, False)
    world.client.reset_prefix_cache(world.done.append)
    calls = [message.call for _, message in world.sent if isinstance(message, ResetPrefixCache)]
    world.client.received(Answer(rank=0, call=calls[0], ok=True))
    world.client.received(Answer(rank=0, call=calls[0], ok=True))
    assert world.done == []
    world.client.died(1, "killed")
    assert world.done == [None]
    world.client.reset_prefix_cache(world.done.append)
    world.client.received(Answer(rank=0, call=calls[0] + 1, ok=False, message="it broke"))
    assert isinstance(world.done[-1], EngineDead)


# --- Ends ------------------------------------------------------------------------------------------------------------


def test_the_death_of_an_independent_rank_is_nothing_to_others() -> None:
    world = World(2, False)
    world.add("a")
    world.add("b")
    world.report(0, running=1, read=1, kv_cache_usage=0.5)
    world.client.died(0, "killed")
    world.client.died(0, "killed")
    assert [output.finish_reason for output in world.got["a"]] == ["error"]
    assert "killed" in (world.got["a"][0].error or "")
    assert world.got["b"] == []
    assert (world.client.stats[0].running, world.client.stats[0].kv_cache_usage) == (0, 0.0)
    for id in ("c", "d"):
        world.add(id)
        assert world.rank_of(id) == 1
    assert world.client.dead == ""
    world.report(0, running=7)
    assert world.client.stats[0].running == 0


def test_the_death_of_a_coupled_rank_ends_its_group() -> None:
    world = World(3, True)
    for id in ("a", "b", "c"):
        world.add(id)
    world.client.pause("keep")
    world.add("held")
    world.client.when_stopped(world.done.append)
    world.client.died(1, "killed")
    assert [output.finish_reason for id in ("a", "b", "c", "held") for output in world.got[id]] == ["error"] * 4
    assert world.kinds(0)[-1] == "end"
    assert isinstance(world.done[0], EngineDead)
    with pytest.raises(EngineDead, match="killed"):
        world.add("d")


@pytest.mark.parametrize("call", [lambda c: c.pause("keep"), lambda c: c.resume(), lambda c: c.rouse()])
def test_calls_to_a_dead_engine_do_nothing(call: Callable[[Client], None]) -> None:
    world = World(1, False)
    world.client.died(0, "killed")
    before = len(world.sent)
    call(world.client)
    world.client.when_stopped(world.done.append)
    assert len(world.sent) == before
    assert isinstance(world.done[0], EngineDead)


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.pause("keep"),
        lambda c: c.sleep(),
        lambda c: c.reset_prefix_cache(None),
        lambda c: c.compile(None, None),
    ],
)
def test_calls_to_an_engine_that_is_started_again_come_too_early(call: Callable[[Client], None]) -> None:
    """Whoever is told that it failed must not find it paused later."""
    world = World(2, True)
    world.client.died(0, "killed")
    world.client.recovering.add(0)
    with pytest.raises(TryLater, match="started again"):
        call(world.client)
    world.client.joined(0, 1)
    world.add("a")
    assert [world.kinds(rank)[-1] for rank in (0, 1)] in (["request", "wake"], ["wake", "request"])


def test_what_a_rank_says_at_its_end_is_believed() -> None:
    world = World(2, True)
    world.add("a")
    world.client.received(Ended(rank=1, why="RuntimeError: no memory"))
    assert "no memory" in (world.got["a"][0].error or "")


def test_a_rank_may_leave_a_paused_group() -> None:
    world = World(2, True)
    with pytest.raises(ProtocolMisuse):
        world.client.remove(0)
    world.client.pause("keep")
    world.client.remove(0)
    world.client.when_stopped(world.done.append)
    world.client.received(Ended(rank=0, why="removed", expected=True))
    world.report(1, stopped=world.client.fronts[0].last)
    assert world.done == [None]
    world.client.resume()
    for id in ("a", "b"):
        world.add(id)
        assert world.rank_of(id) == 1


def test_a_closed_client_refuses() -> None:
    world = World(1, False)
    world.client.closed = "shutting down"
    with pytest.raises(TryLater, match="shutting down"):
        world.add("a")


def turns(*phases: int) -> list[Member]:
    """A rank's part in forwards of these phases."""
    return [Member(LockStep(number, phase, ("forward",), False), 1, True, 1) for number, phase in enumerate(phases)]


@pytest.mark.parametrize("on_violation", ["log", "stop"])
def test_a_group_is_watched(on_violation: Any, caplog: pytest.LogCaptureFixture) -> None:
    world = World(2, True, on_violation=on_violation)
    world.add("a")
    world.client.received(RankOutputs(rank=0, lock_steps=turns(0, 1, 0)))
    world.client.received(RankOutputs(rank=1, lock_steps=turns(0, 0)))
    assert world.client.watches[0].lock_steps >= 2
    assert world.client.watches[0].counts == {"phase-agrees": 1}
    assert "phases differ: rank 0 1, rank 1 0" in caplog.text
    assert bool(world.client.dead) == (on_violation == "stop")
    if on_violation == "stop":
        assert "phase-agrees" in (world.got["a"][0].error or "")
        world.client.received(RankOutputs(rank=0, lock_steps=turns(0, 1)))


def test_a_rank_that_stays_away_is_seen_when_it_is_gone() -> None:
    world = World(3, True)
    for rank in (0, 1):
        world.client.received(RankOutputs(rank=rank, lock_steps=turns(0, 1)))
    assert world.client.watches[0].lock_steps == 0
    world.client.received(Ended(rank=2, why="removed", expected=True))
    assert world.client.watches[0].lock_steps == 2
