"""The invariants of a lock-step group, and that silence is not taken for a pass."""

from typing import Any

import pytest

from onbeat_spec.catalogue import CATALOGUE, GROUP_CATALOGUE
from onbeat_spec.invariants import GROUP_PREDICATES
from onbeat_spec.records import Filler, GroupStep, LockStep, Member

IDS = [
    "phase-agrees",
    "collectives-align",
    "wake-not-lost",
    "pause-agreed",
    "sync-interval-free",
    "end-is-clear",
    "fillers-are-free",
]

UNSEEN = ["sync-interval-free", "end-is-clear"]
"""No lock step shows them, so that no trace does."""


def member(live: int = 0, may_run: bool | None = None, dummy: bool = False, tokens: int = 0, **lock: Any) -> Member:
    return Member(LockStep(7, **lock), tokens, live > 0 if may_run is None else may_run, live, dummy)


def step(*members: Member, missing: tuple[int, ...] = ()) -> GroupStep:
    return GroupStep(7, dict(enumerate(members)), missing)


def speaks(invariant: str, seen: GroupStep) -> bool:
    """Whether a lock step meets the premise."""
    premise = GROUP_CATALOGUE[invariant].premise.lock_step
    return premise is not None and bool(premise(seen))


def test_the_ids_are_stable_and_none_is_one_of_a_rank() -> None:
    assert list(GROUP_CATALOGUE) == IDS
    assert [entry.id for entry, _ in GROUP_PREDICATES] == [id for id in IDS if id not in UNSEEN]
    assert not GROUP_CATALOGUE.keys() & CATALOGUE.keys()


@pytest.mark.parametrize(
    ("invariant", "seen", "verdict"),
    [
        ("phase-agrees", step(member(phase=1), member(phase=1)), None),
        ("phase-agrees", step(member(phase=1), member(phase=2)), "phases differ: rank 0 1, rank 1 2"),
        ("phase-agrees", step(member(phase=1), member(), member(phase=0)), "phases differ: rank 0 1, rank 2 0"),
        ("collectives-align", step(member(), member()), None),
        ("collectives-align", step(member(collectives=("a", "b")), member(collectives=("a", "b"))), None),
        ("collectives-align", step(member(), member(), missing=(2,)), "rank 2 took no part in it; 0, 1 did"),
        (
            "collectives-align",
            step(member(collectives=("a", "b")), member(collectives=())),
            "collectives differ: rank 0 a b, rank 1 none",
        ),
        ("wake-not-lost", step(member(last=True), member(last=True)), None),
        ("wake-not-lost", step(member(last=True), member(3, last=True)), "all ranks stop, and rank 1 has 3 requests"),
        ("wake-not-lost", step(member(last=True), member(3, False, last=True)), None),
        ("wake-not-lost", step(member(last=True), member(3, last=False)), None),
        (
            "wake-not-lost",
            step(member(), member(3, dummy=True)),
            "rank 1 runs a dummy, and has 3 requests that may run",
        ),
        ("wake-not-lost", step(member(), member(3, False, dummy=True)), None),
        ("wake-not-lost", step(member(3), member(0, dummy=True)), None),
        ("pause-agreed", step(member(last=True), member(last=True)), None),
        ("fillers-are-free", step(member(), member(dummy=True, filler=Filler(0, 0))), None),
        (
            "fillers-are-free",
            step(member(), member(dummy=True, filler=Filler(1, 0))),
            "the dummy of rank 1 took 1 KV blocks",
        ),
        (
            "fillers-are-free",
            step(member(), member(dummy=True, filler=Filler(0, 8))),
            "8 rows of the dummy of rank 1 reached an expert",
        ),
        (
            "fillers-are-free",
            step(member(tokens=5, collectives=("forward",)), member(dummy=True, filler=Filler(0, 0))),
            None,
        ),
        (
            "fillers-are-free",
            step(member(tokens=5, collectives=()), member(dummy=True, filler=Filler(0, 0))),
            "rank 0 scheduled 5 tokens beside a dummy, and took part in no forward",
        ),
        (
            "pause-agreed",
            step(member(last=True), member(last=False)),
            "ranks disagree whether to stop: rank 0 True, rank 1 False",
        ),
    ],
)
def test_a_lock_step(invariant: str, seen: GroupStep, verdict: str | None) -> None:
    check = GROUP_CATALOGUE[invariant].group
    assert check is not None
    assert check(seen) == verdict
    assert speaks(invariant, seen) or (verdict is None and not all(each.lock.last for each in seen.members.values()))


def test_who_says_nothing_on_a_lock_step_is_not_checked_on_traces() -> None:
    assert [id for id, entry in GROUP_CATALOGUE.items() if entry.in_traces is None] == UNSEEN
    assert all(entry.in_traces in (None, entry.premise) for entry in GROUP_CATALOGUE.values())


@pytest.mark.parametrize("invariant", IDS)
def test_records_that_say_nothing_are_no_pass(invariant: str) -> None:
    one = step(member(phase=0, collectives=(), last=True, dummy=True))
    silent = step(member(), member())
    assert not speaks(invariant, one)
    assert speaks(invariant, silent) == (invariant == "collectives-align")
