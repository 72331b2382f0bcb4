"""The audit: the reference comes out clean, and every broken scheduler is found out for what it breaks."""

import json
from pathlib import Path

import pytest

from onbeat.program import run
from onbeat_proofs.audit.budgets import LIMITS, Limits
from onbeat_proofs.audit.results import AuditReport
from onbeat_proofs.audit.run import audit
from onbeat_proofs.audit.static.signature import Misfit
from onbeat_proofs.audit.worlds import SCOPES
from onbeat_proofs.play import suite as suite_module
from onbeat_proofs.play.suite import scenarios_for, suite_path
from onbeat_proofs.play.two_runs import replay_runs
from onbeat_proofs.scenarios.files import load_path, load_text
from onbeat_proofs.verbs import audit as cmd_audit
from onbeat_reference import Scheduler
from onbeat_reference.workload import Arrival
from onbeat_spec.errors import NotAScheduler, ScenarioError
from onbeat_spec.records import Step
from tests.proofs.audit import broken, broken_rules

HERE = Path(__file__).parent
BROKEN: list[tuple[type, str]] = [
    (broken.ShiftingIndex, "visit-once"),
    (broken.VictimStays, "evicted-is-out"),
    (broken.PlaceholdersKept, "exactly-once"),
    (broken.DraftsKept, "evicted-is-out"),
    (broken.EvictsOldest, "oldest-finishes"),
    (broken.EvictsForNothing, "victim-can-pay"),
    (broken.HalfAllocation, "all-or-nothing"),
    (broken.OverBudget, "budget"),
    (broken.NextChunkAdmission, "full-sequence-fits"),
    (broken.OneTooMany, "slots"),
    (broken.ReversedQueue, "order-kept"),
    (broken.HolderStuck, "progress"),
    (broken.NeverFits, "never-fits-refused"),
    (broken.TwinIds, "one-place"),
    (broken.LatchedFlag, "flag-means-backlog"),
    (broken.AbortsById, "late-is-harmless"),
    (broken.FreedTwice, "blocks-conserved"),
    (broken.LeaksOnAbort, "blocks-conserved"),
    (broken.AssertsLoading, "no-crash"),
    (broken.NoDeadline, "load-bounded"),
    (broken.NeverPromoted, "progress"),
    (broken.LoadsTwice, "load-once"),
    (broken.DeliversTwice, "exactly-once"),
    (broken.FlagInverted, "off-means-off"),
    (broken_rules.PromisesIgnored, "full-sequence-fits"),
    (broken_rules.FlagOnEviction, "flag-only-when-open"),
    (broken_rules.AnyDecodeHolds, "no-decode-no-hold"),
    (broken_rules.HoldStands, "no-empty-step"),
    (broken_rules.HoldsForEver, "held-at-most"),
    (broken_rules.NoEscape, "saturation-opens"),
    (broken_rules.HoldsOneToken, "one-token-passes"),
    (broken_rules.StopsAtHeld, "resume-bypasses"),
    (broken_rules.HoldsDecodes, "decode-never-held"),
]


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget below `quick`, for what does not depend on how much is explored."""
    monkeypatch.setitem(LIMITS, "quick", Limits(0, 300, 5, 15, 0.5, 3))
    monkeypatch.setattr(
        "onbeat_proofs.audit.run.scenarios_for", lambda policy: [s for s in scenarios_for(policy) if s.case == "B19"]
    )


# --- Who holds, who does not -----------------------------------------------------------------------------------------


def test_the_reference_is_clean() -> None:
    report = audit(Scheduler)
    assert [f"{row.verdict} {row.invariant}" for row in report.rows if row.verdict != "holds"] == []
    assert report.findings == []
    assert report.signature == []
    assert report.suite is not None
    assert [(scenario.name, str(failure)) for scenario, failure in report.suite.failures] == []
    assert report.exit_code == 0


@pytest.mark.parametrize(("cls", "invariant"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_scheduler_is_found_out(cls: type, invariant: str) -> None:
    report = audit(cls, stop_at_first={invariant})
    finding = next(finding for finding in report.findings if invariant in finding.shows)
    verdicts = {row.invariant: row.verdict for row in report.rows}
    assert verdicts[invariant] == "violated"
    assert report.exit_code == 1
    # What is printed can be replayed, and the reference does not do it.
    (scenario,) = load_text(finding.yaml)
    assert scenario == finding.scenario
    assert invariant in {violation.invariant for violation in replay_runs(scenario, cls).violations}
    assert invariant not in {violation.invariant for violation in replay_runs(scenario).violations}
    assert len(scenario.steps) <= 12


@pytest.mark.parametrize("policy", ["pr44558", "local-work"])
def test_earlier_policies_are_refuted(policy: str) -> None:
    report = audit(Scheduler, policy, stop_at_first=True)
    assert report.exit_code == 1
    assert report.findings
    assert all(finding.scenario.config.policy == policy for finding in report.findings)


def test_a_request_that_falls_out_of_the_lists_is_missed() -> None:
    report = audit(broken.LosesRequests, stop_at_first=True)
    assert {finding.invariant for finding in report.findings} <= {"one-place", "blocks-conserved"}
    assert report.exit_code == 1


@pytest.mark.usefixtures("brief")
def test_what_no_invariant_says_the_suite_says() -> None:
    report = audit(broken_rules.PrefillFirst)
    assert report.suite is not None
    assert "what decodes behind a chunk are owed stays theirs" in {s.name for s, _ in report.suite.failures}
    assert report.exit_code == 1


@pytest.mark.usefixtures("brief")
def test_a_class_that_ignores_the_flag_passes_nothing_about_holds() -> None:
    report = audit(broken.FlagIgnored)
    vacuous = {row.invariant for row in report.rows if row.verdict == "vacuous"}
    assert {"decode-never-held", "saturation-opens", "held-at-most", "off-means-off", "flag-lag"} <= vacuous
    assert not {"budget", "one-place", "no-crash"} & vacuous
    text = "\n".join(cmd_audit.lines(report))
    assert "vacuous    held-at-most" in text
    assert "never seen together: an effect of the throttle, and: somebody was held" in text
    report.suite = None
    assert report.exit_code == 2
    report.allow_vacuous = vacuous
    assert report.exit_code == 0
    report.allow_vacuous = vacuous - {"held-at-most"}
    assert report.exit_code == 2


@pytest.mark.usefixtures("brief")
def test_a_flag_handed_on_is_as_good_as_the_reference() -> None:
    own, reference = audit(broken.FlagForwarded), audit(Scheduler)
    assert [row.verdict for row in own.rows] == [row.verdict for row in reference.rows]
    assert [row.counts for row in own.rows] == [row.counts for row in reference.rows]


def test_what_cannot_be_called_is_not_run() -> None:
    report = audit(broken.NoFlag)  # type: ignore[arg-type]  # that is what is wrong with it
    assert report.exit_code == 1
    assert "missing throttle flag" in str(report.signature[0])
    assert report.search == []
    assert {row.verdict for row in report.rows} == {"undecided"}


@pytest.mark.usefixtures("brief")
def test_a_counter_that_stands_still() -> None:
    report = audit(broken.OwnClock, stop_at_first=True)
    assert "num_steps: is 0, 1, 1, 1" in str(report.signature[0])


def test_what_is_no_scheduler() -> None:
    with pytest.raises(NotAScheduler):
        audit(lambda config, policy: object())  # type: ignore[arg-type, return-value]


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (broken.RaisesWhenSomebodyWaits, "ValueError: somebody waits at "),
        (broken.RaisesWhenRead, "ValueError: two steps were taken at "),
    ],
)
def test_what_a_class_raises_is_shown(cls: type, message: str) -> None:
    """Wherever it comes: in the first step, while the rank is drained, or where the class is only read."""
    report = audit(cls)
    (finding,) = [finding for finding in report.findings if finding.invariant == "no-crash"]
    assert finding.message.startswith(message)
    assert "broken.py:" in finding.message
    assert finding.replayed == "same"
    assert report.exit_code == 1


class Moody(Scheduler):
    """Schedules for one request too many, once in a process."""

    done = False

    @property
    def num_slots(self) -> int:
        if self.num_steps > 3 and len(self.running) > 1 and not Moody.done:
            Moody.done = True
            raise ValueError("only once")
        return super().num_slots


@pytest.mark.usefixtures("brief")
def test_what_does_not_show_again_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Moody, "done", False)
    report = audit(Moody)
    assert report.findings == []
    (seen,) = report.not_reproduced
    assert (seen.invariant, seen.replayed) == ("no-crash", "differs")
    (row,) = [row for row in report.rows if row.invariant == "no-crash"]
    assert (row.verdict, row.violations) == ("undecided", 1)
    assert "did not show it again" in row.reason
    text = "\n".join(_lines(report))
    assert "NOT REPRODUCED  no-crash at step" in text
    assert "VIOLATED" not in text
    report.suite = None
    assert report.exit_code == 2


# --- Reports ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("brief")
def test_a_seed_gives_the_same_report() -> None:
    def told(report: AuditReport) -> list[str]:
        return [line for line in cmd_audit.lines(report) if " s" not in line]

    first, second = audit(broken_rules.NoEscape, seed=5), audit(broken_rules.NoEscape, seed=5)
    assert told(first) == told(second)
    assert [finding.yaml for finding in first.findings] == [finding.yaml for finding in second.findings]


def test_a_warning_fails_nobody() -> None:
    warning = Misfit("Mine", "class is sync", False, warning=True)
    report = AuditReport("module:Mine", "onbeat", "quick", 0, signature=[warning])
    assert report.exit_code == 0
    assert "signature  takes every call, 1 warning" in _lines(report)
    assert "\nWARNING  Mine: class is sync" in _lines(report)
    report.signature.append(Misfit("Mine.schedule", "missing throttle flag", True))
    assert report.exit_code == 1
    assert "signature  1 misfit, 1 warning" in _lines(report)
    assert "\nSIGNATURE  Mine.schedule: missing throttle flag" in _lines(report)


@pytest.mark.usefixtures("brief")
def test_a_workload() -> None:
    arrivals = [Arrival(index * 0.1, 40 + index, 5) for index in range(30)]
    report = audit(Scheduler, arrivals=arrivals, interval=3)
    assert report.workload is not None
    assert (report.workload.requests, report.workload.lost, report.workload.violations) == (30, 0, ())
    assert any(line.startswith("workload   30 requests: 30 finished, 0 refused, 0 lost; ") for line in _lines(report))


class Loses(Scheduler):
    """Wrong only where nothing but a workload leads: ninety steps in."""

    def schedule(self, throttle_prefills: bool = False) -> Step:
        step = super().schedule(throttle_prefills)
        if step.index >= 90 and self.running:
            self.running.pop()
        return step


class Raises(Scheduler):
    def schedule(self, throttle_prefills: bool = False) -> Step:
        if self.num_steps == 90:
            raise RuntimeError("ninety steps")
        return super().schedule(throttle_prefills)


@pytest.mark.usefixtures("brief")
def test_a_workload_that_fails() -> None:
    arrivals = [Arrival(index * 0.1, 40, 200) for index in range(5)]
    lost = audit(Loses, arrivals=arrivals)
    assert lost.workload is not None
    assert lost.workload.lost > 0
    assert any(line.startswith("\nWORKLOAD  ") and "requests lost" in line for line in _lines(lost))
    raised = audit(Raises, arrivals=arrivals)
    assert raised.workload_error is not None
    assert any("WORKLOAD  no-crash: RuntimeError: ninety steps at" in line for line in _lines(raised))
    assert lost.exit_code == raised.exit_code == 1


def _lines(report: AuditReport) -> list[str]:
    return list(cmd_audit.lines(report))


@pytest.mark.usefixtures("brief")
def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.json"
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0,30,3\n2023-11-16 18:15:47.0,20,2")
    name = f"{HERE / 'broken_rules.py'}:HoldsOneToken"
    code = run(["audit", name, "--in-process", "--budget", "quick", "--json", str(target), "--workload", str(trace)])
    out, err = capsys.readouterr()
    assert code == 1
    assert err == ""
    assert out.startswith(f"{name}, policy onbeat, budget quick, seed 0\n\nsignature  takes every call\nsearch     11 ")
    assert "violated   one-token-passes" in out
    assert "\nVIOLATED  one-token-passes at step 1, found by " in out
    assert "- schedule: {throttle: true}" in out
    written = json.loads(target.read_text())
    assert (written["exit_code"], written["policy"], written["workload"]["requests"]) == (1, "onbeat", 2)
    verdicts = {row["invariant"]: row["verdict"] for row in written["invariants"]}
    assert verdicts["one-token-passes"] == "violated"
    (scenario,) = load_text(written["findings"][0]["scenario"])
    assert scenario.invariants == ("one-token-passes",)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere:Scheduler"], "there is no module 'nowhere'"),
        (["onbeat_reference:Request"], "has no method add_request"),
        (["onbeat_reference:Scheduler", "--policy", "offbeat"], "policy is 'offbeat'"),
        (["onbeat_reference:Scheduler", "--budget", "huge"], "huge"),
        (["onbeat_reference:Scheduler", "--allow-vacuous", "slot"], "there is no invariant slot;"),
        (["onbeat_reference:Scheduler", "--workload", "nowhere.csv"], "nowhere.csv: cannot be read"),
    ],
)
def test_the_verb_refuses(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", *args]) == 2
    assert message in capsys.readouterr().err


# --- The suite -------------------------------------------------------------------------------------------------------


def test_the_suite_of_a_checkout() -> None:
    assert suite_path() == HERE.parents[1] / "scenarios"
    assert {scenario.config.policy for scenario in scenarios_for("pr44558")} == {"pr44558"}
    assert len(scenarios_for("onbeat")) < len(load_path(suite_path()))


def test_the_suite_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_module, "__file__", str(tmp_path / "a" / "b" / "c" / "suite.py"))
    monkeypatch.setattr(suite_module, "files", lambda package: tmp_path)
    with pytest.raises(ScenarioError, match="there is no conformance suite"):
        suite_path()
    (tmp_path / "conformance").mkdir()
    assert suite_path() == tmp_path / "conformance"


def test_budgets_grow() -> None:
    limits = list(LIMITS.values())
    assert list(LIMITS) == ["quick", "standard", "deep"]
    for name in ("depth", "operations", "histories", "shrink_s"):
        values = [getattr(limit, name) for limit in limits]
        assert values == sorted(set(values))
    assert all(list(scope.depths) == sorted(scope.depths) for scope in SCOPES)
