"""JUnit XML, read back by a parser."""

from xml.etree.ElementTree import Element, fromstring

from onbeat_proofs.audit.reports.junit import junit
from tests.proofs.audit.reports.examples import NOW, everything, half_allocation


def cases(text: str) -> dict[str, Element]:
    return {case.attrib["name"]: case for case in fromstring(text.encode()).iter("testcase")}


def test_one_case_for_each_check_and_only_what_holds_is_empty() -> None:
    found = cases(junit(everything(), NOW))
    assert {name: [child.tag for child in case] for name, case in found.items()} == {
        "signature": ["failure"],
        "budget": ["failure"],
        "held-at-most": ["skipped"],
        "slots": ["error"],
        "one-place": [],
        "text-holds": [],
        "no-such-row": ["failure"],
        "suite": ["failure"],
    }
    assert {case.attrib["classname"] for case in found.values()} == {"mine:Mine"}
    assert found["slots"][0].attrib["message"] == "not decided: the audit ended early"
    assert "never put to the test" in found["held-at-most"][0].attrib["message"]


def test_the_counts_agree_with_the_cases() -> None:
    root = fromstring(junit(everything(), NOW).encode())
    suite = root[0]
    for element in (root, suite):
        counted = {key: int(element.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
        assert counted == {"tests": 8, "failures": 4, "errors": 1, "skipped": 1}
    assert suite.attrib["timestamp"] == "2026-01-02T03:04:05+00:00"
    assert suite.attrib["time"] == "1.500"
    properties = {item.attrib["name"]: item.attrib["value"] for item in suite.iter("property")}
    assert properties == {"policy": "onbeat", "budget": "quick", "seed": "0", "vllm": "0.33.0"}


def test_a_failure_has_sentence_scenario_and_table() -> None:
    report = half_allocation()
    (finding,) = report.findings
    failure = cases(junit(report, NOW))["all-or-nothing"][0]
    assert failure.attrib["message"] == finding.message
    assert failure.text is not None
    assert finding.yaml in failure.text
    assert finding.table in failure.text


def test_what_xml_cannot_hold_is_replaced() -> None:
    failure = cases(junit(everything(), NOW))["budget"][0]
    assert failure.attrib["message"] == "<script>alert('&')</script>??[31m?"
