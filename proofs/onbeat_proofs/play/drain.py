"""Letting a rank come to rest: whatever was promised to requests must be kept by then."""

from collections.abc import Callable, Sequence

from onbeat_proofs.play.driver import Driver
from onbeat_proofs.play.letters import live, loading
from onbeat_proofs.scenarios.operations import Check, Deliver, Expectation, Op, RemoteDone, Repeat, Resume, Schedule

AT_REST = Check(Expectation(waiting=(), running=(), parked=()))
"""Nobody is left. `Runs` drains the rank first, so that whoever is left then is stuck."""

PATIENCE_STEPS = 8
"""Steps in a row that may do nothing: evictions, and the step that the evicted wait out."""
SLACK_STEPS = 40
"""Steps beyond one per token: admissions, evictions, and what a failed load makes be done again."""


def drain(driver: Driver, apply: Callable[[Op], object] | None = None) -> None:
    """End a pause, land every load and step until nobody is left, or for as long as a rank may need.

    Args:
        driver: what is drained.
        apply: applies an operation; by default the driver's own.
    """
    apply = apply or driver.apply
    if driver.scheduler.paused:
        apply(Resume())
    idle, most = 0, most_steps(driver)
    patience = PATIENCE_STEPS + longest_wait(driver)
    while not driver.ended and driver.scheduler.has_unfinished_requests() and idle < patience:
        for track in loading(driver):
            apply(RemoteDone(track.request.id))
        if driver.ended:
            return
        if driver.in_flight == driver.config.async_depth:
            apply(Deliver(1))
            continue
        apply(Schedule())
        if driver.ended:
            return  # it raised: there is no step
        step = driver.history[-1].step
        most -= 1
        idle = 0 if (step.scheduled or step.loading) and most > 0 else idle + 1
    while driver.in_flight and not driver.ended:
        apply(Deliver(1))


def longest_wait(driver: Driver) -> int:
    """Steps that may do nothing because of what was asked for: holds, ineligible requests, loads within a deadline."""
    now, config = driver.scheduler.num_steps, driver.config
    eligible = max((track.request.eligible_at - now for track in live(driver)), default=0)
    return max(eligible, 0) + min(config.max_hold_steps, config.prefill_schedule_interval) + config.remote_load_timeout


def most_steps(driver: Driver) -> int:
    """Steps that draining may take, generously: the oldest request gets a token on every beat."""
    tokens = sum(track.limit for track in live(driver))
    return (2 * tokens + SLACK_STEPS) * driver.config.prefill_schedule_interval


def folded(steps: Sequence[Op]) -> tuple[Op, ...]:
    """Write runs of equal operations, or pairs of them, as repeats."""
    short: list[Op] = []
    position = 0
    while position < len(steps):
        for size in (1, 2):
            unit = tuple(steps[position : position + size])
            times = 1
            while tuple(steps[position + times * size : position + (times + 1) * size]) == unit:
                times += 1
            if times > 2:
                short.append(Repeat(times, unit))
                position += times * size
                break
        else:
            short.append(steps[position])
            position += 1
    return tuple(short)
