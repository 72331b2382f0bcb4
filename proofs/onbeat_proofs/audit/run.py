"""The audit: everything that can be found out about a scheduler class by running it, put together.

    signature   does it take the calls that its callers make?
    search      all sequences of operations in small worlds
    random      long histories over random configurations
    suite       the conformance suite
    workload    real arrivals, if asked for

One row for each invariant says whether it holds, is violated, or was never put to the test (`vacuous`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import inf
from time import perf_counter, process_time
from typing import Any, cast

from onbeat_proofs.audit.adapters import AUTO, Adapter, ReferenceAdapter, adapter_for
from onbeat_proofs.audit.arrivals import DEPLOYMENT, drive
from onbeat_proofs.audit.budgets import BASE_LIMITS, LIMITS, LIMITS_OF_OTHERS
from onbeat_proofs.audit.findings import Key, Smallest, kind_of
from onbeat_proofs.audit.histories import random_histories
from onbeat_proofs.audit.inherited import Inherited
from onbeat_proofs.audit.results import AuditReport, AuditVerdict, Budget, Finding, InvariantResult
from onbeat_proofs.audit.search import Exploration
from onbeat_proofs.audit.worlds import SCOPES
from onbeat_proofs.foreign.families import Factory
from onbeat_proofs.foreign.location import source_of
from onbeat_proofs.foreign.policies import policy_of
from onbeat_proofs.foreign.targets import where_raised
from onbeat_proofs.foreign.watchdog import GUARD, Hang
from onbeat_proofs.play.keeps_text import RULES
from onbeat_proofs.play.suite import run_suite, scenarios_for
from onbeat_proofs.play.tally import Tally
from onbeat_proofs.scenarios.operations import Scenario, Schedule
from onbeat_reference.watch import Watch
from onbeat_reference.workload import Arrival
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.config import Config
from onbeat_spec.errors import NotAScheduler, OnbeatError
from onbeat_spec.policy import Policy
from onbeat_spec.records import Violation

KINDS = 6
"""Ways in which one invariant is violated that are shown at most."""
Progress = Callable[[str, int, int], object]
"""Called with what is being checked, how much of it is done, and how much there is."""


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
    if arrivals is not None and adapter.decides_itself:
        raise NotAScheduler(
            f"{report.scheduler}: schedulers of this family are not driven through workloads; leave the workload out"
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
        self.by_kind: dict[Key, tuple[Violation, Scenario, str]] = {}
        """For each invariant and each way in which it is violated, the shortest run."""
        self.base = adapter.base(cls) if report.own else None
        self.smallest = Smallest(
            adapter, cls, policy, name=report.scheduler, base=self.base, seconds=self.limits.shrink_s
        )
        self.inherited = Inherited(
            None if self.base is None else adapter.factory(self.base), self.smallest, self.kinds_of_the_base
        )
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
            return self.stop_at_first and bool(self.by_kind)
        return any(id in self.stop_at_first for id, _ in self.by_kind)

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
            if key not in self.by_kind and self.inherited.in_the_same_run(key, scenario):
                return
            if key not in self.by_kind and sum(invariant == id for invariant, _ in self.by_kind) == KINDS:
                return
            if key not in self.by_kind or len(scenario.steps) < len(self.by_kind[key][1].steps):
                if not self.adapter.decides_itself:
                    config = replace(scenario.config, policy=self.report.policy)
                    scenario = replace(scenario, config=config)
                self.by_kind[key] = violation, scenario, check

        return take

    def run(self) -> None:
        """Search, random histories, suite; then make small what was found."""
        guard = GUARD.get()
        with nullcontext() if guard is None else guard.during(Config(), (Schedule(throttle=False), ())):
            misfit = self.adapter.probe(self.factory, self.policy)
        if misfit is not None:
            self.report.signature.append(misfit)
        for check, share in ((self.search, 0.65), (self.random, 0.8), (self.suite, 1.0)):
            self.deadline = share * self.limits.seconds + self.began_cpu
            check()
            if self.enough:
                self.report.ended_early = True
                break
        order = [*RULES, *CATALOGUE]
        for done, key in enumerate(sorted(self.by_kind, key=lambda key: order.index(key[0]))):
            self.progress("shrink", done, len(self.by_kind))
            finding = self.smallest.finding(*self.by_kind[key])
            if self.inherited.in_another_run(key, finding):
                del self.by_kind[key]
            else:
                self.add(finding)

    def kinds_of_the_base(self) -> frozenset[Key]:
        """What the base violates, in which ways, as far as a quick look shows."""
        assert self.base is not None
        report = AuditReport(self.base.__name__, self.report.policy, "quick", self.report.seed)
        text = self.adapter.policy(self.base)
        work = _Audit(self.adapter, self.base, text, report=report, stop_at_first=False, progress=self.progress)
        work.limits = BASE_LIMITS
        for check, share in ((work.search, 0.6), (work.random, 1.0)):
            work.deadline = process_time() + share * BASE_LIMITS.seconds
            check()
        return frozenset(work.by_kind)

    def add(self, finding: Finding) -> None:
        """Add a finding; one that the same run shows already is named with it."""
        finding.pytest_file = self.adapter.pytest_file(self.cls, finding)
        for earlier in self.report.findings:
            if earlier.scenario.steps == finding.scenario.steps:
                if earlier.invariant != finding.invariant and finding.invariant not in earlier.also:
                    earlier.also.append(finding.invariant)
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

    def rows(self) -> list[InvariantResult]:
        """Judge every invariant of one rank."""
        counts = {check: tally.counted() for check, tally in self.tallies.items()}
        rows = []
        if self.adapter.decides_itself:
            for id, (statement, _) in RULES.items():
                met = {check: tally.met[id] for check, tally in self.tallies.items()}
                rows.append(InvariantResult(id, self.verdict(id, met), met, self.violations[id], statement, "policy"))
        for id, entry in CATALOGUE.items():
            if entry.scopes and id not in self.report.not_asked:
                met = {check: counted[id] for check, counted in counts.items()}
                rows.append(InvariantResult(id, self.verdict(id, met), met, self.violations[id], entry.statement))
        return rows

    def verdict(self, id: str, met: Mapping[str, int]) -> AuditVerdict:
        """Judge one invariant, given how often each check met its premise."""
        if any(invariant == id for invariant, _ in self.by_kind):
            return "violated"
        if any(invariant == id for invariant, _ in self.inherited.kinds):
            return "inherited"
        if self.report.ended_early:
            return "undecided"
        return "holds" if any(met.values()) else "vacuous"


def _same_modes(config: Config, other: Config) -> bool:
    return all(getattr(config, name) == getattr(other, name) for name in ("async_depth", "num_draft_tokens"))
