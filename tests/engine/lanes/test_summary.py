"""The headline, by hand numbers."""

import pytest

from onbeat_engine.lanes.summary import headline, milliseconds, percent, summarize
from onbeat_engine.wire.lane_steps import Lanes, LaneStep


def made(interval: int = 2) -> Lanes:
    """Six lock steps: beats at even numbers, prefill on rank 0 at 0 and 3, on rank 1 at 2, an exchange at 5."""
    rank0 = (
        LaneStep(0, 0, "prefill", True, 100, 0, 1, duration=0.060),
        LaneStep(0, 1, "decode", False, 0, 2, 2, held=1, duration=0.004),
        LaneStep(0, 2, "decode", True, 0, 2, 2, duration=0.003),
        LaneStep(0, 3, "mixed", False, 50, 2, 3, why="saturated", duration=0.040),
        LaneStep(0, 4, "decode", True, 0, 1, 1, duration=0.005),
        LaneStep(0, 5, "exchange", False),
    )
    rank1 = (
        LaneStep(1, 0, "dummy", True, duration=0.060),
        LaneStep(1, 1, "decode", False, 0, 1, 1, duration=0.006),
        LaneStep(1, 2, "mixed", True, 80, 1, 2, duration=0.062),
        LaneStep(1, 3, "decode", False, 0, 1, 1, duration=0.041),
        LaneStep(1, 4, "dummy", True, duration=0.004),
        LaneStep(1, 5, "exchange", False),
    )
    return Lanes({0: rank0, 1: rank1}, interval)


def test_a_group() -> None:
    summary = summarize(made())
    assert (summary.columns, summary.columns_with_prefill) == (5, 3)
    assert (summary.prefill_steps, summary.on_beat, summary.off_beat) == (3, 2, (3,))
    # Lock steps 1 and 4 decode only; the slowest ranks took 6 and 5 ms. With prefill: 60, 62 and 41 ms.
    assert summary.decode_s == pytest.approx(0.0055)
    assert summary.prefill_s == pytest.approx(0.060)
    assert summary.ranks[0].kinds == {"prefill": 1, "decode": 3, "mixed": 1, "exchange": 1}
    assert (summary.ranks[0].held_steps, summary.ranks[0].prefill_steps, summary.ranks[0].on_beat) == (1, 2, 1)
    assert headline(summary) == (
        "interval 2: 67 % of 3 prefill steps on the beat; 1 off the beat at lock step 3 (1 saturated); 60 % of 5 "
        "lock steps carry prefill; median pure-decode step 5.5 ms, step with prefill 60.0 ms"
    )
    assert summary.as_json()["off_beat"] == [3]
    assert summary.as_json()["off_beat_why"] == {"saturated": 1}


def test_ranks_on_their_own_are_counted_step_by_step() -> None:
    group = made()
    summary = summarize(Lanes(group.steps, 2, lock_step=False))
    assert (summary.columns, summary.columns_with_prefill) == (10, 3)
    assert summary.decode_s == pytest.approx(0.005)


def test_other_headlines() -> None:
    assert headline(summarize(made(1))).startswith(
        "interval 1: every step is a beat; 60 % of 5 lock steps carry prefill"
    )
    on_beat = made().window(0, 2)
    assert "all 2 prefill steps on the beat" in headline(summarize(on_beat))
    assert headline(summarize(made().window(4, 4))) == (
        "interval 2: no prefill in 1 lock steps; median pure-decode step 5.0 ms"
    )
    assert headline(summarize(Lanes({}))) == "interval 1: no prefill in 0 lock steps"


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 0, "0 %"), (0, 9, "0 %"), (9, 9, "100 %"), (1, 1000, "under 1 %"), (999, 1000, "over 99 %"), (2, 3, "67 %")],
)
def test_percent(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text


def test_milliseconds() -> None:
    assert [milliseconds(s) for s in (0.00042, 0.0041, 0.061, 1.5)] == ["0.42 ms", "4.1 ms", "61.0 ms", "1500 ms"]
