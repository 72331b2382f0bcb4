"""Every planted fault of load balancing is refuted, and taken out again."""

import pytest

from onbeat_proofs.protocol.faults import FAULTS
from onbeat_proofs.protocol.theorems import balance_faults
from onbeat_proofs.protocol.theorems.balance import THEOREMS
from onbeat_proofs.protocol.theorems.balance_faults import BALANCE_FAULTS, planted
from onbeat_proofs.prove.theorem import decide_all
from onbeat_spec import balance
from onbeat_spec.balance import EngineLoad


def test_each_is_refuted_by_its_theorem() -> None:
    found = [(fault.refutes, verdict.id, verdict.verdict) for fault, verdict in balance_faults.verdicts()]
    assert found == [(fault.refutes, fault.refutes, "refuted") for fault in BALANCE_FAULTS]


def test_every_public_report_is_planted_somewhere() -> None:
    cases = {fault.case for fault in FAULTS} | {fault.case for fault in BALANCE_FAULTS}
    assert cases - {""} == {f"B{n}" for n in (73, 74, 76, 77, 78, 80, 81, 82, 84, 86, 87, 88, 89)}


def test_a_fault_is_taken_out_again() -> None:
    fault = BALANCE_FAULTS[0]
    with planted(fault):
        assert balance.unread(EngineLoad(sent=2)) == 0
    assert balance.unread(EngineLoad(sent=2)) == 2
    with pytest.raises(AttributeError), planted(fault):
        balance.score(None, False)  # type: ignore[arg-type]  # something that raises
    assert balance.unread(EngineLoad(sent=2)) == 2
    assert {verdict.verdict for verdict in decide_all(THEOREMS)} == {"proved"}
