"""An audit's results in the form in which all reports tell them: one check after the other, each with its verdict."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from onbeat_proofs.play.tally import never_seen
from onbeat_spec.catalogue import CATALOGUE

if TYPE_CHECKING:
    from onbeat_proofs.audit.results import AuditReport, AuditVerdict, Finding, InvariantResult

MOST = 5
"""Violations told of a workload."""


class Problem(NamedTuple):
    """One thing that does not hold."""

    message: str
    detail: str = ""
    """Several lines: how to see it."""
    where: str = ""
    """`Class.method`, where that is known."""
    finding: "Finding | None" = None


class CheckResult(NamedTuple):
    """What was checked, and what came of it."""

    id: str
    statement: str
    verdict: "AuditVerdict"
    problems: tuple[Problem, ...] = ()
    reason: str = ""
    """Why a check is vacuous, undecided or inherited; or the warnings of one that holds."""
    question: Literal["policy", "quality"] = "quality"


def checks_of(report: "AuditReport") -> list[CheckResult]:
    """Return all checks of an audit: the signature, each invariant, the suite, the workload.

    The suite is none of them where it has no scenario for the class and its policy, nor a workload where none was
    asked for.
    """
    checks = [_signature(report), *(_row(report, row) for row in report.rows)]
    invariants = {row.invariant for row in report.rows}
    for finding in report.findings:
        if finding.invariant not in invariants:
            invariants.add(finding.invariant)
            entry = CATALOGUE.get(finding.invariant)
            problems = tuple(_problems(report, finding.invariant))
            checks.append(CheckResult(finding.invariant, entry.statement if entry else "", "violated", problems))
    if report.ended_early or (report.suite is not None and report.suite.scenarios):
        checks.append(_suite(report))
    if report.workload is not None or report.workload_error is not None:
        checks.append(_workload(report))
    return checks


def finding_text(finding: "Finding") -> str:
    """Return a finding as text: what happened, the scenario that shows it, and what every step did."""
    return f"step {finding.step}: {finding.message}\n\n{finding.yaml}\n{finding.table}\n"


def summary(report: "AuditReport") -> str:
    """Return one line: how many invariants hold, are violated, vacuous, undecided."""
    texts = []
    for question in ("policy", "quality"):
        verdicts = [row.verdict for row in report.rows if row.question == question]
        parts = [
            f"{verdicts.count(v)} {v}"
            for v in ("violated", "inherited", "vacuous", "undecided", "holds")
            if v in verdicts
        ]
        if parts:
            name = "policy text" if question == "policy" else f"{len(verdicts)} invariants"
            texts.append(f"{name}: {', '.join(parts)}".replace(" holds", " hold"))
    others = [check for check in checks_of(report) if check.verdict == "violated" and check.id in OTHERS]
    return "; ".join([*texts, *(f"{OTHERS[check.id]}: {len(check.problems)}" for check in others)])


OTHERS = {
    "signature": "calls that the class does not take",
    "suite": "scenarios of the conformance suite that failed",
    "workload": "faults in the workload",
}
"""Checks that are no invariant, and what their problems are called."""


def _signature(report: "AuditReport") -> CheckResult:
    misfits = [misfit for misfit in report.signature if not misfit.warning]
    problems = tuple(Problem(str(misfit), where=misfit.where) for misfit in misfits)
    verdict: AuditVerdict = "violated" if problems else "holds"
    warnings = "; ".join(f"warning: {misfit}" for misfit in report.signature if misfit.warning)
    statement = "The class takes every call that its callers make."
    return CheckResult("signature", statement, verdict, problems, warnings)


def _row(report: "AuditReport", row: "InvariantResult") -> CheckResult:
    problems = tuple(_problems(report, row.invariant))
    if row.verdict == "violated" and not problems:
        problems = (Problem(f"violated in {row.violations:,} runs"),)
    reason = ""
    if row.verdict == "vacuous":
        reason = f"never put to the test: {never_seen(row.invariant)}"
    elif row.verdict == "inherited":
        reason = row.reason or "violated only in runs in which the class that it derives from violates it too"
    elif row.verdict == "undecided":
        reason = row.reason or ("not decided: the audit ended early" if report.ended_early else "not decided")
    return CheckResult(row.invariant, row.statement, row.verdict, problems, reason, row.question)


def _problems(report: "AuditReport", invariant: str) -> Iterator[Problem]:
    for finding in report.findings:
        if finding.invariant == invariant:
            yield Problem(finding.message, finding_text(finding), finding=finding)


def _suite(report: "AuditReport") -> CheckResult:
    statement = "Every scenario of the conformance suite ends as it is written."
    failures = report.suite.failures if report.suite is not None else []
    problems = tuple(Problem(f"{scenario.name}: {failure}") for scenario, failure in failures)
    if problems:
        return CheckResult("suite", statement, "violated", problems)
    if report.ended_early:
        return CheckResult("suite", statement, "undecided", reason="not decided: the audit ended early")
    return CheckResult("suite", statement, "holds")


def _workload(report: "AuditReport") -> CheckResult:
    statement = "Driven through the workload, every request ends, every block returns, and no invariant is violated."
    problems = [Problem(f"no-crash: {report.workload_error}")] if report.workload_error is not None else []
    run = report.workload
    if run is not None and not run.clean:
        if run.lost or run.blocks_missing or run.blocks_promised:
            blocks = f"{run.blocks_missing} blocks missing, {run.blocks_promised} promised"
            problems.append(Problem(f"{run.lost} requests lost, {blocks}"))
        problems += [Problem(f"step {v.step}: violates {v.invariant}: {v.message}") for v in run.violations[:MOST]]
    return CheckResult("workload", statement, "violated" if problems else "holds", tuple(problems))
