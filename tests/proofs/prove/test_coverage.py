"""The coverage matrix: what it claims is what the checks do."""

import pytest

from onbeat_proofs.audit.run import audit
from onbeat_proofs.prove.coverage import NEVER_MET, RANDOM, SEARCH, matrix
from onbeat_reference import Scheduler
from onbeat_spec.catalogue import CATALOGUE


def claimed(kind: str) -> set[str]:
    return {row.invariant.id for row in matrix() if row.checks[kind]}


def test_coverage_is_enough() -> None:
    rows = matrix()
    assert [row.invariant.id for row in rows] == list(CATALOGUE)
    assert [row.invariant.id for row in rows if not row.enough] == []


def test_what_search_and_random_histories_are_said_to_check_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scope, a scheduler or a premise that changes so that an invariant is met no more (or now is) shows here."""
    monkeypatch.setattr("onbeat_proofs.audit.run.scenarios_for", lambda policy: [])  # the suite takes no part
    report = audit(Scheduler)
    for check, kind in (("search", "exhaustive"), ("random", "random")):
        met = {row.invariant for row in report.rows if row.counts[check]}
        assert met == claimed(kind), kind
        assert met.isdisjoint(NEVER_MET[check])


@pytest.mark.parametrize(("check", "kind", "line"), [("search", "exhaustive", SEARCH), ("random", "random", RANDOM)])
def test_what_is_never_met_is_not_claimed(monkeypatch: pytest.MonkeyPatch, check: str, kind: str, line: str) -> None:
    before = claimed(kind)
    monkeypatch.setitem(NEVER_MET, check, frozenset({"budget"}))
    assert before - claimed(kind) == {"budget"}
    assert {text for row in matrix() for text in row.checks[kind]} == {line}
