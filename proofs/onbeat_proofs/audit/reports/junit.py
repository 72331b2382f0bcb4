"""JUnit XML: one test case for each check, for the test views of CI systems.

What was never put to the test is `skipped`, what could not be decided an `error`; neither is ever a pass.
"""

from datetime import datetime
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from onbeat_proofs.audit.reports.verdicts import CheckResult, checks_of

if TYPE_CHECKING:
    from onbeat_proofs.audit.results import AuditReport


def junit(report: "AuditReport", now: datetime) -> str:
    """Return the report as JUnit XML.

    Args:
        report: of one class; its name is the class name of all test cases.
        now: when the audit ended; written with its time zone.
    """
    checks = checks_of(report)
    counts = {
        "tests": len(checks),
        "failures": sum(check.verdict == "violated" for check in checks),
        "errors": sum(check.verdict == "undecided" for check in checks),
        "skipped": sum(check.verdict in ("vacuous", "inherited") for check in checks),
        "time": f"{report.seconds:.3f}",
    }
    attributes = {key: str(value) for key, value in counts.items()}
    root = Element("testsuites", attributes)
    stamp = {"name": _clean(f"onbeat audit {report.scheduler}"), "timestamp": now.isoformat(timespec="seconds")}
    suite = SubElement(root, "testsuite", stamp | attributes)
    properties = SubElement(suite, "properties")
    plain = {"policy": report.policy, "budget": report.budget, "seed": str(report.seed), **report.environment}
    for name, value in plain.items():
        SubElement(properties, "property", {"name": _clean(name), "value": _clean(value)})
    for check in checks:
        _case(suite, check, report.scheduler)
    indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(root, encoding="unicode")}\n'


def _case(suite: Element, check: CheckResult, scheduler: str) -> None:
    case = SubElement(suite, "testcase", {"classname": _clean(scheduler), "name": _clean(check.id)})
    if check.verdict == "violated":
        message = check.problems[0].message
        if len(check.problems) > 1:
            message += f" (and {len(check.problems) - 1} more)"
        failure = SubElement(case, "failure", {"type": "violated", "message": _clean(message)})
        parts = [check.statement, *(problem.detail or problem.message for problem in check.problems)]
        failure.text = _clean("\n\n".join(parts))
    elif check.verdict in ("vacuous", "inherited"):
        SubElement(case, "skipped", {"type": check.verdict, "message": _clean(check.reason)})
    elif check.verdict == "holds" and check.reason:
        SubElement(case, "system-out").text = _clean(check.reason)
    elif check.verdict == "undecided":
        SubElement(case, "error", {"type": "undecided", "message": _clean(check.reason)})


def _clean(text: str) -> str:
    """Return `text` without what XML cannot hold: control characters, lone surrogates, U+FFFE, U+FFFF."""
    return "".join("?" if _forbidden(ord(char)) else char for char in text)


def _forbidden(code: int) -> bool:
    return (code < 0x20 and code not in (0x9, 0xA, 0xD)) or 0xD800 <= code <= 0xDFFF or code in (0xFFFE, 0xFFFF)
