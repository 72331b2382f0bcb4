"""The catalogue: its ids are promises, its entries complete."""

import inspect
import re
from dataclasses import fields, replace
from types import ModuleType
from typing import get_args

import pytest

from onbeat_spec.catalogue import CATALOGUE, Invariant, Premise, Scope, enter
from onbeat_spec.invariants import RUNS_PREDICATES, STATE_PREDICATES, STEP_PREDICATES

IDS = [
    "decode-never-held",
    "resume-bypasses",
    "saturation-opens",
    "off-means-off",
    "no-decode-no-hold",
    "no-empty-step",
    "one-token-passes",
    "throttle-holds",
    "flag-only-when-open",
    "flag-means-backlog",
    "flag-lag",
    "held-at-most",
    "beat-equals-baseline",
    "order-kept",
    "throttle-never-evicts",
    "budget",
    "slots",
    "blocks-conserved",
    "all-or-nothing",
    "one-place",
    "visit-once",
    "evicted-is-out",
    "victim-can-pay",
    "full-sequence-fits",
    "never-fits-refused",
    "progress",
    "oldest-finishes",
    "exactly-once",
    "load-once",
    "load-bounded",
    "late-is-harmless",
    "no-crash",
]
"""People put these in bug reports: none is ever renamed, or taken away without a word in the change log."""

SCOPES: tuple[Scope, ...] = get_args(Scope)
ENTRIES = pytest.mark.parametrize("entry", CATALOGUE.values(), ids=CATALOGUE.keys())


def test_the_ids_are_stable() -> None:
    assert [id for id, entry in CATALOGUE.items() if entry.id == id] == IDS


@ENTRIES
def test_a_statement_is_one_sentence(entry: Invariant) -> None:
    assert re.fullmatch(r"[A-Z][^.]*\.", entry.statement), entry.statement


@ENTRIES
def test_an_id_is_words_with_hyphens(entry: Invariant) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", entry.id)


@ENTRIES
def test_cases_are_named_by_their_numbers(entry: Invariant) -> None:
    assert all(re.fullmatch(r"B\d{2,3}", case) for case in entry.cases), entry.cases
    numbers = [int(case[1:]) for case in entry.cases]
    assert numbers == sorted(set(numbers))


@ENTRIES
def test_an_entry_has_its_predicates(entry: Invariant) -> None:
    present = [scope for scope in SCOPES if getattr(entry, scope) is not None]
    assert present
    assert sorted(entry.scopes) == sorted(present)


@ENTRIES
def test_a_predicate_says_what_it_does(entry: Invariant) -> None:
    for scope in set(entry.scopes):
        doc = inspect.getdoc(getattr(entry, scope))
        assert doc, (entry.id, scope)
        assert doc.endswith("."), doc


@pytest.mark.parametrize(
    ("listed", "scope"), [(STATE_PREDICATES, "state"), (STEP_PREDICATES, "step"), (RUNS_PREDICATES, "runs")]
)
def test_the_lists_hold_every_predicate_of_their_scope(listed: list[tuple[Invariant, object]], scope: Scope) -> None:
    assert listed == [(entry, getattr(entry, scope)) for entry in CATALOGUE.values() if scope in entry.scopes]
    assert listed


def test_what_only_running_code_shows_is_not_asked_of_a_proof() -> None:
    assert [entry.id for entry in CATALOGUE.values() if not entry.by_proof] == [
        "exactly-once",
        "load-once",
        "load-bounded",
        "late-is-harmless",
        "no-crash",
    ]


@ENTRIES
def test_a_premise_is_words_and_an_event(entry: Invariant) -> None:
    for premise in (entry.premise, entry.in_traces):
        if premise is not None:
            events = [field.name for field in fields(premise) if field.name != "words" and getattr(premise, field.name)]
            assert events, entry.id
            assert re.fullmatch(r"[^.]+", premise.words), premise.words


def test_what_only_two_runs_show_is_never_seen_in_a_trace() -> None:
    unseen = [entry.id for entry in CATALOGUE.values() if entry.in_traces is None]
    assert unseen == ["saturation-opens", "beat-equals-baseline", "throttle-never-evicts"]
    assert all(CATALOGUE[id].scopes == ["runs"] for id in unseen)


NEW = Invariant("new-one", "Nothing is wrong.", Premise("a step", step=lambda facts: True), by_proof=False)


def room(*entries: Invariant) -> ModuleType:
    made = ModuleType("room")
    vars(made).update({f"entry_{index}": entry for index, entry in enumerate(entries)})
    return made


def test_entries_are_entered_in_the_order_of_rooms_and_lines() -> None:
    catalogue: dict[str, Invariant] = {}
    other, last = replace(NEW, id="other"), replace(NEW, id="last")
    enter(catalogue, (room(other, NEW), room(last)))
    assert list(catalogue.items()) == [("other", other), ("new-one", NEW), ("last", last)]


def test_an_id_is_declared_once() -> None:
    catalogue = {"new-one": NEW}
    with pytest.raises(AssertionError, match="new-one"):
        enter(catalogue, (room(replace(NEW, statement="Another one.")),))
    assert catalogue["new-one"] is NEW


def test_an_entry_has_one_predicate_of_a_scope() -> None:
    first = CATALOGUE["budget"].step
    with pytest.raises(AssertionError, match="budget"):
        CATALOGUE["budget"].over("step")(lambda facts: None)
    assert CATALOGUE["budget"].step is first


def test_registering() -> None:
    def check(facts: object) -> None:
        """Look."""

    entry = replace(NEW, scopes=[])
    assert entry.over("step")(check) is check
    assert (entry.step, entry.scopes) == (check, ["step"])
