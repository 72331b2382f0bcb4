"""The audit: everything that can be found out about a scheduler class by running it, put together.

    signature   does it take the calls that its callers make?
    search      all sequences of operations in small worlds
    random      long histories over random configurations
    suite       the conformance suite
    workload    real arrivals, if asked for

One row for each invariant says whether it holds, is violated, or was never put to the test (`vacuous`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from onbeat_proofs.audit_report import AuditReport, Budget, Finding, Row, Verdict
from onbeat_proofs.clients import Factory
from onbeat_proofs.drain import AT_REST, drain, folded
from onbeat_proofs.drive import DEPLOYMENT, drive
from onbeat_proofs.machine import random_histories
from onbeat_proofs.operations import Op, Scenario, Schedule
from onbeat_proofs.policies import policy_of
from onbeat_proofs.premises import Tally
from onbeat_proofs.replay import window
from onbeat_proofs.runs import UNTHROTTLED, Runs, replay_runs, violation_in
from onbeat_proofs.scopes import SCOPES
from onbeat_proofs.search import Exploration
from onbeat_proofs.shrink import shrink
from onbeat_proofs.signature import misfits_of, probe
from onbeat_proofs.source import source_of
from onbeat_proofs.suite import run_suite, scenarios_for
from onbeat_proofs.table import step_text
from onbeat_proofs.targets import where_raised
from onbeat_proofs.timeline import timeline
from onbeat_proofs.workload import Arrival
from onbeat_reference.watch import Watch
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.errors import OnbeatError
from onbeat_spec.records import Violation

Progress = Callable[[str, int, int], object]
"""Called with what is being checked, how much of it is done, and how much there is."""


class Limits(NamedTuple):
    """What a budget buys."""

    depth: int
    """Which of a scope's depths."""
    operations: int
    """Most operations in one scope."""
    drains: int
    """States of one scope that are brought to rest."""
    histories: int
    shrink_s: float
    """Seconds for one finding."""
    compare_steps: int | None
    """Steps of a scenario of the suite before which two runs are compared."""


LIMITS: dict[Budget, Limits] = {
    "quick": Limits(0, 15_000, 50, 120, 1.0, 20),
    "standard": Limits(1, 100_000, 200, 1200, 3.0, 100),
    "deep": Limits(2, 1_000_000, 1000, 10_000, 10.0, None),
}


def audit(
    scheduler: Factory,
    policy: str = "onbeat",
    budget: Budget = "quick",
    seed: int = 0,
    *,
    name: str | None = None,
    arrivals: Sequence[Arrival] | None = None,
    interval: int = 2,
    stop_at_first: bool | Collection[str] = False,
    progress: Progress = lambda what, done, total: None,
) -> AuditReport:
    """Check one scheduler class against every invariant of one rank.

    Args:
        scheduler: the class, with the interface of `onbeat_reference.Scheduler`; or a function of (config, policy).
        policy: name of the policy that it is given: a built-in one, module:Class, or file.py:Class.
        budget: how much is explored.
        seed: of the random histories.
        name: of the class, in the report.
        arrivals: also drive the class through this workload.
        interval: the prefill step cadence of the workload.
        stop_at_first: end at the first violation, or at the first of these invariants; what was not found by then is
            undecided.
        progress: told how far the audit is.

    Raises:
        PolicyError: there is no such policy.
        NotAScheduler: the class cannot be driven.
    """
    began = perf_counter()
    report = AuditReport(name or str(getattr(scheduler, "__name__", scheduler)), policy, budget, seed)
    report.source = source_of(scheduler)
    work = _Audit(scheduler, report, stop_at_first, progress)
    if isinstance(scheduler, type):
        report.signature += misfits_of(scheduler)
    if any(misfit.fatal for misfit in report.signature):
        report.ended_early = True
    else:
        work.run()
        if arrivals is not None and not report.ended_early:
            work.drive(arrivals, interval)
    report.rows = work.rows()
    report.seconds = perf_counter() - began
    return report


class _Audit:
    """An audit under way."""

    def __init__(
        self, factory: Factory, report: AuditReport, stop_at_first: bool | Collection[str], progress: Progress
    ) -> None:
        self.factory = factory
        self.policy = policy_of(report.policy)()
        self.limits = LIMITS[report.budget]
        self.stop_at_first = stop_at_first
        self.progress = progress
        self.report = report
        self.found: dict[str, tuple[Violation, Scenario, str]] = {}
        self.violations: Counter[str] = Counter()
        self.tallies = {check: Tally() for check in ("search", "random", "suite")}

    @property
    def enough(self) -> bool:
        if isinstance(self.stop_at_first, bool):
            return self.stop_at_first and bool(self.found)
        return any(id in self.found for id in self.stop_at_first)

    def note(self, check: str) -> Callable[[Violation, Scenario], None]:
        """Return what takes the violations that a check reports."""

        def take(violation: Violation, scenario: Scenario) -> None:
            id = violation.invariant
            self.violations[id] += 1
            if id not in self.found or len(scenario.steps) < len(self.found[id][1].steps):
                config = replace(scenario.config, policy=self.report.policy)
                self.found[id] = violation, replace(scenario, config=config), check

        return take

    def run(self) -> None:
        """Search, random histories, suite; then make small what was found."""
        misfit = probe(self.factory, self.policy)
        if misfit is not None:
            self.report.signature.append(misfit)
        for check in (self.search, self.random, self.suite):
            check()
            if self.enough:
                self.report.ended_early = True
                break
        for id in [id for id in CATALOGUE if id in self.found]:
            self.progress("shrink", len(self.report.findings), len(self.found))
            self.report.findings.append(self.shrunk(*self.found[id]))

    def search(self) -> None:
        depth = self.limits.depth
        explorations = [
            Exploration(
                scope,
                self.factory,
                self.policy,
                self.note("search"),
                tally=self.tallies["search"],
                most=self.limits.operations,
                drains=self.limits.drains,
                enough=lambda: self.enough,
            )
            for scope in SCOPES
        ]
        # Level by level over all scopes, so that the first violation is found where it is nearest.
        plan = [
            (level, exploration)
            for level in range(max(scope.depths[depth] for scope in SCOPES))
            for exploration in explorations
            if level < exploration.scope.depths[depth]
        ]
        self.report.search = [exploration.explored for exploration in explorations]
        for done, (level, exploration) in enumerate(plan):
            self.progress(f"search {exploration.scope.name}", done, len(plan))
            exploration.level(last=level == exploration.scope.depths[depth] - 1)

    def random(self) -> None:
        def enough(done: int) -> bool:
            self.progress("random histories", done, self.limits.histories)
            return self.enough

        self.report.random = random_histories(
            self.factory,
            self.policy,
            self.note("random"),
            histories=self.limits.histories,
            random_seed=self.report.seed,
            tally=self.tallies["random"],
            enough=enough,
        )

    def suite(self) -> None:
        chosen = scenarios_for(self.report.policy)

        def enough(done: int) -> bool:
            self.progress("suite", done, len(chosen))
            return self.enough

        self.report.suite = run_suite(
            chosen,
            self.factory,
            self.policy,
            self.note("suite"),
            tally=self.tallies["suite"],
            most=self.limits.compare_steps,
            enough=enough,
        )

    def shrunk(self, violation: Violation, scenario: Scenario, check: str) -> Finding:
        """Make a scenario small, and describe what it shows."""
        id = violation.invariant
        scenario = replace(scenario, name=f"{id}: {self.report.scheduler}", case=None, source=None, violates=())
        scenario = replace(scenario, invariants=(id,))

        def shown(candidate: Scenario) -> Violation | None:
            return violation_in(candidate, id, self.factory, self.policy)

        def small(candidate: Scenario) -> Scenario:
            if shown(candidate) is None:
                return candidate
            return shrink(candidate, lambda smaller: shown(smaller) is not None, self.limits.shrink_s)

        scenario = small(scenario)
        if scenario.steps[-1] == AT_REST:
            drained = self.drained(scenario)
            without = replace(drained, steps=drained.steps[:-1])
            scenario = drained if shown(without) is None else small(without)
        last = scenario.steps[-1]
        if CATALOGUE[id].runs is not None and id not in UNTHROTTLED and isinstance(last, Schedule):
            # Two runs are compared whatever the flag; with it the step shows what is wrong.
            throttled = replace(scenario, steps=(*scenario.steps[:-1], replace(last, throttle=True)))
            scenario = throttled if shown(throttled) is not None else scenario
        violation = shown(scenario) or violation
        history = replay_runs(scenario, self.factory, self.policy).history
        table = step_text(window(history, violation.step))
        return Finding(id, violation.message, violation.step, check, scenario, table, timeline(history))

    def drained(self, scenario: Scenario) -> Scenario:
        """Write the draining before the final check out, so that it happens in any replay."""
        driver = Runs(scenario.config, self.factory, policy=self.policy, compares=False)
        steps = list(scenario.steps[:-1])
        for op in steps:
            driver.apply(op)

        def apply(op: Op) -> None:
            steps.append(op)
            driver.apply(op)

        drain(driver, apply)
        return replace(scenario, steps=(*folded(steps), AT_REST))

    def drive(self, arrivals: Sequence[Arrival], interval: int) -> None:
        """Drive the class through a workload, watched."""
        config = replace(DEPLOYMENT, policy=self.report.policy)

        def make(config: Any) -> Any:
            return self.factory(config, self.policy)

        try:
            self.report.workload = drive(
                make,
                config,
                arrivals,
                interval=interval,
                monitor=Watch,
                progress=lambda done, total: self.progress("workload", done, total),
            )
        except OnbeatError:
            raise
        except Exception as error:
            self.report.workload_error = where_raised(error)

    def rows(self) -> list[Row]:
        """Judge every invariant of one rank."""
        counts = {check: tally.counted() for check, tally in self.tallies.items()}
        rows = []
        for id, entry in CATALOGUE.items():
            if not entry.scopes:
                continue
            met = {check: counted[id] for check, counted in counts.items()}
            verdict: Verdict = "holds" if any(met.values()) else "vacuous"
            if id in self.found:
                verdict = "violated"
            elif self.report.ended_early:
                verdict = "undecided"
            rows.append(Row(id, verdict, met, self.violations[id], entry.statement))
        return rows
