"""The catalogue: its ids are promises, its entries complete."""

import inspect
import re
from typing import get_args

import pytest

from onbeat_spec.catalogue import CATALOGUE, Invariant, Scope, declare, predicate
from onbeat_spec.invariants import RUNS_PREDICATES, STATE_PREDICATES, STEP_PREDICATES

IDS = [
    "decode-never-held",
    "resume-bypasses",
    "saturation-opens",
    "off-means-off",
    "no-decode-no-hold",
    "no-empty-step",
    "one-token-passes",
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


def test_an_id_is_declared_once() -> None:
    with pytest.raises(AssertionError, match="budget"):
        declare("budget", "Another one.")
    assert CATALOGUE["budget"].statement.startswith("A step's tokens")


def test_an_entry_has_one_predicate_of_a_scope() -> None:
    first = CATALOGUE["budget"].step
    with pytest.raises(AssertionError, match="budget"):
        predicate("budget", "step")(lambda facts: None)
    assert CATALOGUE["budget"].step is first


def test_an_unknown_id_has_no_predicate() -> None:
    with pytest.raises(KeyError, match="budgets"):
        predicate("budgets", "step")(lambda facts: None)


def test_declaring_and_registering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onbeat_spec.catalogue.CATALOGUE", {})

    def check(facts: object) -> None:
        """Look."""

    declare("new-one", "Nothing is wrong.", "B01", "B02", by_proof=False)
    assert predicate("new-one", "step")(check) is check
    from onbeat_spec.catalogue import CATALOGUE as catalogue

    entry = catalogue["new-one"]
    assert entry == Invariant("new-one", "Nothing is wrong.", ("B01", "B02"), False, step=check, scopes=["step"])
