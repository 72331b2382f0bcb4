"""Making scenarios small."""

from dataclasses import replace
from time import perf_counter

import pytest

from onbeat_proofs.foreign.policies import policy_of
from onbeat_proofs.play.two_runs import replay_runs
from onbeat_proofs.scenarios.files import dump, load_text
from onbeat_proofs.scenarios.operations import (
    Abort,
    Add,
    Check,
    Expectation,
    Ineligible,
    Repeat,
    Scenario,
    Schedule,
)
from onbeat_proofs.scenarios.shrink import shrink
from onbeat_spec.config import Config
from onbeat_spec.errors import ScenarioError

NOISY = Scenario(
    name="noisy",
    invariants=("no-empty-step",),
    config=Config(policy="pr44558", block_size=3, num_blocks=40, max_num_seqs=7, enable_prefix_caching=True),
    steps=(
        Add("zeta", 9, 5, priority=2, prefix=("x", 6)),
        Add("noise", 20, 3, remote_tokens=7),
        Schedule(False, expect=Expectation(saturated=True)),
        Repeat(3, (Schedule(None),)),
        Check(Expectation(free_blocks=1)),
        Abort("noise"),
        Add("late", 11, 2),
        Ineligible("zeta", 4),
        Schedule(True),
        Schedule(True),
    ),
)


def violates(scenario: Scenario) -> bool:
    outcome = replay_runs(scenario, policy=policy_of(scenario.config.policy)())
    return any(violation.invariant == "no-empty-step" for violation in outcome.violations)


def test_a_violation_is_made_small() -> None:
    small = shrink(NOISY, violates)
    assert violates(small)
    assert small.config == Config(policy="pr44558")
    assert small.steps == (
        Add("a", 1, 2),
        Schedule(False),
        Add("b", 1, 1),
        Ineligible("a", 1),
        Schedule(True),
    )
    assert (small.name, small.invariants) == ("noisy", ("no-empty-step",))
    assert load_text(dump(small)) == [small]


def test_the_same_scenario_gives_the_same_result() -> None:
    assert shrink(NOISY, violates) == shrink(NOISY, violates)


def test_what_is_small_stays_as_it_is() -> None:
    small = shrink(NOISY, violates)
    assert shrink(small, violates) == small


def test_numbers_come_down_to_where_it_still_fails() -> None:
    scenario = Scenario("numbers", config=Config(num_blocks=77), steps=(Add("a", 100, 50), Schedule(), Schedule()))

    def fails(candidate: Scenario) -> bool:
        adds = [op for op in candidate.steps if isinstance(op, Add)]
        return bool(adds) and adds[0].prompt >= 37 and candidate.config.num_blocks in range(5, 78)

    small = shrink(scenario, fails)
    assert small.steps == (Add("a", 37, 1),)
    assert small.config == Config(num_blocks=5)


def test_a_scenario_that_cannot_be_run_does_not_count() -> None:
    scenario = Scenario("impossible", steps=(Add("a", 3), Schedule(), Abort("a"), Schedule()))

    def fails(candidate: Scenario) -> bool:
        known = {op.id for op in candidate.steps if isinstance(op, Add)}
        if any(op.id not in known for op in candidate.steps if isinstance(op, Abort)):
            raise ScenarioError("abort: no such request")
        return any(isinstance(op, Abort) for op in candidate.steps)

    assert shrink(scenario, fails).steps == (Add("a", 1, 1), Abort("a"))


def test_what_does_not_fail_is_refused() -> None:
    with pytest.raises(ValueError, match="noisy: it does not fail"):
        shrink(NOISY, lambda candidate: False)


def test_time_is_kept() -> None:
    long = replace(NOISY, steps=NOISY.steps * 200)

    def fails(candidate: Scenario) -> bool:
        until = perf_counter() + 0.01
        while perf_counter() < until:
            pass
        return len(candidate.steps) >= 3

    began = perf_counter()
    small = shrink(long, fails, seconds=0.3)
    assert perf_counter() - began < 3
    assert 3 <= len(small.steps) <= len(long.steps)
