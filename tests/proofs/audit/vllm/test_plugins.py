"""Subclasses with faults: each is found, named, and survived."""

from pathlib import Path

import pytest

from onbeat_proofs.audit.job import AuditJob, audit_apart
from onbeat_proofs.audit.results import AuditReport

pytest.importorskip("vllm", reason="vLLM is not installed here; make vllm-test VERSION=0.33.0 runs this with it")

FILE = Path(__file__).with_name("plugins.py")


def audited(name: str, *stop_at: str) -> AuditReport:
    """The audit of a class of `plugins.py` at quick budget."""
    return audit_apart(AuditJob(f"{FILE}:{name}", budget="quick", stop_at=stop_at))


def verdicts(report: AuditReport) -> dict[str, str]:
    """Verdicts by id."""
    return {row.invariant: row.verdict for row in report.rows}


def test_what_forwards_keeps_the_text() -> None:
    report = audited("Forwards")
    found = verdicts(report)
    assert {found[id] for id in ("text-holds", "text-scan", "text-flag")} == {"holds"}
    assert not any(misfit.fatal for misfit in report.signature)


def test_what_ignores_the_flag_passes_nothing() -> None:
    found = verdicts(audited("IgnoresTheFlag"))
    assert found["text-holds"] == "violated"
    assert found["decode-never-held"] == found["held-at-most"] == found["saturation-opens"] == "vacuous"


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("AlwaysThrottles", "text-flag"),
        ("HoldsDecodes", "text-holds"),
        ("ForgetsTheFlag", "text-flag"),
        ("LosesRequests", "one-place"),
        ("LeaksBlocks", "blocks-conserved"),
        ("TooMany", "slots"),
        ("Raises", "no-crash"),
        ("ExitsPolitely", "no-crash"),
    ],
)
def test_a_fault_is_found(name: str, id: str) -> None:
    report = audited(name, id)
    assert verdicts(report)[id] == "violated"
    assert report.exit_code == 1
    shown = [finding for finding in report.findings if id in finding.shows]
    assert shown
    assert len(shown[0].scenario.steps) <= 12


def test_a_hang_is_cut_off() -> None:
    report = audited("Hangs")
    (finding,) = [finding for finding in report.findings if finding.invariant == "no-crash"]
    assert finding.message.startswith("Hang: a call did not return within")
    assert "plugins.py" in finding.message


def test_an_exit_leaves_a_report() -> None:
    report = audited("Exits")
    (finding,) = report.findings
    assert finding.message == "the process ended with exit code 3 during the last of these operations"
    assert verdicts(report)["no-crash"] == "violated"
    assert verdicts(report)["budget"] == "undecided"


def test_what_it_prints_is_noted() -> None:
    report = audited("Prints", "decode-never-held")  # which it inherits; the print comes with the first step
    (note,) = report.notes
    assert "first 'two at a time'" in note
    assert "- schedule:" in note
