"""The conformance suite: the scenario files that any scheduler can be held to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from time import perf_counter

from onbeat_proofs.foreign.families import Factory
from onbeat_proofs.play.replay import Failure
from onbeat_proofs.play.tally import Tally
from onbeat_proofs.play.two_runs import replay_runs
from onbeat_proofs.scenarios.files import load_path
from onbeat_proofs.scenarios.operations import Scenario
from onbeat_spec.errors import ScenarioError
from onbeat_spec.policy import Policy
from onbeat_spec.records import Violation

Report = Callable[[Violation, Scenario], object]


@dataclass(slots=True)
class Suite:
    """What came of the suite."""

    scenarios: int = 0
    """Those written for the policy asked for."""
    steps: int = 0
    """Steps scheduled, those of the comparisons included."""
    failures: list[tuple[Scenario, Failure]] = field(default_factory=list)
    """The first expectation of each scenario that was not met."""
    seconds: float = 0.0


def suite_path() -> Path:
    """Return the folder of the conformance suite: tests/scenarios of a checkout, else the copy in the package.

    Raises:
        ScenarioError: there is neither.
    """
    checkout = Path(__file__).resolve().parents[3] / "tests" / "scenarios"
    if checkout.is_dir():
        return checkout
    with as_file(files("onbeat_proofs") / "conformance") as packaged:
        if packaged.is_dir():
            return packaged
    raise ScenarioError(f"there is no conformance suite in {checkout} or {packaged}; install onbeat again")


def scenarios_for(policy: str, path: Path | None = None) -> list[Scenario]:
    """Return the suite's scenarios for a policy, by name.

    Raises:
        ScenarioError: there is no suite, or a file of it cannot be read.
    """
    return [scenario for scenario in load_path(path or suite_path()) if scenario.config.policy == policy]


def run_suite(
    chosen: list[Scenario],
    factory: Factory,
    policy: Policy,
    report: Report,
    *,
    tally: Tally | None = None,
    most: int | None = None,
    expects: bool = True,
    enough: Callable[[int], bool] = lambda done: False,
) -> Suite:
    """Replay scenarios, with two runs compared before each of their steps.

    Args:
        chosen: what to replay.
        factory: makes the scheduler.
        policy: what decides.
        report: called with the first violation of each invariant in each scenario. Those that a scenario is meant to
            show are reported too: they say that the policy violates the invariant.
        tally: counts the premises met.
        most: compare two runs before so many steps of a scenario; None: before all.
        expects: False asks for the invariants only.
        enough: asked after every scenario, with their number; True ends the run.

    Raises:
        ScenarioError: a scenario is impossible whatever the scheduler does.
    """
    suite = Suite()
    tally = tally if tally is not None else Tally()
    began, steps = perf_counter(), tally.steps + 3 * tally.pairs
    for scenario in chosen:
        try:
            outcome = replay_runs(scenario, factory, policy, tally=tally, most=most, expects=expects)
        except ScenarioError:
            if expects:
                raise
            continue  # it speaks of something that this family of schedulers does not have
        suite.scenarios += 1
        shown: set[str] = set()
        for violation in outcome.violations:
            if violation.invariant not in shown:
                shown.add(violation.invariant)
                report(violation, scenario)
        if outcome.failures:
            suite.failures.append((scenario, outcome.failures[0]))
        if enough(suite.scenarios):
            break
    suite.steps = tally.steps + 3 * tally.pairs - steps
    suite.seconds = perf_counter() - began
    return suite
