"""Signs of life come from a step that works, and from no other."""

import os
import time
from collections.abc import Callable

import pytest

from onbeat_engine.parallel import heart
from onbeat_engine.parallel.heart import Heart, processor_seconds


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@pytest.mark.parametrize(
    ("step", "most", "beats"),
    [(compute, 100.0, True), (time.sleep, 100.0, False), (compute, 0.0, False)],
    ids=["works", "does nothing", "works for ever"],
)
def test_beats(step: Callable[[float], None], most: float, beats: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heart, "BEAT", 0.05)
    monkeypatch.setattr(heart, "WORKS", 0.2)  # this process has other threads
    told: list[float] = []
    one = Heart(lambda: told.append(time.monotonic()), most / heart.LONGEST)
    compute(0.2)  # between turns
    time.sleep(0.2)
    assert told == []
    one.turn_begins()
    step(0.4)
    one.turn_ended()
    one.stop()
    assert bool(told) == beats


def test_who_waits_for_a_rank_that_works_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heart, "BEAT", 0.05)
    monkeypatch.setattr(heart, "WORKS", 0.2)
    told: list[float] = []
    seen = [heart.NEVER]
    one = Heart(lambda: told.append(time.monotonic()), 5.0, lambda: seen[0])
    one.turn_begins()
    time.sleep(0.4)
    assert told == []
    seen[0] = time.monotonic()
    while not told:
        time.sleep(0.01)
    one.turn_ended()
    one.stop()


def test_processor_time_of_a_process() -> None:
    before = processor_seconds(os.getpid())
    compute(0.1)
    after = processor_seconds(os.getpid())
    assert before is not None
    assert after is not None
    assert after > before
    assert processor_seconds(1 << 30) is None
