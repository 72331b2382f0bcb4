"""Steps put together from their two ends."""

import msgspec

from onbeat_engine.lanes import LaneStep, LaneTracker
from onbeat_spec.records import LockStep, Step


def scheduled(tracker: LaneTracker, index: int, time: float) -> None:
    step = Step(index, False, scheduled={"a": 1})
    tracker.scheduled(step, LockStep(100 + index, 0), saturated=False, time=time)


def test_a_step_scheduled_ahead_begins_when_the_one_before_ends() -> None:
    tracker = LaneTracker(2)
    scheduled(tracker, 0, 10.0)
    scheduled(tracker, 1, 10.5)
    first, second = tracker.ended(0, 11.0), tracker.ended(1, 13.0)
    assert first is not None
    assert second is not None
    assert (first.rank, first.number, first.start, first.duration) == (2, 100, 10.0, 1.0)
    assert (second.number, second.start, second.duration) == (101, 11.0, 2.0)
    assert not tracker.open


def test_an_idle_lock_step_is_in_between() -> None:
    tracker = LaneTracker(0)
    scheduled(tracker, 0, 10.0)
    idle = tracker.idle(LockStep(99, 1), time=10.75, took=0.5)
    assert (idle.kind, idle.start, idle.duration) == ("dummy", 10.25, 0.5)
    step = tracker.ended(0, 11.0)
    assert step is not None
    assert (step.start, step.duration) == (10.75, 0.25)


def test_what_is_not_known() -> None:
    tracker = LaneTracker(0)
    assert tracker.ended(7, 1.0) is None
    scheduled(tracker, 0, 10.0)
    step = tracker.ended(0, None)
    assert step is not None
    assert (step.start, step.duration) == (10.0, None)
    assert tracker.idle(LockStep(1), time=12.0, took=None).duration is None


def test_a_step_travels_as_a_message() -> None:
    step = LaneStep(1, 8, "mixed", False, 30, 2, 3, 1, "saturated", 1.5, 0.0125)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([step]), type=list[LaneStep]) == [step]
