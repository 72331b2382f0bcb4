"""Making what a check found small, and describing it: a violation and a scenario become a finding."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from onbeat_proofs.audit.adapters import Adapter
from onbeat_proofs.audit.results import Finding
from onbeat_proofs.foreign.families import Factory
from onbeat_proofs.play.drain import AT_REST, drain, folded
from onbeat_proofs.play.keeps_text import RULES
from onbeat_proofs.play.replay import window
from onbeat_proofs.play.table import step_text
from onbeat_proofs.play.timeline import timeline
from onbeat_proofs.play.two_runs import Runs
from onbeat_proofs.scenarios.operations import Add, Op, Scenario, Schedule, flatten
from onbeat_proofs.scenarios.shrink import shrink
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.config import Config
from onbeat_spec.errors import ScenarioError
from onbeat_spec.policy import Policy
from onbeat_spec.records import Violation

LATEST = 2
"""Steps before which two runs are compared while a scenario is made small, if that is enough to show what it shows."""
Key = tuple[str, str]
"""An invariant, and a way in which it is violated: see `kind_of`."""


class Smallest:
    """Makes the violations of one class small.

    Args:
        adapter: of its family.
        cls: the class.
        policy: that it is given, or should keep.
        name: of the class, in scenarios.
        base: a class whose violations do not count as this one's; None: there is none.
        seconds: for one finding.
    """

    def __init__(
        self, adapter: Adapter, cls: type, policy: Policy, *, name: str, base: type | None, seconds: float
    ) -> None:
        self.adapter = adapter
        self.cls = cls
        self.factory = adapter.factory(cls)
        self.policy = policy
        self.name = name
        self.base = base
        self.seconds = seconds

    def violates(self, scenario: Scenario, invariant: str, factory: Factory) -> bool:
        """Whether a scenario violates an invariant, in whatever way."""
        return self._first(scenario, factory, lambda v: v.invariant == invariant) is not None

    def shows(self, scenario: Scenario, key: Key, latest: int | None = None) -> Violation | None:
        """Return the first violation of a kind in a scenario, if it is the class's own.

        Args:
            scenario: what to replay.
            key: the kind.
            latest: compare two runs before so many of the latest steps only, which is much faster; None: before all.
        """
        id = key[0]
        steps = sum(isinstance(op, Schedule) for _, op in flatten(scenario.steps))
        since = 0 if latest is None else max(0, steps - latest)
        own = self._first(scenario, self.factory, lambda v: (v.invariant, kind_of(v.message, scenario)) == key, since)
        if own is None or self.base is None or id in RULES:
            return own
        return None if self.violates(scenario, id, self.adapter.factory(self.base)) else own

    def _first(
        self, scenario: Scenario, factory: Factory, wanted: Callable[[Violation], bool], since: int = 0
    ) -> Violation | None:
        """Replay a scenario up to the first violation that is wanted, or to an operation that is impossible there."""
        driver = Runs(scenario.config, factory, policy=self.policy, since=since)
        return next(filter(wanted, self._violations(driver, scenario)), None)

    def _violations(self, driver: Runs, scenario: Scenario) -> Iterator[Violation]:
        """Replay a scenario, and yield its violations as they come.

        A class that goes another way, such as a base, may come to where an operation of the scenario is impossible.
        """
        seen = 0
        for op in (*(op for _, op in flatten(scenario.steps)), None):
            try:
                if op is None:
                    driver.finish()
                else:
                    driver.require(op)
                    driver.apply(op)
            except ScenarioError:
                return
            yield from driver.violations[seen:]
            seen = len(driver.violations)

    def finding(self, violation: Violation, scenario: Scenario, check: str) -> Finding:
        """Make a scenario small, and describe what it shows; one that does not show it again is left as it is."""
        id = violation.invariant
        scenario = named(id, self.name, scenario)
        key = id, kind_of(violation.message, scenario)
        if self.shows(scenario, key) is None:
            return Finding(id, violation.message, violation.step, check, scenario, replayed="differs")
        # Once what follows is cut off, it is the latest step that shows it, or what comes after that.
        until = _until(scenario, violation.step)
        latest = next((n for n in (0, LATEST) if self.shows(until, key, n) is not None), None)
        small = self.small(violation, scenario, key, latest)
        if self.shows(small, key) is None:
            small = self.small(violation, scenario, key, None)
        violation = self.shows(small, key) or violation
        driver = Runs(small.config, self.factory, policy=self.policy)
        for _ in self._violations(driver, small):
            pass
        table = step_text(window(driver.history, violation.step)) if driver.history else ""
        return Finding(id, violation.message, violation.step, check, small, table, timeline(driver.history))

    def small(self, violation: Violation, scenario: Scenario, key: Key, latest: int | None) -> Scenario:
        """Make a scenario small; `latest` as of `shows`."""
        id = violation.invariant
        prepared = self.adapter.prepare(self.cls, Scenario(scenario.name))
        plain = prepared.config if prepared is not None else Config()

        def shown(candidate: Scenario) -> Violation | None:
            return self.shows(candidate, key, latest)

        def cut(candidate: Scenario, at: Violation) -> Scenario:
            until = _until(candidate, at.step)
            return until if shown(until) is not None else candidate

        def shrunk(candidate: Scenario) -> Scenario:
            if shown(candidate) is None:
                return candidate
            smaller = shrink(candidate, lambda smaller: shown(smaller) is not None, self.seconds, plain)
            # A smaller world may show it at an earlier step, and the time may be up before what follows is taken away.
            return cut(smaller, shown(smaller) or violation)

        scenario = shrunk(cut(scenario, violation))
        if scenario.steps[-1] == AT_REST:
            drained = self.drained(scenario)
            without = replace(drained, steps=drained.steps[:-1])
            scenario = drained if shown(without) is None else shrunk(without)
        last = scenario.steps[-1]
        two_runs = id in RULES or (CATALOGUE[id].runs is not None and CATALOGUE[id].pair == "throttle")
        if two_runs and isinstance(last, Schedule):
            # Two runs are compared whatever the flag; with it the step shows what is wrong.
            throttled = replace(scenario, steps=(*scenario.steps[:-1], replace(last, throttle=True)))
            scenario = throttled if shown(throttled) is not None else scenario
        return scenario

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


def named(id: str, scheduler: str, scenario: Scenario) -> Scenario:
    """Return a scenario under the name of what it shows: that a class violates an invariant."""
    plain = replace(scenario, name=f"{id}: {scheduler}", case=None, source=None, violates=())
    return replace(plain, invariants=(id,) if id in CATALOGUE else ())


def _until(scenario: Scenario, step: int) -> Scenario:
    """Return a scenario without what comes after the operation that schedules a step."""
    steps = [op for _, op in flatten(scenario.steps)]
    ends = [at for at, op in enumerate(steps, 1) if isinstance(op, Schedule)]
    return replace(scenario, steps=tuple(steps[: ends[step]])) if step < len(ends) else scenario


def kind_of(message: str, scenario: Scenario) -> str:
    """Return a message without names and numbers: violations of one kind have one text."""
    ids = sorted({re.escape(op.id) for _, op in flatten(scenario.steps) if isinstance(op, Add)}, key=len, reverse=True)
    text = re.sub(rf"'?\b(?:{'|'.join(ids)})\b'?", "*", message) if ids else message
    text = re.sub(r"\d+", "#", text)
    return re.sub(r"([\w ]*\*(?:: #)?)(?:, (?:and )?\1)+", r"\1", text)
