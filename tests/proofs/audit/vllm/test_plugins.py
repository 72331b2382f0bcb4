"""Subclasses with faults: each is found, named, and survived."""

from pathlib import Path

import pytest

from onbeat_proofs.audit.budgets import LIMITS_OF_OTHERS, Limits
from onbeat_proofs.audit.job import AuditJob, audit_apart
from onbeat_proofs.audit.results import AuditReport

pytest.importorskip("vllm", reason="vLLM is not installed here; make vllm-test VERSION=0.33.0 runs this with it")

from onbeat_proofs.audit.vllm.adapter import VllmAdapter
from onbeat_proofs.foreign.targets import load_scheduler
from onbeat_proofs.play.two_runs import replay_runs
from onbeat_proofs.pytest_plugin import Audited, AuditTarget

FILE = Path(__file__).with_name("plugins.py")
IMPORTS = pytest.mark.filterwarnings("ignore::DeprecationWarning")
"""For tests that import vLLM's scheduler in this process: what it imports gives such warnings."""


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


@IMPORTS
def test_what_the_base_violates_in_other_runs_only_is_not_inherited() -> None:
    """The base leaves decodes out too, in throttled steps; this class does so in open ones."""
    report = audit_apart(AuditJob(f"{FILE}:SkipsDecodes", budget="quick", own=True, stop_at=("visit-once",)))
    assert verdicts(report)["visit-once"] == "violated"
    (finding,) = [finding for finding in report.findings if finding.invariant == "visit-once"]
    stock = VllmAdapter().factory(load_scheduler("vllm.v1.core.sched.scheduler:Scheduler"))
    policy = VllmAdapter().policy(load_scheduler(f"{FILE}:SkipsDecodes"))
    on_base = replay_runs(finding.scenario, stock, policy, expects=False).violations
    assert "visit-once" not in {violation.invariant for violation in on_base}


@IMPORTS
def test_the_pytest_plugin_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning fails nobody, what vLLM does not have is skipped, and what is inherited is set apart."""
    monkeypatch.setitem(LIMITS_OF_OTHERS, "quick", Limits(0, 60, 2, 2, 0.2, 2, 10.0))
    cls = load_scheduler(f"{FILE}:Forwards")
    audited = Audited(AuditTarget(cls, "plugins:Forwards", own=True, allow_vacuous=["load-bounded"]))
    audited.judge("signature")
    audited.judge("no-crash")
    with pytest.raises(pytest.skip.Exception, match="a remote load has no deadline in vLLM"):
        audited.judge("load-bounded")
    with pytest.raises(pytest.skip.Exception, match="and violate it too"):
        audited.judge("decode-never-held")


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
