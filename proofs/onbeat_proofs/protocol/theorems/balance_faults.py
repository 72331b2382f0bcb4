"""Faults of others in load balancing, planted: each replaces a function of the text, and a theorem has to refute it.

A replacement runs in the place of the function, with the names of `onbeat_spec.balance`, so that everybody calls it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from onbeat_proofs.protocol.theorems.balance import THEOREMS
from onbeat_proofs.prove.theorem import TheoremVerdict, decide
from onbeat_spec import balance
from onbeat_spec.balance import WAITING_WEIGHT, EngineLoad, Fleet, LoadReport, _with, is_newer
from onbeat_spec.policy import Policy


@dataclass(frozen=True)
class BalanceFault:
    """A public report as a variant of the balancer.

    Attributes:
        says: what the variant does wrong.
        function: what is replaced, by `by`.
        refutes: id of the theorem that must be refuted.
    """

    case: str
    says: str
    function: Callable[..., Any]
    by: Callable[..., Any]
    refutes: str


def _none_unread(engine: EngineLoad) -> int:
    return 0


def _overwrite(fleet: Fleet, index: int, report: LoadReport) -> Fleet:
    old = fleet.engines[index]
    return _with(fleet, index, EngineLoad(report, report.read, report.read_tokens, old.paused, old.gone))


def _requests_only(engine: EngineLoad, by_tokens: bool) -> int:
    waiting = engine.report.waiting + engine.sent - engine.report.read
    return waiting * WAITING_WEIGHT + engine.report.running


def _one_order(fleet: Fleet, index: int, report: LoadReport) -> Fleet:
    for engine in fleet.engines:
        if not is_newer(report, engine.report):
            return fleet
    old = fleet.engines[index]
    return _with(fleet, index, EngineLoad(report, old.sent, old.sent_tokens, old.paused, old.gone))


BALANCE_FAULTS = (
    BalanceFault("B84", "what was sent counts only once reported", balance.unread, _none_unread, "balance/nobody"),
    BalanceFault("B86", "a report overwrites what was sent", balance.reported, _overwrite, "balance/reports-late"),
    BalanceFault("B87", "requests count, however long", balance.score, _requests_only, "balance/nobody"),
    BalanceFault("B89", "one order for all reports", balance.reported, _one_order, "balance/reports-engine"),
)


@contextmanager
def planted(fault: BalanceFault) -> Iterator[None]:
    """Put a fault in place for a while."""
    function, by = fault.function, fault.by
    assert isinstance(function, FunctionType)
    assert isinstance(by, FunctionType)
    before = function.__code__
    function.__code__ = by.__code__
    try:
        yield
    finally:
        function.__code__ = before


def verdicts() -> list[tuple[BalanceFault, TheoremVerdict]]:
    """Decide, under each fault, the theorem that has to refute it."""
    by_id = {theorem.id: theorem for theorem in THEOREMS}
    decided = []
    for fault in BALANCE_FAULTS:
        with planted(fault):
            decided.append((fault, decide(by_id[fault.refutes], Policy())))
    return decided
