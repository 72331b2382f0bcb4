"""The mutator, and that a mutant is noticed, proved equal, or named as a hole."""

from collections import Counter
from inspect import getsource

import pytest

from onbeat_proofs.mutants import notice
from onbeat_proofs.mutants.checks import theorems
from onbeat_proofs.mutants.equality import difference
from onbeat_proofs.mutants.equivalents import EQUIVALENT
from onbeat_proofs.mutants.plant import function_of
from onbeat_proofs.mutants.plant import mutants as all_mutants
from onbeat_spec.errors import NotReproduced
from onbeat_spec.policy import Policy

MUTANTS = all_mutants()


def test_there_are_enough_of_every_kind() -> None:
    assert len(MUTANTS) >= 80
    operators = Counter(mutant.operator for mutant in MUTANTS)
    assert {"negate", "drop", "boundary", "constant", "sign", "loop", "delete", "answer", "exchange"} <= set(operators)
    files = Counter(mutant.id.split(":")[0] for mutant in MUTANTS)
    assert {"policy.py", "cadence.py", "balance.py", "scheduler.py", "pool.py"} == set(files)


def test_ids_are_unique() -> None:
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)


def test_every_decision_is_changed() -> None:
    changed = {mutant.function for mutant in MUTANTS}
    decisions = {f"Policy.{name}" for name, value in vars(Policy).items() if callable(value)}
    assert decisions - changed == set()


def test_what_a_mutant_says_is_what_stands_there() -> None:
    statements = [mutant for mutant in MUTANTS if not mutant.before.startswith(("defaults ", "kw_defaults "))]
    for mutant in statements[:: len(statements) // 20]:
        head = mutant.before.split("(")[0].split()[0]
        assert head in getsource(function_of(mutant.module, mutant.function))


def test_putting_one_in_place_changes_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = next(m for m in MUTANTS if m.function == "Policy.lifts" and m.after.endswith("True"))
    function = function_of(mutant.module, mutant.function)
    monkeypatch.setattr(function, "__code__", function.__code__)  # put back at the end
    assert not Policy().lifts(1)
    mutant.install()
    assert Policy().lifts(1)


def test_equality_tells_mutants_apart() -> None:
    equal = next(m for m in MUTANTS if m.id in EQUIVALENT and m.function == "Policy.grant")
    other = next(m for m in MUTANTS if m.id not in EQUIVALENT and m.function == "Policy.grant")
    assert difference(equal) is None
    assert "differ" in str(difference(other))
    assert Policy().grant(work=5, budget=3, cap=9) == 3  # the original is back


def test_equivalents_are_mutants() -> None:
    assert set(EQUIVALENT) <= {mutant.id for mutant in MUTANTS}
    assert all(EQUIVALENT.values())


def test_theorems_notice_wrong_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of the policy text; `onbeat mutate` runs all, through all checks."""
    monkeypatch.setattr(notice, "STAGES", (theorems,))
    chosen = [m for m in MUTANTS if m.function in ("Policy.may_hold", "Policy.holds_waiting", "Policy.saturated")]
    results = notice.run(chosen=chosen)
    assert len(results) == len(chosen) >= 5
    assert {result.verdict for result in results} == {"killed"}
    assert all(result.killed_by.startswith("theorem ") for result in results)


def test_a_hole_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "STAGES", ())
    (result,) = notice.run(chosen=[next(m for m in MUTANTS if m.function == "Policy.lifts")])
    assert result.verdict == "survived"


def test_a_stale_equivalent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EQUIVALENT, "policy.py:gone", "no reason")
    with pytest.raises(NotReproduced, match=r"policy\.py:gone"):
        notice.run(chosen=[])


def test_a_false_equivalent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = next(m for m in MUTANTS if m.function == "Policy.lifts")
    monkeypatch.setitem(EQUIVALENT, wrong.id, "no reason")
    with pytest.raises(NotReproduced, match="differ"):
        notice.run(chosen=[wrong])
