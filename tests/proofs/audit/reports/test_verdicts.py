"""The list of checks that all reports tell."""

from typing import Any

from onbeat_proofs.audit.reports.verdicts import checks_of, finding_text, summary
from onbeat_proofs.audit.results import AuditReport
from onbeat_proofs.play.suite import Suite
from onbeat_spec.records import Violation
from tests.proofs.audit.reports.examples import driven, everything, half_allocation


def test_each_verdict_says_why() -> None:
    checks = {check.id: check for check in checks_of(everything())}
    assert {id: check.verdict for id, check in checks.items()} == {
        "signature": "violated",
        "budget": "violated",
        "held-at-most": "vacuous",
        "slots": "undecided",
        "one-place": "holds",
        "text-holds": "holds",
        "no-such-row": "violated",
        "suite": "violated",
    }
    assert "never put to the test" in checks["held-at-most"].reason
    assert "somebody was held" in checks["held-at-most"].reason
    assert checks["slots"].reason == "not decided: the audit ended early"
    assert checks["signature"].problems[0].where == "Mine.schedule"
    assert checks["suite"].problems[0].message.startswith("budget: Mine: step 1 (steps[1])")
    assert checks["text-holds"].question == "policy"


def test_a_violated_row_without_a_finding_is_no_pass() -> None:
    report = everything()
    report.findings = []
    budget = next(check for check in checks_of(report) if check.id == "budget")
    assert budget.verdict == "violated"
    assert [problem.message for problem in budget.problems] == ["violated in 3 runs"]


def test_a_suite_that_did_not_run_is_no_pass() -> None:
    def suite(**known: Any) -> list[str]:
        report = AuditReport("mine:Mine", "onbeat", "quick", 0, **known)
        return [check.verdict for check in checks_of(report) if check.id == "suite"]

    assert suite(ended_early=True) == ["undecided"]
    assert suite(ended_early=True, suite=Suite(3)) == ["undecided"]
    assert suite(suite=Suite(3)) == ["holds"]
    # A policy that no scenario is written for.
    assert suite(suite=Suite(0)) == []
    assert suite() == []


def test_the_workload_is_a_check_if_there_was_one() -> None:
    report = AuditReport("mine:Mine", "onbeat", "quick", 0, workload=driven())
    assert checks_of(report)[-1].verdict == "holds"
    report.workload = driven(lost=2, violations=(Violation("budget", 7, "too many"),))
    messages = [problem.message for problem in checks_of(report)[-1].problems]
    assert messages == [
        "2 requests lost, 0 blocks missing, 0 promised",
        "step 7: violates budget: too many",
    ]
    report.workload, report.workload_error = None, "ZeroDivisionError at mine.py:3"
    assert checks_of(report)[-1].problems[0].message == "no-crash: ZeroDivisionError at mine.py:3"


def test_the_summary_counts_what_is_no_invariant_apart() -> None:
    assert summary(everything()) == (
        "policy text: 1 hold; 4 invariants: 1 violated, 1 vacuous, 1 undecided, 1 hold; "
        "calls that the class does not take: 1; scenarios of the conformance suite that failed: 1"
    )


def test_a_finding_as_text_has_sentence_scenario_and_table() -> None:
    (finding,) = half_allocation().findings
    text = finding_text(finding)
    assert text.startswith(f"step {finding.step}: {finding.message}\n")
    assert finding.yaml in text
    assert finding.table in text
