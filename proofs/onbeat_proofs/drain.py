"""Letting a rank come to rest: whatever was promised to requests must be kept by then."""

from collections.abc import Callable

from onbeat_proofs.driver import Driver
from onbeat_proofs.letters import live, loading
from onbeat_proofs.operations import Deliver, Op, RemoteDone, Resume, Schedule
from onbeat_proofs.runs import AT_REST

SLACK_STEPS = 40
"""Steps beyond one per token: admissions, evictions, and steps that a failed load makes again."""


def drain(driver: Driver, apply: Callable[[Op], object] | None = None) -> None:
    """End a pause, land every load and step until nobody is left, or for as long as a rank may need.

    Args:
        driver: what is drained; somebody left at the end is a violation of `progress`.
        apply: applies an operation; by default the driver's own.
    """
    apply = apply or driver.apply
    apply(Resume())
    for _ in range(longest(driver)):
        if driver.ended or not driver.scheduler.has_unfinished_requests():
            break
        for track in loading(driver):
            apply(RemoteDone(track.request.id))
        if driver.in_flight == driver.config.async_depth:
            apply(Deliver(1))
        else:
            apply(Schedule())
    while driver.in_flight and not driver.ended:
        apply(Deliver(1))
    if not driver.ended:
        apply(AT_REST)


def longest(driver: Driver) -> int:
    """Operations that draining may take, generously: the oldest request gets a token in every beat."""
    now = driver.scheduler.num_steps
    tokens = sum(track.limit for track in live(driver))
    waits = max((track.request.eligible_at - now for track in live(driver)), default=0)
    config = driver.config
    return (2 * tokens + SLACK_STEPS + max(waits, 0)) * config.prefill_schedule_interval * config.async_depth
