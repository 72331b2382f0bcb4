"""Every planted fault is found, in a small group, by the invariant that it violates; without it nothing is."""

import pytest

from onbeat_proofs.protocol import rules
from onbeat_proofs.protocol.decide import GroupProof
from onbeat_proofs.protocol.explore import explore
from onbeat_proofs.protocol.faults import FAULTS, Fault
from onbeat_proofs.protocol.functions import TEXT
from onbeat_proofs.protocol.state import GroupScope
from onbeat_spec.catalogue import Verdict
from onbeat_spec.errors import ConfigError
from onbeat_spec.invariants import GROUP_PREDICATES
from onbeat_spec.invariants.group import work_is_taken_up
from onbeat_spec.records import GroupStep

BY_NAME = {fault.name: fault for fault in FAULTS}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_fault_is_found(name: str) -> None:
    fault = BY_NAME[name]
    assert fault.scope.ranks <= 3
    assert fault.scope.requests <= 3
    found = explore(fault.scope, fault.text)
    assert (found.invariant, bool(found.message)) == (fault.finds, True)
    replaced = [name for name in vars(TEXT) if getattr(fault.text, name) is not getattr(TEXT, name)]
    assert 1 <= len(replaced) <= 2


def test_a_predicate_that_is_silent_on_three_ranks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One planted fault shows in no group of two, and to no other check."""

    def silent(step: GroupStep) -> Verdict:
        return work_is_taken_up(step) if len(step.members) < 3 else None

    weakened = [(entry, silent if check is work_is_taken_up else check) for entry, check in GROUP_PREDICATES]
    monkeypatch.setattr(rules, "GROUP_PREDICATES", weakened)
    missed = [fault for fault in FAULTS if explore(fault.scope, fault.text).invariant != fault.finds]
    assert [fault.scope.ranks for fault in missed] == [3]
    found = [(fault, explore(fault.scope, fault.text)) for fault in missed]
    assert GroupProof(planted=found).exit_code == 1


SCOPES: list[GroupScope] = list(dict.fromkeys(fault.scope for fault in FAULTS if fault.case != "B81"))


@pytest.mark.parametrize("scope", SCOPES, ids=str)
def test_without_it_nothing_is(scope: GroupScope) -> None:
    assert explore(scope).invariant == ""


def test_unequal_intervals_are_refused() -> None:
    fault: Fault = BY_NAME["B81"]
    with pytest.raises(ConfigError, match="make them equal"):
        explore(fault.scope)
