"""Every predicate over a state, a step or two runs: shown to hold, and shown to fail, on hand-made facts.

A case stands in one of the `..._cases`. A test sees to it that no registered predicate is without both.
"""

from typing import Any

import pytest

from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.invariants.words import better, decodes
from tests.spec import hold_cases, runs_cases, state_cases, step_cases
from tests.spec.builders import CONFIG, chunk, decode, fresh, state
from tests.spec.cases import CASES, PRIORITY, Case

CASE_FILES = (state_cases, hold_cases, step_cases, runs_cases)
"""Importing one adds its cases."""


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[about for about, _ in CASES])
def test_verdict(case: Case) -> None:
    invariant, scope, arguments, says = case
    verdict = getattr(CATALOGUE[invariant], scope)(*arguments)
    if says is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert says in verdict


def test_no_case_hides_another() -> None:
    names = [about for about, _ in CASES]
    assert len(names) == len(set(names))


def test_every_predicate_is_shown_to_hold_and_to_fail() -> None:
    shown = {(invariant, scope, says is None) for _, (invariant, scope, _, says) in CASES}
    registered = {(entry.id, scope) for entry in CATALOGUE.values() for scope in entry.scopes if scope != "history"}
    assert shown == {(*each, verdict) for each in registered for verdict in (True, False)}


# --- The words they use ----------------------------------------------------------------------------------------------


def test_decodes_are_running_short_and_able() -> None:
    seen = state(
        decode("a"),
        chunk("b"),
        decode("c", eligible_at=5),
        decode("d", eligible_at=4),
        decode("e", num_placeholders=1, num_computed=5, limit=6),
        fresh("f", num_tokens=1),
        decode("g", num_computed=5),
    )
    assert [view.id for view in decodes(seen, 4)] == ["a", "d", "g"]


@pytest.mark.parametrize(
    ("one", "other", "fcfs", "priority"),
    [
        (decode("a"), decode("b"), True, True),
        (decode("b"), decode("a"), False, False),
        (decode("a"), decode("a"), False, False),
        (decode("a", priority=1), decode("b"), True, False),
        (decode("b"), decode("a", priority=1), False, True),
    ],
)
def test_better_is_by_priority_if_that_counts_and_by_age(one: Any, other: Any, fcfs: bool, priority: bool) -> None:
    assert better(CONFIG, one, other) is fcfs
    assert better(PRIORITY, one, other) is priority
