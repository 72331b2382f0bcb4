"""The audit: everything that can be found out about a scheduler class by running it, put together.

    signature   does it take the calls that its callers make?
    search      all sequences of operations in small worlds
    random      long histories over random configurations
    suite       the conformance suite
    workload    real arrivals, if asked for

One row for each invariant says whether it holds, is violated, or was never put to the test (`vacuous`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import inf
from time import perf_counter, process_time
from typing import Any, cast

from onbeat_proofs.audit.adapters import AUTO, Adapter, ReferenceAdapter, adapter_for
from onbeat_proofs.audit.arrivals import DEPLOYMENT, drive
from onbeat_proofs.audit.budgets import LIMITS, LIMITS_OF_OTHERS
from onbeat_proofs.audit.findings import Smallest
from onbeat_proofs.audit.histories import random_histories
from onbeat_proofs.audit.inherited import Inherited
from onbeat_proofs.audit.results import AuditReport, AuditVerdict, Budget, Finding, InvariantResult, Question
from onbeat_proofs.audit.search import Exploration
from onbeat_proofs.audit.violations import Found, Violations
from onbeat_proofs.audit.worlds import SCOPES
from onbeat_proofs.foreign.families import Factory
from onbeat_proofs.foreign.location import source_of
from onbeat_proofs.foreign.policies import policy_of
from onbeat_proofs.foreign.targets import where_raised
from onbeat_proofs.foreign.watchdog import GUARD
from onbeat_proofs.play.keeps_text import RULES
from onbeat_proofs.play.suite import run_suite, scenarios_for
from onbeat_proofs.play.tally import Tally, require_known
from onbeat_proofs.scenarios.operations import Schedule
from onbeat_reference.watch import Watch
from onbeat_reference.workload import Arrival
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.config import Config
from onbeat_spec.errors import NotAScheduler, OnbeatError
from onbeat_spec.policy import Policy

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
    allow_vacuous: Collection[str] = (),
    stop_at_first: bool | Collection[str] = False,
    progress: Progress = lambda what, done, total: None,
    found: Found = lambda key, violation, scenario, check: None,
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
        allow_vacuous: ids of invariants that need not be put to the test for the exit code to be 0.
        stop_at_first: end at the first violation, or at the first of these invariants; what was not found by then is
            undecided.
        progress: told how far the audit is.
        found: told each violation that may become a finding, before it is made small.

    Raises:
        PolicyError: there is no such policy.
        NotAScheduler: the class cannot be driven.
        OnbeatError: `allow_vacuous` names no invariant.
    """
    began = perf_counter()
    adapter, text, report = _begin(scheduler, policy, budget, seed, name)
    if arrivals is not None and adapter.decides_itself:
        raise NotAScheduler(
            f"{report.scheduler}: schedulers of this family are not driven through workloads; leave the workload out"
        )
    report.own, report.allow_vacuous = own, require_known(allow_vacuous, (*RULES, *CATALOGUE))
    work = _Audit(
        adapter, cast(type, scheduler), text, report=report, stop=stop_at_first, progress=progress, found=found
    )
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


def _begin(
    scheduler: Factory, policy: str, budget: Budget, seed: int, name: str | None
) -> tuple[Adapter, Policy, AuditReport]:
    """Return the adapter of a class, the policy that it has or should keep, and a report without results."""
    adapter = adapter_for(scheduler) if isinstance(scheduler, type) else ReferenceAdapter()
    text = adapter.policy(cast(type, scheduler)) if policy == AUTO else policy_of(policy)()
    name = name or str(getattr(scheduler, "__name__", scheduler))
    report = AuditReport(name, text.name if policy == AUTO else policy, budget, seed)
    report.environment, report.not_asked = adapter.environment(), adapter.lacks()
    report.source = source_of(scheduler)
    return adapter, text, report


class _Audit:
    """An audit under way."""

    def __init__(
        self,
        adapter: Adapter,
        cls: type,
        policy: Policy,
        *,
        report: AuditReport,
        stop: bool | Collection[str],
        progress: Progress,
        found: Found,
    ) -> None:
        self.adapter = adapter
        self.cls = cls
        self.factory = adapter.factory(cls)
        self.policy = policy
        self.limits = (LIMITS_OF_OTHERS if adapter.decides_itself else LIMITS)[report.budget]
        self.stop_at_first = stop
        self.progress = progress
        self.report = report
        base = adapter.base(cls) if report.own else None
        self.smallest = Smallest(adapter, cls, policy, name=report.scheduler, base=base, seconds=self.limits.shrink_s)
        self.inherited = Inherited(None if base is None else adapter.factory(base), self.smallest, self.limits.base_s)
        given = None if adapter.decides_itself else report.policy
        self.violations = Violations(self.inherited, found, given)
        self.began_cpu = process_time()
        self.deadline = inf
        self.tallies = {check: Tally() for check in ("search", "random", "suite")}

    @property
    def enough(self) -> bool:
        """What was asked for is found; or the class hangs, and every further hang would only cost time."""
        if self.violations.hangs > 1:
            return True
        if isinstance(self.stop_at_first, bool):
            return self.stop_at_first and bool(self.violations.by_kind)
        return any(map(self.violations.violates, self.stop_at_first))

    @property
    def over(self) -> bool:
        """The check under way may end: enough is found, or its time is up."""
        return self.enough or process_time() > self.deadline

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
        self.report.first_s = self.violations.first_s
        self.shrink()

    def shrink(self) -> None:
        """Make small what was found; once the time for all is up, what is left gets none of its own."""
        began, by_kind, order = process_time(), self.violations.by_kind, [*RULES, *CATALOGUE]
        for done, key in enumerate(sorted(by_kind, key=lambda key: order.index(key[0]))):
            self.progress("shrink", done, len(by_kind))
            if process_time() - began > self.limits.shrink_all_s:
                self.smallest.seconds = 0.0
            finding = self.smallest.finding(*by_kind[key])
            if finding.replayed == "same":
                self.add(finding)
            else:
                self.report.not_reproduced.append(finding)

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
                self.violations.of("search"),
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
            self.violations.of("random"),
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
            self.violations.of("suite"),
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
                rows.append(self.row(id, met, statement, "policy"))
        for id, entry in CATALOGUE.items():
            if entry.scopes and id not in self.report.not_asked:
                met = {check: counted[id] for check, counted in counts.items()}
                rows.append(self.row(id, met, entry.statement, "quality"))
        return rows

    def row(self, id: str, met: dict[str, int], statement: str, question: Question) -> InvariantResult:
        verdict, reason = self.verdict(id, met)
        return InvariantResult(id, verdict, met, self.violations.counts[id], statement, question, reason)

    def verdict(self, id: str, met: Mapping[str, int]) -> tuple[AuditVerdict, str]:
        """Judge one invariant, given how often each check met its premise; say why, if there is more to say."""
        if any(id in finding.shows for finding in self.report.findings):
            return "violated", ""
        seen, same, untried = self.violations.counts[id], self.inherited.same[id], self.inherited.untried[id]
        if self.violations.violates(id):
            return "undecided", f"violated in {seen:,} runs; those that were replayed did not show it again"
        if untried and not same:
            return "undecided", f"violated in {seen:,} runs; there was no time to try one of them on the base"
        if same:
            return "inherited", f"violated in {seen:,} runs; {same:,} were tried on the base, and violate it too"
        if self.report.ended_early:
            return "undecided", ""
        return ("holds" if any(met.values()) else "vacuous"), ""


def _same_modes(config: Config, other: Config) -> bool:
    return all(getattr(config, name) == getattr(other, name) for name in ("async_depth", "num_draft_tokens"))
