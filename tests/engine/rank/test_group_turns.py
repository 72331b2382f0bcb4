"""What a rank tells of its turns is what it ran, not what the protocol has it run."""

from types import SimpleNamespace
from typing import Any

import pytest

from onbeat_engine.rank.group_turns import GroupTurns
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.config import Config
from onbeat_spec.group_monitor import judge
from onbeat_spec.protocol import Turn, Vote
from onbeat_spec.records import GroupStep, Member, Step


class Recorded:
    """The turns of one rank, and what it told."""

    def __init__(self) -> None:
        self.trace: list[Any] = []
        recorder: Any = SimpleNamespace(lock=None, took_part=lambda lock, took: self.trace.append(lock))
        self.recorder = recorder
        self.told: list[Member] = []
        reporter: Any = SimpleNamespace(lock_steps=self.told)
        self.turns = GroupTurns(Scheduler(Config()), recorder, reporter)

    def take(self, turn: Turn, *ran: str) -> None:
        self.turns.begins()
        if turn.kind == "step":
            self.turns.steps(turn)
        for collective in ran:
            self.turns.ran(collective)
        if turn.kind == "step":
            self.turns.stepped(turn, Step(0, False), may_run=True)
        else:
            self.turns.took_part(turn, last=False, may_run=False)


@pytest.mark.parametrize("turn", [Turn("step", phase=1), Turn("dummy", phase=1), Turn("exchange", vote=Vote(1, False))])
def test_a_rank_that_leaves_a_collective_out_is_found(turn: Turn) -> None:
    collective = "exchange" if turn.kind == "exchange" else "forward"
    right, wrong, twice = Recorded(), Recorded(), Recorded()
    right.take(turn, collective)
    wrong.take(turn)
    twice.take(turn, collective, collective)
    assert list(judge(GroupStep(0, {0: right.told[0], 1: right.told[0]}))) == []
    for other in (wrong, twice):
        found = [each.invariant for each in judge(GroupStep(0, {0: right.told[0], 1: other.told[0]}))]
        assert found == ["collectives-align"]
        assert all(lock.collectives != (collective,) for lock in other.trace)


def test_the_record_of_a_step_is_written_before_it_runs() -> None:
    rank = Recorded()
    rank.take(Turn("step", phase=1))
    assert (rank.recorder.lock.collectives, rank.told[0].lock.collectives) == (("forward",), ())


def test_a_turn_tells_nothing_of_the_one_before() -> None:
    rank = Recorded()
    rank.take(Turn("dummy"), "forward")
    rank.take(Turn("dummy"))
    assert [(lock.number, lock.collectives) for lock in rank.trace] == [(0, ("forward",)), (1, ())]
