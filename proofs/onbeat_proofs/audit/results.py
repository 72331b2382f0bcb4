"""What an audit finds, as values."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from onbeat_proofs.audit.arrivals import ArrivalsReport
from onbeat_proofs.audit.histories import Machine
from onbeat_proofs.audit.search import Explored
from onbeat_proofs.audit.static.signature import Misfit
from onbeat_proofs.foreign.location import Location
from onbeat_proofs.play.suite import Suite
from onbeat_proofs.scenarios.files import dump
from onbeat_proofs.scenarios.operations import Scenario

AuditVerdict = Literal["holds", "violated", "inherited", "vacuous", "undecided"]
"""`inherited`: only in runs in which the class that it derives from violates it too, where that is asked about."""
Question = Literal["policy", "quality"]
"""Does it keep the policy text that it should have; and which invariants does it violate."""
Budget = Literal["quick", "standard", "deep"]
Replayed = Literal["same", "differs", "not tried"]
"""What came of a finding's scenario when it was replayed: the same violation, or none; or the time was up by then."""


class InvariantResult(NamedTuple):
    """What is known about one invariant."""

    invariant: str
    verdict: AuditVerdict
    counts: dict[str, int]
    """For each check, how often it met the premise of the invariant."""
    violations: int
    """Runs that violated it; one is shown."""
    statement: str
    question: Question = "quality"
    reason: str = ""
    """Why it is undecided, or inherited, if there is more to say than the verdict does."""


@dataclass(slots=True)
class Finding:
    """A run that violates an invariant, made small."""

    invariant: str
    message: str
    step: int
    check: str
    scenario: Scenario
    table: str = ""
    """What every request got in every step of the scenario; empty where it has none."""
    timeline: list[dict[str, Any]] = field(default_factory=list)
    """The same as values of JSON, one record for each step; see `onbeat_proofs.play.timeline`."""
    also: list[str] = field(default_factory=list)
    """What the same run violates besides."""
    pytest_file: str | None = None
    """The text of a pytest file that shows the same."""
    replayed: Replayed = "same"

    @property
    def shows(self) -> tuple[str, ...]:
        """All invariants that the run violates."""
        return (self.invariant, *self.also)

    @property
    def yaml(self) -> str:
        """The scenario as a file."""
        return dump(self.scenario, header=f"step {self.step}: violates {self.invariant}: {self.message}")

    def as_json(self) -> dict[str, Any]:
        """Return the finding as values of JSON; the scenario as the text of its file."""
        names = ("invariant", "also", "step", "message", "check", "table", "timeline", "pytest_file", "replayed")
        return {**{name: getattr(self, name) for name in names}, "scenario": self.yaml}


@dataclass(slots=True)
class AuditReport:
    """What an audit found. Times are wall seconds."""

    scheduler: str
    policy: str
    budget: Budget
    seed: int
    environment: dict[str, str] = field(default_factory=dict)
    """Names and versions of what the class ran with."""
    signature: list[Misfit] = field(default_factory=list)
    rows: list[InvariantResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    search: list[Explored] = field(default_factory=list)
    random: Machine | None = None
    suite: Suite | None = None
    workload: ArrivalsReport | None = None
    workload_error: str | None = None
    """Where the class raised while it was driven through the workload."""
    not_asked: dict[str, str] = field(default_factory=dict)
    """Invariants about what the family of the class does not have, and why."""
    own: bool = False
    """Violations that the class inherits are set apart."""
    not_reproduced: list[Finding] = field(default_factory=list)
    """Violations that were seen in a run, and not when its scenario was replayed."""
    notes: list[str] = field(default_factory=list)
    """What else was noticed, and breaks no invariant."""
    first_s: float | None = None
    """When the first violation was found."""
    ended_early: bool = False
    """At the first violation, before any check, or when the time was up: what was not found was not looked for."""
    allow_vacuous: Collection[str] = ()
    """Ids of invariants that need not be put to the test."""
    seconds: float = 0.0
    source: Location | None = None
    """Where the class is written; None: not known."""

    @property
    def violated(self) -> bool:
        """Something does not hold: an invariant, a signature, an expectation of the suite, or the workload."""
        driven = self.workload is not None and not self.workload.clean
        failed = self.suite is not None and bool(self.suite.failures)
        misfit = any(not misfit.warning for misfit in self.signature)
        return bool(misfit or self.findings or failed or driven or self.workload_error)

    @property
    def exit_code(self) -> int:
        """0 holds; 1 violated; 2 some invariant was not put to the test, though it should be, or not decided."""
        if self.violated:
            return 1
        allowed = {row.invariant for row in self.rows if row.verdict == "vacuous"} & {*self.allow_vacuous}
        return 0 if all(row.verdict in ("holds", "inherited") or row.invariant in allowed for row in self.rows) else 2

    def as_json(self) -> dict[str, Any]:
        """Return the report as values of JSON."""
        suite = None
        if self.suite is not None:
            failures = [{"scenario": scenario.name, **failure._asdict()} for scenario, failure in self.suite.failures]
            suite = {
                "scenarios": self.suite.scenarios,
                "steps": self.suite.steps,
                "seconds": self.suite.seconds,
                "failures": failures,
            }
        return {
            "scheduler": self.scheduler,
            "policy": self.policy,
            "budget": self.budget,
            "seed": self.seed,
            "environment": self.environment,
            "source": None if self.source is None else self.source._asdict(),
            "exit_code": self.exit_code,
            "seconds": self.seconds,
            "first_violation_seconds": self.first_s,
            "notes": self.notes,
            "own": self.own,
            "not_asked": self.not_asked,
            "signature": [misfit._asdict() for misfit in self.signature],
            "invariants": [row._asdict() for row in self.rows],
            "findings": [finding.as_json() for finding in self.findings],
            "not_reproduced": [finding.as_json() for finding in self.not_reproduced],
            "search": [asdict(explored) for explored in self.search],
            "random": None if self.random is None else asdict(self.random),
            "suite": suite,
            "workload": None if self.workload is None else _driven(self.workload),
            "workload_error": self.workload_error,
        }


def _driven(workload: ArrivalsReport) -> dict[str, Any]:
    violations = [violation._asdict() for violation in workload.violations]
    return {**asdict(workload), "violations": violations}
