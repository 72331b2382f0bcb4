"""vLLM's own classes: they keep the text of their version, and what is wrong with them is found unaided."""

import subprocess
import sys
from pathlib import Path

import pytest

from onbeat_proofs.audit.job import AuditJob, audit_apart
from onbeat_proofs.audit.results import AuditReport

pytest.importorskip("vllm", reason="vLLM is not installed here; make vllm-test VERSION=0.33.0 runs this with it")

from onbeat_proofs.audit.vllm import library
from onbeat_proofs.audit.vllm.adapter import VllmAdapter
from onbeat_proofs.foreign.targets import load_scheduler
from onbeat_proofs.play.two_runs import replay_runs
from onbeat_proofs.scenarios.files import load_path

CLASSES = ("vllm.v1.core.sched.scheduler:Scheduler", "vllm.v1.core.sched.async_scheduler:AsyncScheduler")

FINDINGS = Path(__file__).parents[4] / "docs" / "findings"


@pytest.fixture(scope="module", params=CLASSES)
def report(request: pytest.FixtureRequest) -> AuditReport:
    """The audit of a stock class at quick budget."""
    return audit_apart(AuditJob(request.param, budget="quick"))


def test_it_keeps_the_policy_text_of_its_version(report: AuditReport) -> None:
    verdicts = {row.invariant: row.verdict for row in report.rows if row.question == "policy"}
    assert verdicts == {"text-holds": "holds", "text-scan": "holds", "text-flag": "holds"}


def test_it_is_not_crashed_or_bent(report: AuditReport) -> None:
    verdicts = {row.invariant: row.verdict for row in report.rows}
    sound = ("no-crash", "budget", "slots", "blocks-conserved", "one-place", "evicted-is-out", "load-once")
    assert {id: verdicts[id] for id in sound} == dict.fromkeys(sound, "holds")


def test_a_last_token_is_held_as_a_chunk(report: AuditReport) -> None:
    assert any("decode-never-held" in finding.shows for finding in report.findings)


def test_a_resume_is_held_behind_another(report: AuditReport) -> None:
    """Finding: a ready resume with work left blocks a ready full resume, from 0.25.0 on."""
    held = {row.invariant: row.verdict for row in report.rows}["one-token-passes"]
    assert held == "violated"


@pytest.mark.parametrize("target", CLASSES)
def test_a_resume_out_of_budget_does_not_raise_the_flag(target: str) -> None:
    """A search of quick budget comes upon it or not, as fast as the machine is; so this is the run that shows it."""
    cls, adapter = load_scheduler(target), VllmAdapter()
    scenario = adapter.prepare(cls, load_path(FINDINGS / "ready-resume-no-flag.yaml")[0])
    assert scenario is not None
    (seen,) = replay_runs(scenario, adapter.factory(cls), adapter.policy(cls), expects=False).violations
    assert seen.invariant == "flag-means-backlog"
    assert seen.message.startswith("the flag is False and the admissible work left is remote resume")


def test_a_pause_raises_the_flag(report: AuditReport) -> None:
    """From 0.32.0 on the flag is also written while new requests are paused."""
    paused = any("flag became True in a step that was paused" in finding.message for finding in report.findings)
    assert paused == (library.version() >= (0, 32))


def test_the_first_violation_comes_soon(report: AuditReport) -> None:
    assert report.first_s is not None
    assert report.exit_code == 1


def test_a_finding_is_a_pytest_file_that_fails(report: AuditReport, tmp_path: Path) -> None:
    written = [finding for finding in report.findings if finding.pytest_file is not None]
    assert len(written) >= 3
    for number, finding in enumerate(written):
        assert "onbeat" not in str(finding.pytest_file)
        (tmp_path / f"test_{number}.py").write_text(str(finding.pytest_file), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert f"{len(written)} failed" in done.stdout, done.stdout[-3000:]
    assert "passed" not in done.stdout.splitlines()[-1]
