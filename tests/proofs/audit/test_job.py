"""The audit in a process of its own: what becomes of an error of ours, of a crash, and of time that is up."""

from pathlib import Path

import pytest

from onbeat_proofs.audit.job import AuditJob, _dead, audit_apart
from onbeat_proofs.audit.results import AuditReport, Finding
from onbeat_proofs.foreign.apart import Died
from onbeat_proofs.scenarios.operations import Add, Scenario, Schedule
from onbeat_proofs.verbs.audit import lines
from onbeat_spec.config import Config
from onbeat_spec.errors import Undecided

BROKEN = Path(__file__).with_name("broken.py")
OPS = (Add("a", 3, 1), Schedule())


def test_out_of_time_is_undecided_and_keeps_what_was_found() -> None:
    report = audit_apart(AuditJob(f"{BROKEN}:OneTooMany", budget="standard"), limit_s=6)
    verdicts = {row.invariant: row.verdict for row in report.rows}
    assert verdicts.pop("slots") == "violated"
    assert set(verdicts.values()) == {"undecided"}
    assert {finding.invariant for finding in report.findings} == {"slots"}
    assert report.exit_code == 1
    assert "the audit did not end within 6 s of CPU time" in report.notes[0]
    text = "\n".join(lines(report))
    assert "as it was found: it was not made small" in text
    assert "name: 'slots: " in text


def test_out_of_time_accuses_nobody() -> None:
    report = audit_apart(AuditJob("onbeat_reference:Scheduler"), limit_s=3)
    assert report.findings == []
    assert {row.verdict for row in report.rows} == {"undecided"}
    assert report.exit_code == 2


@pytest.mark.parametrize(("under_way_s", "code"), [(0.0, 2), (5.0, 2), (31.0, 1)])
def test_only_a_call_that_is_long_under_way_is_a_hang(under_way_s: float, code: int) -> None:
    died = Died("said nothing for 180 s", True, (Config(), OPS), "", under_way_s)
    report = _dead(AuditReport("mine:Mine", "onbeat", "quick", 0), died)
    assert report.exit_code == code
    assert [finding.invariant for finding in report.findings] == ["no-crash"] * (code == 1)


def test_a_crash_of_the_process_keeps_what_was_found() -> None:
    known = Finding("slots", "2 requests hold a slot", 1, "search", Scenario("slots: Mine", steps=OPS))
    report = AuditReport("mine:Mine", "onbeat", "quick", 0, findings=[known])
    _dead(report, Died("was ended by SIGSEGV", False, (Config(), OPS), ""))
    assert [finding.invariant for finding in report.findings] == ["slots", "no-crash"]
    violated = {row.invariant for row in report.rows if row.verdict == "violated"}
    assert violated == {"slots", "no-crash"}


def test_an_error_of_ours_is_no_finding() -> None:
    job = AuditJob("onbeat_reference:Scheduler", seed=[])  # type: ignore[arg-type]  # what the verb would never pass on
    with pytest.raises(Undecided, match="an error of onbeat itself, please report it: TypeError"):
        audit_apart(AuditJob(job.scheduler, budget="quick", seed=job.seed, stop_at=("no-crash",)))
