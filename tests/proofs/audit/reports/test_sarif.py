"""SARIF: its structure, where results point, and what makes two of them the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from onbeat_proofs.audit.reports.sarif import FINGERPRINT, sarif
from onbeat_proofs.audit.results import AuditReport
from onbeat_proofs.foreign.location import Location
from tests.proofs.audit.reports.examples import NOW, everything, half_allocation

ROOT = Path(__file__).parents[4]


def run_of(report: AuditReport, root: Path = ROOT) -> dict[str, Any]:
    log = json.loads(json.dumps(sarif(report, NOW, root)))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert isinstance(run, dict)
    return run


@pytest.mark.parametrize("report", [everything(), half_allocation()], ids=["everything", "half-allocation"])
def test_every_result_is_of_a_rule_and_is_somewhere(report: AuditReport) -> None:
    run = run_of(report)
    rules = run["tool"]["driver"]["rules"]
    assert run["results"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert (result["level"], result["kind"]) == ("error", "fail")
        assert result["message"]["text"]
        assert len(result["locations"]) == 1
        assert len(result["partialFingerprints"][FINGERPRINT]) == 64
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert all(rule["help"]["text"] and rule["shortDescription"]["text"] for rule in rules)


def test_what_is_not_known_is_a_warning_and_no_result() -> None:
    run = run_of(everything())
    assert [result["ruleId"] for result in run["results"]] == ["signature", "budget", "no-such-row", "suite"]
    (invocation,) = run["invocations"]
    told = {item["associatedRule"]["id"]: item["descriptor"]["id"] for item in invocation["toolExecutionNotifications"]}
    assert told == {"held-at-most": "vacuous", "slots": "undecided"}
    assert invocation["executionSuccessful"] is False
    assert invocation["exitCode"] == 1
    assert invocation["endTimeUtc"] == "2026-01-02T03:04:05Z"
    assert run_of(half_allocation())["invocations"][0]["executionSuccessful"] is True


def test_a_finding_points_to_the_method_of_the_class() -> None:
    report = half_allocation()
    (result,) = run_of(report)["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "tests/proofs/audit/broken.py", "uriBaseId": "%SRCROOT%"}
    lines = (ROOT / "tests" / "proofs" / "audit" / "broken.py").read_text().splitlines()
    line = place["region"]["startLine"]
    assert lines[line - 1].startswith("    def _make_room")
    assert "class HalfAllocation(Scheduler):" in lines[line - 4 : line]
    assert report.findings[0].yaml in result["message"]["text"]


SOURCE = Location(str(ROOT / "a b" / "mine.py"), 10, {"schedule": 12, "update": 30})


def located(message: str, source: Location | None = SOURCE, root: Path = ROOT) -> list[tuple[str, int] | None]:
    """Where the results of a report point: the misfit's, the finding's."""
    report = everything()
    report.source = source
    report.findings[0].message = message
    places = [result["locations"][0].get("physicalLocation") for result in run_of(report, root)["results"]]
    return [place and (place["artifactLocation"]["uri"], place["region"]["startLine"]) for place in places][:2]


def test_places() -> None:
    file = "a%20b/mine.py"
    # The misfit's method; of two methods none can be told apart as the one at fault, so the class.
    assert located("too many") == [(file, 12), (file, 10)]
    assert located("ZeroDivisionError: x at elsewhere.py:77") == [(file, 12), (file, 10)]
    raised = f"ZeroDivisionError: x at {SOURCE.file}:31".replace("a b", "ab")
    source = SOURCE._replace(file=SOURCE.file.replace("a b", "ab"))
    assert located(raised, source) == [("ab/mine.py", 12), ("ab/mine.py", 31)]
    assert located("too many", root=ROOT / "docs")[0] == ((ROOT / "a b" / "mine.py").as_uri(), 12)
    assert located("too many", source=None) == [None, None]


def test_fingerprints_outlive_what_a_search_happens_to_find() -> None:
    def prints(report: AuditReport) -> list[str]:
        return [result["partialFingerprints"][FINGERPRINT] for result in run_of(report)["results"]]

    report, moved = everything(), everything()
    moved.seed, moved.source = 7, SOURCE
    moved.findings[0].message, moved.findings[0].step = "another run", 3
    assert prints(report) == prints(moved)
    assert len(set(prints(report))) == len(prints(report))
    moved.scheduler = "mine:Other"
    assert not set(prints(report)) & set(prints(moved))
