"""Replays scenarios: runs them on a scheduler, and holds what is seen against what is expected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onbeat_proofs.foreign.families import Factory
from onbeat_proofs.foreign.policies import policy_of
from onbeat_proofs.play.driver import Driver
from onbeat_proofs.play.expectations import compare
from onbeat_proofs.play.history import PlayedStep
from onbeat_proofs.scenarios.operations import Check, Scenario, Schedule, flatten
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.errors import ScenarioError
from onbeat_spec.policy import Policy
from onbeat_spec.records import Violation


class Failure(NamedTuple):
    """An expectation that was not met."""

    step: int | None
    """Index of the latest step at that point; None before the first."""
    where: str
    """The operation in the scenario, as `steps[3]`."""
    key: str
    expected: str
    seen: str

    def __str__(self) -> str:
        at = "before the first step" if self.step is None else f"step {self.step}"
        return f"{at} ({self.where}): {self.key}: expected {self.expected}, seen {self.seen}"


@dataclass(slots=True)
class Replay:
    """What came of one scenario."""

    scenario: Scenario
    failures: list[Failure] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    history: list[PlayedStep] = field(default_factory=list)
    met: Mapping[str, int] | None = None
    """For each invariant, how often its premise was met; None: that was not counted."""

    @property
    def holds(self) -> bool:
        """Every expectation was met, and the invariants violated are those that the scenario is meant to violate."""
        return not self.failures and not self.unexpected and not self.missing

    @property
    def vacuous(self) -> list[str]:
        """Invariants that the scenario names and that were never put to the test, as far as that was counted.

        For one scenario its premises count alone: that the throttle has an effect somewhere, an audit asks about.
        """
        if self.met is None:
            return []
        named = dict.fromkeys((*self.scenario.invariants, *self.scenario.violates))
        tested = {violation.invariant for violation in self.violations} | {id for id in named if self.met.get(id)}
        return [id for id in named if id in CATALOGUE and id not in tested]

    @property
    def missing(self) -> list[str]:
        """Invariants that the scenario is meant to violate, and that held."""
        return sorted(set(self.scenario.violates) - {violation.invariant for violation in self.violations})

    @property
    def unexpected(self) -> list[Violation]:
        """Violations that the scenario is not meant to bring about."""
        return [violation for violation in self.violations if violation.invariant not in self.scenario.violates]

    @property
    def first(self) -> int:
        """Step of the first thing that did not hold."""
        steps = [failure.step or 0 for failure in self.failures] + [violation.step for violation in self.unexpected]
        return min(steps, default=0)

    def complaints(self) -> list[str]:
        """One line for each thing that did not hold, in the order of the steps."""
        lines = [(v.step, f"step {v.step}: violates {v.invariant}: {v.message}") for v in self.unexpected]
        lines += [(failure.step or 0, str(failure)) for failure in self.failures]
        held = [f"it should violate {', '.join(self.missing)}, which held"] if self.missing else []
        return [line for _, line in sorted(lines, key=lambda item: item[0])] + held


def replay(scenario: Scenario, factory: Factory = Scheduler, policy: Policy | None = None) -> Replay:
    """Run one scenario.

    Args:
        scenario: what to run.
        factory: makes the scheduler, from configuration and policy.
        policy: by default the one that the scenario's configuration names, relative to its file.

    Raises:
        ScenarioError: an operation or expectation is impossible whatever the scheduler does.
        PolicyError: there is no such policy.
        NotAScheduler: what the factory makes cannot be driven.
    """
    if policy is None:
        policy = policy_of(scenario.config.policy, scenario.origin.parent if scenario.origin else None)()
    return play(scenario, Driver(scenario.config, factory, policy=policy))


def play(scenario: Scenario, driver: Driver, *, expects: bool = True) -> Replay:
    """Run one scenario on a driver made for its configuration; `expects` False asks for the invariants only.

    Raises:
        ScenarioError: as `replay`.
    """
    outcome = Replay(scenario, violations=driver.violations, history=driver.history)
    for where, op in flatten(scenario.steps):
        try:
            driver.require(op)
            driver.apply(op)
            if driver.ended:
                break
            if expects and isinstance(op, Schedule | Check) and op.expect is not None and op not in driver.judges:
                step = driver.history[-1].step.index if driver.history else None
                outcome.failures += [Failure(step, where, *mismatch) for mismatch in compare(op.expect, driver)]
        except ScenarioError as error:
            raise ScenarioError(f"{title(scenario)}: {where}: {error}") from None
    driver.finish()
    return outcome


def title(scenario: Scenario) -> str:
    """Name a scenario in messages: its name, and its file if it has one."""
    return scenario.name if scenario.origin is None else f"{scenario.origin}: {scenario.name}"


def window(history: Sequence[PlayedStep], step: int, width: int = 12) -> Sequence[PlayedStep]:
    """Return the steps that lead to `step`, and the one after it."""
    end = next((at for at, turn in enumerate(history, 1) if turn.step.index > step), len(history))
    return history[max(0, end - width) : end]
