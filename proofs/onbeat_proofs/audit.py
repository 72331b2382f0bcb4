"""The audit: everything that can be found out about a scheduler class by running it, put together.

    signature   does it take the calls that its callers make?
    search      all sequences of operations in small worlds
    random      long histories over random configurations
    suite       the conformance suite
    workload    real arrivals, if asked for

One row for each invariant says whether it holds, is violated, or was never put to the test (`vacuous`).
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from time import perf_counter, process_time
from typing import Any, NamedTuple, cast

from onbeat_proofs.adapters import AUTO, Adapter, ReferenceAdapter, adapter_for
from onbeat_proofs.audit_report import AuditReport, Budget, Finding, Row, Verdict
from onbeat_proofs.clients import Factory
from onbeat_proofs.drain import AT_REST, drain, folded
from onbeat_proofs.drive import DEPLOYMENT, drive
from onbeat_proofs.machine import random_histories
from onbeat_proofs.operations import Add, Op, Scenario, Schedule, flatten
from onbeat_proofs.policies import policy_of
from onbeat_proofs.premises import ABOUT_HOLDS, Tally
from onbeat_proofs.replay import window
from onbeat_proofs.runs import UNTHROTTLED, Runs, replay_runs
from onbeat_proofs.scopes import SCOPES
from onbeat_proofs.search import Exploration
from onbeat_proofs.shrink import shrink
from onbeat_proofs.source import source_of
from onbeat_proofs.suite import run_suite, scenarios_for
from onbeat_proofs.table import step_text
from onbeat_proofs.targets import where_raised
from onbeat_proofs.text import STATEMENTS
from onbeat_proofs.timeline import timeline
from onbeat_proofs.watchdog import Hang
from onbeat_proofs.workload import Arrival
from onbeat_reference.watch import Watch
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.config import Config
from onbeat_spec.errors import OnbeatError
from onbeat_spec.policy import Policy
from onbeat_spec.records import Violation

INHERITED = 40
"""Runs of one kind that are tried on the base before its other runs are taken to be inherited too."""
KINDS = 6
"""Ways in which one invariant is violated that are shown at most."""
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
    seconds: float = inf
    """For all checks together; what is not reached by then is cut off, and said to be."""


LIMITS: dict[Budget, Limits] = {
    "quick": Limits(0, 15_000, 50, 120, 1.0, 20, inf),
    "standard": Limits(1, 100_000, 200, 1200, 3.0, 100, inf),
    "deep": Limits(2, 1_000_000, 1000, 10_000, 10.0, None, inf),
}
LIMITS_OF_OTHERS: dict[Budget, Limits] = {
    "quick": Limits(0, 1_200, 10, 40, 0.7, 10, 35.0),
    "standard": Limits(1, 8_000, 50, 300, 3.0, 50, 220.0),
    "deep": Limits(2, 100_000, 500, 4000, 15.0, None, 3600.0),
}
"""The same for families whose schedulers are real, and cost accordingly."""
BASE_LIMITS = Limits(0, 2_000, 0, 200, 0.0, 0, 90.0)
"""How much the base of a class is looked at, where what is inherited is set apart."""


def audit(
    scheduler: Factory,
    policy: str = AUTO,
    budget: Budget = "quick",
    seed: int = 0,
    *,
    name: str | None = None,
    arrivals: Sequence[Arrival] | None = None,
    interval: int = 2,
    own: bool = False,
    stop_at_first: bool | Collection[str] = False,
    progress: Progress = lambda what, done, total: None,
) -> AuditReport:
    """Check one scheduler class against every invariant of one rank.

    Args:
        scheduler: the class, of a family that an adapter knows; or a function of (config, policy) that makes a
            scheduler with the interface of `onbeat_reference.Scheduler`.
        policy: the policy that it is given, or, if it decides by itself, that it should keep: a built-in one,
            module:Class, or file.py:Class. `auto`: the one that its family and version should have.
        budget: how much is explored.
        seed: of the random histories.
        name: of the class, in the report.
        arrivals: also drive the class through this workload.
        interval: the prefill step cadence of the workload.
        own: set what the class inherits apart: violations in runs in which its base violates the same.
        stop_at_first: end at the first violation, or at the first of these invariants; what was not found by then is
            undecided.
        progress: told how far the audit is.

    Raises:
        PolicyError: there is no such policy.
        NotAScheduler: the class cannot be driven.
    """
    began = perf_counter()
    adapter = adapter_for(scheduler) if isinstance(scheduler, type) else ReferenceAdapter()
    text = adapter.policy(cast(type, scheduler)) if policy == AUTO else policy_of(policy)()
    report = AuditReport(
        name or str(getattr(scheduler, "__name__", scheduler)), text.name if policy == AUTO else policy, budget, seed
    )
    report.environment = adapter.environment()
    report.own, report.not_asked = own, adapter.lacks()
    report.source = source_of(scheduler)
    work = _Audit(adapter, cast(type, scheduler), text, report=report, stop_at_first=stop_at_first, progress=progress)
    if isinstance(scheduler, type):
        report.signature += adapter.misfits(scheduler)
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
        self,
        adapter: Adapter,
        cls: type,
        policy: Policy,
        *,
        report: AuditReport,
        stop_at_first: bool | Collection[str],
        progress: Progress,
    ) -> None:
        self.adapter = adapter
        self.cls = cls
        self.factory = adapter.factory(cls)
        self.policy = policy
        self.limits = (LIMITS_OF_OTHERS if adapter.decides_itself else LIMITS)[report.budget]
        self.stop_at_first = stop_at_first
        self.progress = progress
        self.report = report
        self.found: dict[tuple[str, str], tuple[Violation, Scenario, str]] = {}
        """For each invariant and each way in which it is violated, the shortest run."""
        self.base = adapter.base(cls) if report.own else None
        self.inherited: Counter[tuple[str, str]] = Counter()
        self.violations: Counter[str] = Counter()
        self.began, self.began_cpu = perf_counter(), process_time()
        self.deadline = inf
        self.hangs = 0
        self.tallies = {check: Tally() for check in ("search", "random", "suite")}

    @property
    def enough(self) -> bool:
        """What was asked for is found; or the class hangs, and every further hang would only cost time."""
        if self.hangs > 1:
            return True
        if isinstance(self.stop_at_first, bool):
            return self.stop_at_first and bool(self.found)
        return any(id in self.stop_at_first for id, _ in self.found)

    @property
    def over(self) -> bool:
        """The check under way may end: enough is found, or its time is up."""
        return self.enough or process_time() > self.deadline

    def note(self, check: str) -> Callable[[Violation, Scenario], None]:
        """Return what takes the violations that a check reports."""

        def take(violation: Violation, scenario: Scenario) -> None:
            id = violation.invariant
            self.violations[id] += 1
            self.hangs += violation.message.startswith(Hang.__name__)
            key = id, kind_of(violation.message, scenario)
            if self.report.first_s is None:
                self.report.first_s = perf_counter() - self.began
            if self.base is not None and self.is_inherited(key, scenario):
                self.inherited[key] += 1
                return
            if key not in self.found and sum(known == id for known, _ in self.found) == KINDS:
                return
            if key not in self.found or len(scenario.steps) < len(self.found[key][1].steps):
                if not self.adapter.decides_itself:
                    config = replace(scenario.config, policy=self.report.policy)
                    scenario = replace(scenario, config=config)
                self.found[key] = violation, scenario, check

        return take

    def is_inherited(self, key: tuple[str, str], scenario: Scenario) -> bool:
        """Whether the class's base violates the same in the same run; after many such runs that is assumed."""
        if key[0] in STATEMENTS or key in self.found:
            return False
        if self.inherited[key] >= INHERITED:
            return True
        assert self.base is not None
        return self.shows(scenario, key, self.adapter.factory(self.base)) is not None

    def shows(self, scenario: Scenario, key: tuple[str, str], factory: Factory) -> Violation | None:
        """Return the first violation of a kind in a scenario."""
        seen = replay_runs(scenario, factory, self.policy, expects=False).violations
        return next((v for v in seen if (v.invariant, kind_of(v.message, scenario)) == key), None)

    def run(self) -> None:
        """Search, random histories, suite; then make small what was found."""
        misfit = self.adapter.probe(self.factory, self.policy)
        if misfit is not None:
            self.report.signature.append(misfit)
        for check, share in ((self.search, 0.65), (self.random, 0.8), (self.suite, 1.0)):
            self.deadline = share * self.limits.seconds + self.began_cpu
            check()
            if self.enough:
                self.report.ended_early = True
                break
        order = [*STATEMENTS, *CATALOGUE]
        for done, key in enumerate(sorted(self.found, key=lambda key: order.index(key[0]))):
            self.progress("shrink", done, len(self.found))
            finding = self.shrunk(*self.found[key])
            if self.is_of_the_base(key, finding):
                self.inherited[key] += 1
                del self.found[key]
            else:
                self.add(finding)

    def is_of_the_base(self, key: tuple[str, str], finding: Finding) -> bool:
        """Whether a violation in a step that held nobody is of a kind that the base shows in other runs.

        A run in which the class holds otherwise than its base soon is another run. What then goes wrong in a step
        without a hold, and is not about holds, the base does as well, from a state that it gets to in its own way.
        """
        if self.base is None or key[0] in ABOUT_HOLDS or key[0] in STATEMENTS:
            return False
        held = any(record["hold"] for record in finding.timeline if record["step"] == finding.step)
        return not held and key in self.kinds_of_the_base

    @cached_property
    def kinds_of_the_base(self) -> frozenset[tuple[str, str]]:
        """What the base violates, in which ways, as far as a quick look shows."""
        assert self.base is not None
        report = AuditReport(self.base.__name__, self.report.policy, "quick", self.report.seed)
        text = self.adapter.policy(self.base)
        work = _Audit(self.adapter, self.base, text, report=report, stop_at_first=False, progress=self.progress)
        work.limits = BASE_LIMITS
        for check, share in ((work.search, 0.6), (work.random, 1.0)):
            work.deadline = process_time() + share * BASE_LIMITS.seconds
            check()
        return frozenset(work.found)

    def add(self, finding: Finding) -> None:
        """Add a finding; one that the same run shows already is named with it."""
        finding.pytest_file = self.adapter.pytest_file(self.cls, finding)
        for known in self.report.findings:
            if known.scenario.steps == finding.scenario.steps:
                if known.invariant != finding.invariant and finding.invariant not in known.also:
                    known.also.append(finding.invariant)
                return
        self.report.findings.append(finding)

    def search(self) -> None:
        depth = self.limits.depth
        # A scope whose point the family does not have is left out.
        scopes = [
            replace(scope, config=config)
            for scope in SCOPES
            if _same_modes(config := self.adapter.config(self.cls, scope.config), scope.config)
        ]
        explorations = [
            Exploration(
                scope,
                self.factory,
                self.policy,
                self.note("search"),
                tally=self.tallies["search"],
                most=self.limits.operations,
                drains=self.limits.drains,
                enough=lambda: self.over,
            )
            for scope in scopes
        ]
        # Level by level over all scopes, so that the first violation is found where it is nearest.
        plan = [
            (level, exploration)
            for level in range(max(scope.depths[depth] for scope in scopes))
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
            return self.over

        self.report.random = random_histories(
            self.factory,
            self.policy,
            self.note("random"),
            histories=self.limits.histories,
            random_seed=self.report.seed,
            tally=self.tallies["random"],
            adapt=lambda config: self.adapter.config(self.cls, config),
            enough=enough,
        )

    def suite(self) -> None:
        chosen = scenarios_for("onbeat" if self.adapter.decides_itself else self.report.policy)
        prepared = [self.adapter.prepare(self.cls, scenario) for scenario in chosen]
        chosen = [scenario for scenario in prepared if scenario is not None]

        def enough(done: int) -> bool:
            self.progress("suite", done, len(chosen))
            return self.over

        self.report.suite = run_suite(
            chosen,
            self.factory,
            self.policy,
            self.note("suite"),
            tally=self.tallies["suite"],
            most=self.limits.compare_steps,
            # What the suite expects is what the reference does; another family owes the invariants only.
            expects=not self.adapter.decides_itself,
            enough=enough,
        )

    def shrunk(self, violation: Violation, scenario: Scenario, check: str) -> Finding:
        """Make a scenario small, and describe what it shows."""
        id = violation.invariant
        scenario = replace(scenario, name=f"{id}: {self.report.scheduler}", case=None, source=None, violates=())
        scenario = replace(scenario, invariants=(id,) if id in CATALOGUE else ())

        key = id, kind_of(violation.message, scenario)

        def shown(candidate: Scenario) -> Violation | None:
            found = self.shows(candidate, key, self.factory)
            if found is None or self.base is None or id in STATEMENTS:
                return found
            return found if self.shows(candidate, key, self.adapter.factory(self.base)) is None else None

        prepared = self.adapter.prepare(self.cls, Scenario(scenario.name))
        plain = prepared.config if prepared is not None else Config()

        def small(candidate: Scenario) -> Scenario:
            if shown(candidate) is None:
                return candidate
            return shrink(candidate, lambda smaller: shown(smaller) is not None, self.limits.shrink_s, plain)

        scenario = small(scenario)
        if scenario.steps[-1] == AT_REST:
            drained = self.drained(scenario)
            without = replace(drained, steps=drained.steps[:-1])
            scenario = drained if shown(without) is None else small(without)
        last = scenario.steps[-1]
        two_runs = id in STATEMENTS or (CATALOGUE[id].runs is not None and id not in UNTHROTTLED)
        if two_runs and isinstance(last, Schedule):
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
        if self.adapter.decides_itself:
            for id, statement in STATEMENTS.items():
                met = {check: tally.met[id] for check, tally in self.tallies.items()}
                rows.append(Row(id, self.verdict(id, met), met, self.violations[id], statement, "policy"))
        for id, entry in CATALOGUE.items():
            if entry.scopes and id not in self.report.not_asked:
                met = {check: counted[id] for check, counted in counts.items()}
                rows.append(Row(id, self.verdict(id, met), met, self.violations[id], entry.statement))
        return rows

    def verdict(self, id: str, met: Mapping[str, int]) -> Verdict:
        """Judge one invariant, given how often each check met its premise."""
        if any(known == id for known, _ in self.found):
            return "violated"
        if any(known == id for known, _ in self.inherited):
            return "inherited"
        if self.report.ended_early:
            return "undecided"
        return "holds" if any(met.values()) else "vacuous"


def kind_of(message: str, scenario: Scenario) -> str:
    """Return a message without names and numbers: violations of one kind have one text."""
    ids = sorted({re.escape(op.id) for _, op in flatten(scenario.steps) if isinstance(op, Add)}, key=len, reverse=True)
    text = re.sub(rf"'?\b(?:{'|'.join(ids)})\b'?", "*", message) if ids else message
    text = re.sub(r"\d+", "#", text)
    return re.sub(r"([\w ]*\*(?:: #)?)(?:, (?:and )?\1)+", r"\1", text)


def _same_modes(config: Config, other: Config) -> bool:
    return all(getattr(config, name) == getattr(other, name) for name in ("async_depth", "num_draft_tokens"))
