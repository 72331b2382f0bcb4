"""Records of lanes, made from steps."""

import pytest

from onbeat_engine.wire.lane_steps import LaneRing, Lanes, LaneStep, idle_step, lane_step
from onbeat_spec.records import LockStep, Step


def step(scheduled: dict[str, int], *, prefill: bool = False, throttle: bool = False, **more: object) -> Step:
    made = Step(7, throttle, scheduled=scheduled, prefill=prefill)
    for name, value in more.items():
        setattr(made, name, value)
    return made


BEAT, OFF = LockStep(40, 0, ("forward",)), LockStep(41, 1, ("forward",))


@pytest.mark.parametrize(
    ("made", "lock", "expected"),
    [
        (step({"a": 1, "b": 1}), OFF, ("decode", 0, 2, False)),
        (step({"a": 300}, prefill=True), BEAT, ("prefill", 300, 0, True)),
        (step({"a": 300, "b": 1}, prefill=True), BEAT, ("mixed", 300, 1, True)),
        # Three tokens, two of them drafts: a decode.
        (step({"a": 3}, drafts={"a": 2}), OFF, ("decode", 0, 3, False)),
        # The budget left one token to a chunk.
        (step({"a": 1, "b": 1}, prefill=True), BEAT, ("mixed", 1, 1, True)),
        (step({"a": 1}, prefill=True), BEAT, ("prefill", 1, 0, True)),
        (step({}), BEAT, ("dummy", 0, 0, True)),
        (step({}), None, ("empty", 0, 0, True)),
        # Nobody recorded a phase: the throttle says it.
        (step({"a": 1}, throttle=True), LockStep(9), ("decode", 0, 1, False)),
        (step({"a": 1}, throttle=True), None, ("decode", 0, 1, False)),
    ],
)
def test_what_a_step_is(made: Step, lock: LockStep | None, expected: tuple[str, int, int, bool]) -> None:
    found = lane_step(made, lock, 3, saturated=False, start=2.0, duration=0.5)
    assert (found.kind, found.prefill_tokens, found.decode_tokens, found.beat) == expected
    assert (found.rank, found.start, found.duration) == (3, 2.0, 0.5)
    assert found.number == (7 if lock is None else lock.number)
    assert found.requests == len(made.scheduled)


def test_a_step_that_held_prefills_is_drawn_as_such() -> None:
    held = lane_step(step({"a": 1}, throttle=True, hold=True, held=["b", "c"]), OFF, 0, saturated=False)
    assert (held.kind, held.shown, held.held) == ("decode", "held", 2)
    passed = lane_step(step({"a": 9}, prefill=True, throttle=True, hold=True, held=["b"]), OFF, 0, saturated=False)
    assert passed.shown == "prefill"


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"throttle": True, "hold": True, "lifted": True}, "hold lifted"),
        ({"throttle": True, "hold": True}, "remote KV"),
        ({"throttle": True}, "nothing to decode"),
        ({"throttle": False}, "not throttled"),
    ],
)
def test_why_prefill_is_off_the_beat(facts: dict[str, bool], why: str) -> None:
    made = step({"a": 9}, prefill=True)
    for name, value in facts.items():
        setattr(made, name, value)
    assert lane_step(made, OFF, 0, saturated=False).why == why
    assert lane_step(made, BEAT, 0, saturated=False).why == ""
    expected = "saturated" if why == "nothing to decode" else why
    assert lane_step(made, OFF, 0, saturated=True).why == expected


def test_idle_lock_steps() -> None:
    assert idle_step(OFF, 1).kind == "dummy"
    assert idle_step(LockStep(3, 0), 1).kind == "dummy"
    assert idle_step(LockStep(3, None, ("exchange",)), 1).kind == "exchange"


def test_a_window() -> None:
    lanes = Lanes({0: tuple(LaneStep(0, n, "decode") for n in range(10)), 1: (LaneStep(1, 12, "decode"),)}, interval=2)
    assert lanes.numbers() == (0, 12)
    cut = lanes.window(4, 6)
    assert ([s.number for s in cut], cut.interval) == ([4, 5, 6], 2)
    assert lanes.window(50).numbers() is None


def test_a_ring_keeps_the_latest_of_each_rank() -> None:
    ring = LaneRing(interval=4, capacity=3)
    for number in range(5):
        ring.add(LaneStep(1, number, "decode"))
    ring.add(LaneStep(0, 9, "prefill"))
    lanes = ring.lanes()
    assert list(lanes.steps) == [0, 1]
    assert [s.number for s in lanes.steps[1]] == [2, 3, 4]
    assert lanes.interval == 4


def test_a_rank_that_was_started_again_begins_anew() -> None:
    ring = LaneRing()
    for rank in (0, 1):
        ring.add(LaneStep(rank, 7, "decode"))
    ring.forget(1)
    ring.forget(2)
    ring.add(LaneStep(1, 0, "decode"))
    assert [step.number for steps in ring.lanes().steps.values() for step in steps] == [7, 0]
