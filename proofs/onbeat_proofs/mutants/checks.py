"""The checks that mutants meet: the same ones as `prove` and `audit` use, each ended at the first thing it notices."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from onbeat_proofs.audit.histories import random_histories
from onbeat_proofs.audit.search import Exploration
from onbeat_proofs.audit.worlds import SCOPES, SmallWorld
from onbeat_proofs.play.replay import replay
from onbeat_proofs.play.suite import scenarios_for
from onbeat_proofs.play.two_runs import replay_runs
from onbeat_proofs.protocol.theorems import balance
from onbeat_proofs.prove.ledger import THEOREMS
from onbeat_proofs.prove.states import Shape
from onbeat_proofs.prove.sweep import CHECKS, QUICK, run_trio
from onbeat_proofs.prove.theorem import Theorem, rerun
from onbeat_proofs.scenarios.operations import Scenario
from onbeat_proofs.symbolic import Context, explore
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.policy import POLICIES, Policy
from onbeat_spec.records import Violation

HISTORIES = 60
"""Random histories of each seed."""
SEEDS = (0, 1, 2)
COMPARED_STEPS = 12
"""Steps of a scenario before which two runs are compared."""


class MutantCheck(NamedTuple):
    """One check. `run` returns what it noticed, None if nothing; what it raises, it noticed too."""

    name: str
    run: Callable[[], str | None]
    policy: str = "onbeat"
    """The policy that it runs."""
    symbolic: bool = False
    """More paths take it longer, so that its time says nothing."""


class _Noticed(BaseException):
    """A violation; no `except Exception` on the way stops it."""


def _notice(violation: Violation, scenario: Scenario) -> None:
    raise _Noticed(f"{violation.invariant}: {violation.message}")


def _until_noticed(run: Callable[[], object]) -> str | None:
    try:
        run()
    except _Noticed as noticed:
        return str(noticed)
    return None


# --- Theorems --------------------------------------------------------------------------------------------------------


def theorems() -> Iterator[MutantCheck]:
    """Yield the theorems for all sizes, under every built-in policy; and those about load balancing."""
    for policy in POLICIES:
        for theorem in THEOREMS:
            if theorem.for_all:
                yield _decided(theorem, policy)
    for theorem in balance.THEOREMS:
        yield _decided(theorem, "onbeat")


def _decided(theorem: Theorem, policy: str) -> MutantCheck:
    name = f"theorem {theorem.id}" + (f" under {policy}" if policy != "onbeat" else "")
    return MutantCheck(name, lambda: _theorem(theorem, POLICIES[policy]()), policy, symbolic=True)


def _theorem(theorem: Theorem, policy: Policy) -> str | None:
    """Decide a theorem as `decide` does, without looking for small numbers."""
    expected, met = theorem.expected(policy.name), False
    for path in explore(lambda numbers: theorem.run(numbers, policy)):
        if path.result.verdict is not None:
            message = rerun(theorem, policy, path.model())
            return None if expected == "refuted" else message
        met = met or path.result.met
    if expected == "refuted":
        return "not refuted any more"
    return None if met else "no path meets the premises"


# --- Scenarios -------------------------------------------------------------------------------------------------------


def scenarios() -> Iterator[MutantCheck]:
    """Yield the conformance suite."""
    for policy in POLICIES:
        for scenario in scenarios_for(policy):
            yield MutantCheck(f"scenario {scenario.name}", partial(_scenario, scenario), policy)


def _scenario(scenario: Scenario) -> str | None:
    plain = replay(scenario)
    if not plain.holds:
        return plain.complaints()[0]
    if scenario.config.policy != "onbeat":
        return None  # two runs compared would show what the older policies are known to violate
    compared = replay_runs(scenario, most=COMPARED_STEPS)
    return compared.complaints()[0] if compared.unexpected else None


# --- All sequences, random histories ---------------------------------------------------------------------------------


def searches() -> Iterator[MutantCheck]:
    """Yield the small worlds, explored as deep as a quick audit goes."""
    for scope in SCOPES:
        yield MutantCheck(f"search {scope.name}", partial(_search, scope))


def _search(scope: SmallWorld) -> str | None:
    def explore_levels() -> None:
        exploration = Exploration(scope, Scheduler, Policy(), _notice, most=20_000)
        for level in range(scope.depths[0]):
            exploration.level(last=level == scope.depths[0] - 1)

    return _until_noticed(explore_levels)


def histories() -> Iterator[MutantCheck]:
    """Yield random histories of fixed seeds."""
    for seed in SEEDS:
        yield MutantCheck(f"random histories, seed {seed}", partial(_histories, seed))


def _histories(seed: int) -> str | None:
    return _until_noticed(lambda: random_histories(Scheduler, Policy(), _notice, histories=HISTORIES, random_seed=seed))


# --- The step on symbolic states -------------------------------------------------------------------------------------


def sweeps() -> Iterator[MutantCheck]:
    """Yield the theorems about one shape, and the shapes of a quick sweep, small ones first."""
    for policy in POLICIES:
        for theorem in THEOREMS:
            if not theorem.for_all:
                yield _decided(theorem, policy)
    for shape in sorted(QUICK, key=lambda shape: shape.running + len(shape.waiting)):
        yield MutantCheck(f"sweep {shape}", partial(_sweep, shape), symbolic=True)


def _sweep(shape: Shape) -> str | None:
    policy = Policy()

    def one_path(context: Context) -> str | None:
        trio = run_trio(context, shape, policy)
        for invariant, _, check in CHECKS:
            violation = context.first(partial(check, trio))
            if violation is not None:
                return f"{invariant}: {violation.result}"
        return None

    return next((path.result for path in explore(one_path) if path.result is not None), None)
