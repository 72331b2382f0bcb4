"""SARIF 2.1.0: what code-scanning viewers load.

Each invariant is a rule, each thing that does not hold a result at the class's place in its file. What was never put
to the test, or could not be decided, is no result (a viewer would show an alert where nothing is known to be wrong) but
a warning of the run; a run in which something was left undecided did not succeed.
"""

import re
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onbeat_proofs.audit.reports.verdicts import CheckResult, Problem, checks_of
from onbeat_proofs.audit.reports.version import version
from onbeat_proofs.foreign.location import Location
from onbeat_spec.catalogue import CATALOGUE

if TYPE_CHECKING:
    from onbeat_proofs.audit.results import AuditReport

FINGERPRINT = "onbeatProblem/v1"
RAISED_AT = re.compile(r" at (?P<file>\S+):(?P<line>[0-9]+)$")
"""The place in the message of a crash, as `onbeat_proofs.foreign.targets.where_raised` writes it."""


def sarif(report: "AuditReport", now: datetime, root: Path | None = None) -> dict[str, Any]:
    """Return the report as a SARIF log.

    Args:
        report: of one class.
        now: when the audit ended; with a time zone.
        root: files below it are given by paths relative to it (`%SRCROOT%`); by default the current folder.
    """
    root = (root or Path.cwd()).resolve()
    checks = checks_of(report)
    index = {check.id: position for position, check in enumerate(checks)}
    results = [_result(report, check, index[check.id], problem, root) for check in checks for problem in _told(check)]
    unknown = [check for check in checks if check.verdict != "violated" and check.reason]
    verdicts = {row.invariant: row.verdict for row in report.rows}
    run = {
        "tool": {
            "driver": {
                "name": "Onbeat",
                "semanticVersion": version(),
                "rules": [_rule(check) for check in checks],
            }
        },
        "automationDetails": {"id": f"onbeat audit/{report.scheduler}/{report.policy}/"},
        "invocations": [
            {
                "executionSuccessful": all(check.verdict != "undecided" for check in checks),
                "exitCode": report.exit_code,
                "endTimeUtc": now.isoformat(timespec="seconds").replace("+00:00", "Z"),
                "toolExecutionNotifications": [_notification(check, index[check.id]) for check in unknown],
            }
        ],
        "results": results,
        "columnKind": "unicodeCodePoints",
        "properties": {
            "scheduler": report.scheduler,
            "policy": report.policy,
            "budget": report.budget,
            "seed": report.seed,
            "environment": report.environment,
            "verdicts": verdicts,
        },
    }
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def _told(check: CheckResult) -> tuple[Problem, ...]:
    """Return what becomes a result each: findings and misfits; the scenarios of a suite are one together."""
    if len(check.problems) < 2 or any(problem.finding is not None or problem.where for problem in check.problems):
        return check.problems
    lines = [f"{len(check.problems)} do not hold", *(problem.message for problem in check.problems)]
    return (Problem("\n".join(lines)),)


def _rule(check: CheckResult) -> dict[str, Any]:
    entry = CATALOGUE.get(check.id)
    help = [check.statement]
    if entry is not None:
        help.append(f"`onbeat spec {check.id}` shows the predicate and every check of it.")
        if entry.cases:
            help.append(f"Public cases: {', '.join(entry.cases)}.")
    text = "\n\n".join(part for part in help if part) or check.id
    return {
        "id": check.id,
        "name": "".join(word.capitalize() for word in check.id.split("-")),
        "shortDescription": {"text": check.statement or check.id},
        "help": {"text": text.replace("`", ""), "markdown": text},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["scheduler", check.question]},
    }


def _result(report: "AuditReport", check: CheckResult, index: int, problem: Problem, root: Path) -> dict[str, Any]:
    name = problem.where or report.scheduler
    result: dict[str, Any] = {
        "ruleId": check.id,
        "ruleIndex": index,
        "level": "error",
        "kind": "fail",
        "message": {"text": _message(report, check, problem)},
        "locations": [_location(problem, report.source, name, root)],
        "partialFingerprints": {FINGERPRINT: _fingerprint(report, check, problem)},
    }
    if problem.finding is not None:
        result["properties"] = {"step": problem.finding.step, "scenario": problem.finding.yaml}
    others = _overridden(problem, report.source, root)
    if others:
        result["relatedLocations"] = others
    return result


def _message(report: "AuditReport", check: CheckResult, problem: Problem) -> str:
    if problem.finding is None:
        return f"{check.id}: {problem.message}"
    return f"{report.scheduler} violates {check.id} at {problem.detail}"


def _fingerprint(report: "AuditReport", check: CheckResult, problem: Problem) -> str:
    """Identify a problem across runs: neither line numbers nor what the search happened to find go into it."""
    message = problem.message if problem.where else ""
    parts = [report.scheduler, report.policy, check.id, problem.where, message]
    return sha256("\0".join(parts).encode(errors="backslashreplace")).hexdigest()


def _location(problem: Problem, source: Location | None, name: str, root: Path) -> dict[str, Any]:
    """Point to where it was raised; to the method it is about; to the only method of the class; or to the class."""
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": name, "kind": _kind(problem)}]}
    if source is None:
        return location
    method = problem.where.rpartition(".")[2]
    own = [line for name, line in source.methods.items() if not name.startswith("__")]
    file, line = source.file, own[0] if len(own) == 1 else source.line
    raised = RAISED_AT.search(problem.message)
    if raised is not None and Path(raised["file"]) == Path(source.file):
        line = int(raised["line"])
    elif method in source.methods:
        line = source.methods[method]
    return {"physicalLocation": _place(file, line, root), **location}


def _kind(problem: Problem) -> str:
    return "member" if problem.where else "type"


def _overridden(problem: Problem, source: Location | None, root: Path) -> list[dict[str, Any]]:
    """Point to the methods that a class with a finding defines itself."""
    if problem.finding is None or source is None or len(source.methods) < 2:
        return []
    return [
        {
            "id": number,
            "physicalLocation": _place(source.file, line, root),
            "message": {"text": f"the class defines {name}"},
        }
        for number, (name, line) in enumerate(source.methods.items(), 1)
    ]


def _place(file: str, line: int, root: Path) -> dict[str, Any]:
    path = Path(file).resolve()
    if path.is_relative_to(root):
        # Cut from the whole URI, which quotes what a path may hold and a URI may not.
        relative = path.as_uri().removeprefix(root.as_uri()).lstrip("/")
        artifact = {"uri": relative, "uriBaseId": "%SRCROOT%"}
    else:
        artifact = {"uri": path.as_uri()}
    return {"artifactLocation": artifact, "region": {"startLine": line}}


def _notification(check: CheckResult, index: int) -> dict[str, Any]:
    return {
        "level": "warning",
        "message": {"text": f"{check.id}: {check.verdict}: {check.reason}"},
        "associatedRule": {"id": check.id, "index": index},
        "descriptor": {"id": check.verdict},
    }
