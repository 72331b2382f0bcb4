"""Random histories."""

import re
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from onbeat_proofs.audit.histories import LEAST_OPERATIONS, random_histories
from onbeat_proofs.audit.stateful import machine_for
from onbeat_proofs.play.drain import AT_REST
from onbeat_proofs.play.tally import Tally
from onbeat_proofs.play.two_runs import replay_runs
from onbeat_proofs.scenarios.files import dump, load_text
from onbeat_proofs.scenarios.operations import Abort, Add, Op, Scenario, Schedule
from onbeat_reference import Scheduler
from onbeat_spec.policy import Policy
from onbeat_spec.records import Violation
from tests.proofs.audit.broken import AssertsLoading, EvictsOldest, LeaksOnAbort

Found = list[tuple[Violation, Scenario]]


def explore(cls: type, histories: int, seed: int = 0, tally: Tally | None = None) -> Found:
    found: Found = []

    def report(violation: Violation, scenario: Scenario) -> None:
        found.append((violation, scenario))

    random_histories(cls, Policy(), report, histories=histories, random_seed=seed, tally=tally)
    return found


def test_the_reference_holds_and_every_premise_is_met() -> None:
    tally = Tally()
    assert explore(Scheduler, 250, tally=tally) == []
    assert [id for id, count in tally.counted().items() if count == 0] == []


@pytest.mark.parametrize(
    ("cls", "invariant"),
    [(EvictsOldest, "oldest-finishes"), (LeaksOnAbort, "blocks-conserved"), (AssertsLoading, "no-crash")],
)
def test_faults_are_found_and_written_down(cls: type, invariant: str) -> None:
    found = explore(cls, 60)
    scenarios = [scenario for violation, scenario in found if violation.invariant == invariant]
    assert scenarios
    (again,) = load_text(dump(scenarios[0]))
    assert again == scenarios[0]
    assert invariant in {violation.invariant for violation in replay_runs(again, cls).violations}


class Traced(Scheduler):
    """Violates something at once, so that every history is reported."""

    def schedule(self, throttle_prefills: bool = False) -> object:  # type: ignore[override]
        raise AssertionError("traced")


def histories(seed: int) -> list[tuple[Op, ...]]:
    return [scenario.steps for _, scenario in explore(Traced, 30, seed)]


def test_a_seed_names_the_histories() -> None:
    assert histories(3) == histories(3)
    assert histories(3) != histories(4)


def test_a_clean_history_ends_at_rest() -> None:
    class Never(Scheduler):
        """Deaf to `load_finished`: some histories end with a request that waits for ever."""

        def load_finished(self, request: object) -> None: ...

    stuck = [
        scenario
        for violation, scenario in explore(Never, 150)
        if violation.invariant == "progress" and scenario.steps[-1] == AT_REST
    ]
    assert stuck
    assert all(any(isinstance(op, Add) and op.remote_tokens for op in scenario.steps) for scenario in stuck)


def test_hypothesis_drives_the_same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onbeat_proofs.audit.stateful.SHRINK_S", 60.0)  # a busy machine may need more than in earnest
    machine = machine_for(LeaksOnAbort)
    brief = settings(machine.TestCase.settings, max_examples=10, database=None, derandomize=True)
    run_state_machine_as_test(machine_for(Scheduler), settings=brief)
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(machine, settings=settings(brief, max_examples=300))
    message, _, text = str(caught.value).partition("\n\n")
    assert re.fullmatch(
        r"blocks-conserved: \d+ free and \d+ held blocks do not make \d+; the scenario, made small:", message
    )
    (scenario,) = load_text(text)
    assert [type(op) for op in scenario.steps] == [Add, Schedule, Abort]


def test_enough_is_enough() -> None:
    machine = random_histories(
        Scheduler, Policy(), lambda violation, scenario: None, histories=50, enough=lambda done: done == 7
    )
    assert machine.histories == 7
    assert machine.operations > 7
    assert machine.steps > 0


class FromTheFirstStep(Scheduler):
    """Violates an invariant in every step."""

    @property
    def saturated(self) -> bool:
        return True

    @saturated.setter
    def saturated(self, value: bool) -> None:
        pass


def test_a_violation_does_not_end_a_history() -> None:
    found: Found = []
    machine = random_histories(
        FromTheFirstStep, Policy(), lambda violation, scenario: found.append((violation, scenario)), histories=10
    )
    assert found
    assert machine.operations > 10 * LEAST_OPERATIONS / 2
    # What is reported ends with the operation that violates.
    for violation, scenario in found:
        violated = [
            {seen.invariant for seen in replay_runs(replace(scenario, steps=steps), FromTheFirstStep).violations}
            for steps in (scenario.steps, scenario.steps[:-1])
        ]
        assert violation.invariant in violated[0] - violated[1]
