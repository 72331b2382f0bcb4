"""The beat: which steps a clock lets prefills into."""

import itertools

import pytest

from onbeat_spec.cadence import LocalClock, PhaseClock, advance, clock_for, count_held, next_hold, throttles

STEADY = (1, False, False)
"""A step of decodes only, as a clock is told of it: tokens, prefill, held."""


def run(clock: LocalClock | PhaseClock, *steps: tuple[int, bool, bool]) -> list[bool]:
    """What the clock said before each of these steps."""
    said = []
    for tokens, prefill, held in steps:
        said.append(clock.throttle())
        clock.executed(tokens, prefill, held)
    return said


# --- The phase of a group --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", range(1, 9))
def test_the_phase_is_the_step_modulo_the_interval(interval: int) -> None:
    phase = 0
    for step in range(4 * interval):
        assert phase == step % interval
        assert throttles(phase, interval) is (step % interval != 0)
        phase = advance(phase, interval)


@pytest.mark.parametrize("interval", range(1, 6))
def test_every_lock_step_counts(interval: int) -> None:
    """Empty or not, with prefill or not, held or not: all ranks take the same steps, so all see the same phase."""
    kinds = [(tokens, prefill, held) for tokens in (0, 5) for prefill in (False, True) for held in (False, True)]
    steps = list(itertools.islice(itertools.cycle(kinds), 3 * interval + len(kinds)))
    assert run(PhaseClock(interval), *steps) == [step % interval != 0 for step in range(len(steps))]


def test_a_wave_begins_on_a_beat() -> None:
    clock = PhaseClock(4)
    for steps in range(9):
        run(clock, *[STEADY] * steps)
        clock.idle()
        assert (clock.phase, clock.throttle()) == (0, False)


def test_an_interval_of_one_never_throttles() -> None:
    assert not throttles(0, 1)
    assert not throttles(1, 1)
    assert not any(run(PhaseClock(1), *[(4, True, False)] * 5))
    assert not any(run(LocalClock(1), *[(4, True, False)] * 5))


# --- The clock of a rank on its own ----------------------------------------------------------------------------------


def test_b04_interval_four_admits_on_step_fourteen() -> None:
    """A decode alone for ten steps, a prefill in step 10, and then somebody who waits for the beat."""
    clock = LocalClock(4)
    begun = run(clock, (8, True, False), *[STEADY] * 9)
    assert begun == [False, True, True, True, *[False] * 6]
    assert not clock.throttle()
    clock.executed(9, True, False)  # step 10
    admitted = 11
    while clock.throttle():
        clock.executed(1, False, True)
        admitted += 1
    assert admitted == 14


@pytest.mark.parametrize("interval", range(2, 7))
@pytest.mark.parametrize("empty", range(4))
def test_empty_steps_do_not_count(interval: int, empty: int) -> None:
    clock = LocalClock(interval)
    clock.executed(8, True, False)
    held = 0
    while clock.throttle():
        run(clock, *[(0, False, False)] * empty)
        assert clock.left == interval - 1 - held
        clock.executed(1, False, True)
        held += 1
    assert held == interval - 1


def test_prefill_that_passes_a_hold_opens_no_new_one() -> None:
    """A stream of remote resumes, one in every held step, would keep every fresh prefill out."""
    clock = LocalClock(4)
    clock.executed(8, True, False)
    assert run(clock, *[(9, True, True)] * 3) == [True] * 3
    assert not clock.throttle()


def test_prefill_in_an_open_step_begins_the_hold_anew() -> None:
    clock = LocalClock(4)
    clock.executed(8, True, False)
    clock.executed(1, False, True)
    clock.executed(8, True, False)  # throttled and not held, as on a saturated rank, or when the hold was lifted
    assert clock.left == 3


def test_idling_leaves_the_local_clock_alone() -> None:
    """B15: no debt and no pardon from steps in which nobody waited."""
    clock = LocalClock(4)
    clock.executed(8, True, False)
    clock.idle()
    assert (clock.left, clock.throttle()) == (3, True)


@pytest.mark.parametrize(
    ("left", "tokens", "prefill", "held", "expected"),
    [
        (0, 0, False, False, 0),
        (2, 0, False, False, 2),  # not executed
        (2, 0, True, False, 2),
        (0, 5, True, False, 3),  # opens a hold
        (2, 5, True, False, 3),
        (2, 5, True, True, 1),  # prefill past a hold
        (0, 5, True, True, 0),
        (2, 5, False, False, 1),
        (2, 5, False, True, 1),
        (1, 1, False, True, 0),
        (0, 1, False, False, 0),
    ],
)
def test_next_hold_at_interval_four(left: int, tokens: int, prefill: bool, held: bool, expected: int) -> None:
    assert next_hold(left, 4, tokens, prefill, held) == expected


def test_a_hold_is_never_longer_than_interval_minus_one() -> None:
    for interval in range(1, 6):
        for left in range(interval):
            for tokens, prefill, held in itertools.product((0, 1, 9), (False, True), (False, True)):
                assert 0 <= next_hold(left, interval, tokens, prefill, held) <= interval - 1


# --- Which clock, and how long a hold has lasted ---------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "kind"), [(1, LocalClock), (2, PhaseClock), (8, PhaseClock)])
def test_a_group_counts_lock_steps_and_a_rank_alone_its_own(ranks: int, kind: type) -> None:
    clock = clock_for(3, ranks)
    assert type(clock) is kind
    assert clock.interval == 3
    assert not clock.throttle()


def test_count_held_counts_in_a_row() -> None:
    held, counts = 0, []
    for holds in (True, True, False, True, False, False, True, True, True):
        held = count_held(held, holds)
        counts.append(held)
    assert counts == [1, 2, 0, 1, 0, 0, 1, 2, 3]
