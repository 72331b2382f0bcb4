"""The theorems about load balancing; that they can say no; and the mutants of the text."""

from collections.abc import Iterator

import pytest

from onbeat_proofs.mutants import notice
from onbeat_proofs.mutants.checks import MutantCheck, theorems
from onbeat_proofs.mutants.plant import mutants as all_mutants
from onbeat_proofs.mutants.unit_tests import unit_tests
from onbeat_proofs.protocol.theorems import balance as for_all_balance
from onbeat_proofs.protocol.theorems.balance import THEOREMS
from onbeat_proofs.prove.theorem import FOR_ALL, decide, decide_all
from onbeat_spec import balance
from onbeat_spec.balance import Candidate, EngineLoad, Fleet, LoadReport
from onbeat_spec.policy import Policy

BY_ID = {theorem.id: theorem for theorem in THEOREMS}


def test_all_are_proved() -> None:
    found = decide_all(THEOREMS)
    assert [(v.id, v.verdict, v.message) for v in found] == [(id, "proved", "") for id in BY_ID]
    assert len(BY_ID) == len(THEOREMS) >= 15


def test_the_bounds_are_for_any_number_of_engines() -> None:
    for name in ("choice-turn", "ties-last", "ties-order", "spread-pair", "peak-send", "peak-report", "reports-late"):
        assert BY_ID[f"balance/{name}"].strength == FOR_ALL


def refuted(id: str) -> bool:
    return decide(BY_ID[f"balance/{id}"], Policy()).verdict == "refuted"


def test_a_balancer_that_lets_a_snapshot_overwrite_its_counts_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """B86."""

    def overwrites(fleet: Fleet, index: int, report: LoadReport) -> Fleet:
        old = fleet.engines[index]
        known = EngineLoad(report, report.read, report.read_tokens, old.paused, old.gone)
        return balance._with(fleet, index, known)

    monkeypatch.setattr(for_all_balance, "reported", overwrites)
    assert refuted("reports-late")
    assert refuted("reports-order")


def test_one_order_for_the_reports_of_all_engines_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """B89."""

    def reported(fleet: Fleet, index: int, report: LoadReport) -> Fleet:
        if all(balance.is_newer(report, engine.report) for engine in fleet.engines):
            return balance.reported(fleet, index, report)
        return fleet

    monkeypatch.setattr(for_all_balance, "reported", reported)
    assert refuted("reports-engine")


def test_a_fixed_order_of_ties_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(best: Candidate | None, other: Candidate) -> Candidate:
        return other if best is None or other.score < best.score else best

    monkeypatch.setattr(balance, "preferred", first)
    assert refuted("choice")
    assert refuted("ties-round")


def test_a_preempted_request_needs_its_share_of_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(for_all_balance, "PREEMPTED", balance.WAITING_WEIGHT - 2)
    assert refuted("peak-report")


def test_no_bound_below_one_send_can_be_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(for_all_balance, "_cost", lambda fleet, tokens: balance.WAITING_WEIGHT - 1)
    assert refuted("spread-pair")
    assert refuted("spread")


# --- Mutants ---------------------------------------------------------------------------------------------------------


def _balance_theorems() -> Iterator[MutantCheck]:
    return (check for check in theorems() if check.name.startswith("theorem balance/"))


def _balance_tests() -> Iterator[MutantCheck]:
    return (check for check in unit_tests() if check.name == "test_balance")


def test_every_mutant_of_the_text_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "STAGES", (_balance_theorems, _balance_tests))
    monkeypatch.setattr(for_all_balance, "MOST", 2)  # where a choice is wrong, there are many paths more
    chosen = [mutant for mutant in all_mutants() if mutant.module == "onbeat_spec.balance"]
    results = notice.run(chosen=chosen)
    assert len(results) == len(chosen) >= 40
    assert [result.id for result in results if result.verdict != "killed"] == []
