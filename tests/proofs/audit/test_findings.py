"""A violation is made small, and the run that shows it ends with the step that violates."""

import pytest

from onbeat_proofs.audit import findings
from onbeat_proofs.audit.adapters import ReferenceAdapter
from onbeat_proofs.audit.inherited import ENOUGH, EVERY, Inherited
from onbeat_proofs.play.two_runs import Runs, replay_runs
from onbeat_proofs.scenarios.operations import Abort, Add, Deliver, Scenario, Schedule
from onbeat_reference import Scheduler
from onbeat_spec.config import Config
from onbeat_spec.policy import POLICIES
from tests.proofs.audit.broken import OneTooMany

IDLE = (Schedule(throttle=False),) * 3
ADDED = (Add("a", prompt=3, max_tokens=2), Add("b", prompt=3, max_tokens=2))
CONFIG = Config(max_num_seqs=1)
LATE = Scenario("late", config=CONFIG, steps=(*IDLE, *ADDED, *IDLE))
EARLY = Scenario("early", config=CONFIG, steps=LATE.steps[3:])


def test_what_follows_the_violation_is_cut_even_if_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made small, it is shown by an earlier step than before; a pytest file asks after the last."""
    policy = POLICIES["local-work"]()
    smallest = findings.Smallest(ReferenceAdapter(), OneTooMany, policy, name="over", base=None, seconds=0.0)
    (first, *_) = replay_runs(LATE, smallest.factory, policy, expects=False).violations
    monkeypatch.setattr(findings, "shrink", lambda *_: EARLY)
    finding = smallest.finding(first, LATE, "search")
    assert (finding.invariant, finding.step) == (first.invariant, 0)
    assert finding.scenario.steps == EARLY.steps[:3]


def smallest(base: type | None = None) -> findings.Smallest:
    policy = POLICIES["onbeat"]()
    return findings.Smallest(ReferenceAdapter(), OneTooMany, policy, name="over", base=base, seconds=0.5)


def test_inherited_is_what_the_same_scenario_violates_on_the_base() -> None:
    key = "slots", "# requests hold a slot"
    right, same = Inherited(Scheduler, smallest(), 60.0), Inherited(OneTooMany, smallest(), 60.0)
    assert not right.sets_apart(key, EARLY)
    assert same.sets_apart(key, EARLY)
    # Of the same kind, and in a run in which the base violates nothing: it is the class's own.
    assert not same.sets_apart(key, Scenario("one", config=CONFIG, steps=(ADDED[0], Schedule())))
    assert (same.same, same.untried) == ({"slots": 1}, {})


def test_what_was_not_tried_on_the_base_is_counted() -> None:
    key = "slots", "# requests hold a slot"
    late = Inherited(OneTooMany, smallest(), 0.0)
    assert late.sets_apart(key, EARLY)
    assert (late.same, late.untried) == ({}, {"slots": 1})
    many = Inherited(OneTooMany, smallest(), 60.0)
    for _ in range(ENOUGH + EVERY):
        assert many.sets_apart(key, EARLY)
    assert many.same["slots"] < ENOUGH + EVERY
    assert many.same["slots"] + many.untried["slots"] == ENOUGH + EVERY


def test_a_scenario_that_is_impossible_on_the_base_is_not_violated_there() -> None:
    """A base may go another way, and come to an operation that means nothing there."""
    scenario = Scenario("impossible", config=CONFIG, steps=(*ADDED, Deliver(1), Abort("a"), Schedule()))
    assert not smallest().violates(scenario, "slots", OneTooMany)


def test_only_the_latest_steps_are_compared_if_they_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    real = Runs._compare_runs

    def counted(driver: Runs, by_clock: bool, budget: int | None) -> None:
        compared.append(len(driver.history))
        real(driver, by_clock, budget)

    monkeypatch.setattr(Runs, "_compare_runs", counted)
    assert smallest().shows(
        LATE, ("slots", findings.kind_of("2 requests hold a slot (2 run); max_num_seqs is 1", LATE)), 0
    )
    assert compared == []
    assert smallest().shows(LATE, ("no-crash", ""), 2) is None
    assert compared == [4, 5]
