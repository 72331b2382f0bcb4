"""Every planted fault is found, in a small group, by the invariant that it violates; without it nothing is."""

import pytest

from onbeat_proofs.protocol.explore import explore
from onbeat_proofs.protocol.faults import FAULTS, Fault
from onbeat_proofs.protocol.functions import TEXT
from onbeat_proofs.protocol.state import GroupScope
from onbeat_spec.errors import ConfigError

BY_NAME = {fault.case or "classic": fault for fault in FAULTS}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_fault_is_found(name: str) -> None:
    fault = BY_NAME[name]
    assert fault.scope.ranks <= 2
    assert fault.scope.requests <= 3
    found = explore(fault.scope, fault.text)
    assert (found.invariant, bool(found.message)) == (fault.finds, True)
    replaced = [name for name in vars(TEXT) if getattr(fault.text, name) is not getattr(TEXT, name)]
    assert 1 <= len(replaced) <= 2


SCOPES: list[GroupScope] = list(dict.fromkeys(fault.scope for fault in FAULTS if fault.case != "B81"))


@pytest.mark.parametrize("scope", SCOPES, ids=str)
def test_without_it_nothing_is(scope: GroupScope) -> None:
    assert explore(scope).invariant == ""


def test_unequal_intervals_are_refused() -> None:
    fault: Fault = BY_NAME["B81"]
    with pytest.raises(ConfigError, match="make them equal"):
        explore(fault.scope)
