"""Reports to render: one that an audit made, and one with everything in it that a report can have."""

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from onbeat_proofs.audit.arrivals import ArrivalsReport
from onbeat_proofs.audit.budgets import LIMITS, Limits
from onbeat_proofs.audit.results import AuditReport, Finding, InvariantResult
from onbeat_proofs.audit.run import audit
from onbeat_proofs.audit.static.signature import Misfit
from onbeat_proofs.play.replay import Failure
from onbeat_proofs.play.suite import Suite
from onbeat_proofs.scenarios.operations import Add, Scenario, Schedule
from onbeat_spec.records import Violation
from tests.proofs.audit import broken

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOSTILE = "<script>alert('&')</script>\x00\x1b[31m\ud800"
"""What a class may put into the text of an exception."""


@cache
def audited(cls: type) -> AuditReport:
    """Audit a class within a small budget."""
    quick, LIMITS["quick"] = LIMITS["quick"], Limits(0, 2000, 20, 20, 3.0, 3)
    try:
        return audit(cls, name=f"tests.proofs.audit.broken:{cls.__name__}")
    finally:
        LIMITS["quick"] = quick


def half_allocation() -> AuditReport:
    """One violation, found by the search in a few steps."""
    return audited(broken.HalfAllocation)


def record(step: int, requests: dict[str, dict[str, Any]], **modes: bool) -> dict[str, Any]:
    """A record of a timeline."""
    plain = {"throttle": False, "hold": False, "lifted": False, "open": True, "saturated": False}
    return {"step": step, **plain, **modes, "requests": requests}


def cell(state: str, tokens: int = 0, drafts: int = 0, preempted: bool = False) -> dict[str, Any]:
    """What a record says of one request."""
    return {"state": state, "tokens": tokens, "drafts": drafts, "preempted": preempted}


def everything() -> AuditReport:
    """A report with every verdict, a hostile message, a long run, a signature misfit and a failed scenario."""
    scenario = Scenario("budget: Mine", steps=(Add("a", 3, 1), Schedule(True)))
    records = [record(at, {"a": cell("decode", 1)}, throttle=True, hold=at % 2 == 1) for at in range(60)]
    finding = Finding("budget", HOSTILE, 58, "random", scenario, "step 0\n", records, [], "def test_it(): ...\n")
    counts = {"search": 1, "random": 0, "suite": 2}
    return AuditReport(
        "mine:Mine",
        "onbeat",
        "quick",
        0,
        signature=[Misfit("Mine.schedule", "missing throttle flag", True)],
        rows=[
            InvariantResult("budget", "violated", counts, 3, "Tokens stay within the budget."),
            InvariantResult("held-at-most", "vacuous", dict.fromkeys(counts, 0), 0, "Nobody is held for long."),
            InvariantResult("slots", "undecided", counts, 0, "Slots are not exceeded."),
            InvariantResult("one-place", "holds", counts, 0, "Each is in one place."),
            InvariantResult("text-holds", "holds", counts, 0, "Held iff local work is left.", "policy"),
        ],
        findings=[finding, replace(finding, invariant="no-such-row", message="beside the rows", timeline=[])],
        suite=Suite(2, 20, [(scenario, Failure(1, "steps[1]", "scheduled", "{a: 3}", "{}"))], 0.1),
        ended_early=True,
        seconds=1.5,
        environment={"vllm": "0.33.0"},
    )


def driven(lost: int = 0, violations: tuple[Violation, ...] = ()) -> ArrivalsReport:
    """What became of a workload."""
    return ArrivalsReport(
        requests=2,
        finished=2 - lost,
        refused=0,
        lost=lost,
        stalled=False,
        steps=9,
        executed_steps=9,
        held_steps=0,
        prefill_tokens=4,
        decode_tokens=4,
        preemptions=0,
        max_waiting=1,
        blocks_missing=0,
        blocks_promised=0,
        violations=violations,
        duration_s=1.0,
        ttft=None,
        itl=None,
        wall_s=0.1,
    )
