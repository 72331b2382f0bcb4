"""Group scenarios: the suite goes as it says, and what the checker finds goes as it was found."""

from pathlib import Path

import pytest

from onbeat_proofs.play.suite import suite_path
from onbeat_proofs.protocol.explore import explore
from onbeat_proofs.protocol.faults import FAULTS, Fault
from onbeat_proofs.protocol.replay import replay
from onbeat_proofs.protocol.scenario import GroupScenario, load, load_text, to_text
from onbeat_proofs.scenarios.files import load_path
from onbeat_spec.catalogue import GROUP_CATALOGUE
from onbeat_spec.errors import ScenarioError

SUITE = load(suite_path() / "group")
HEAD = "name: x\nconfig: {ranks: 2, sync: 2}\nsteps:\n"


@pytest.mark.parametrize("scenario", SUITE, ids=lambda scenario: scenario.name)
def test_the_suite(scenario: GroupScenario) -> None:
    outcome = replay(scenario)
    assert (outcome.violations, outcome.failures) == ([], [])
    assert outcome.right


def test_the_suite_has_every_case_of_the_protocol_and_exercises_every_invariant() -> None:
    assert {f"B{n}" for n in (73, 74, 76, 77, 78, 80, 81, 82)} <= {scenario.case for scenario in SUITE}
    # What only records show is no move of the protocol.
    moves = {id for id, entry in GROUP_CATALOGUE.items() if entry.by_proof}
    assert {invariant for scenario in SUITE for invariant in scenario.invariants} == moves
    assert len({scenario.name for scenario in SUITE}) == len(SUITE)


def test_scenarios_of_one_rank_are_read_without_them() -> None:
    assert not {scenario.name for scenario in load_path(suite_path())} & {scenario.name for scenario in SUITE}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_run_of_the_checker_violates_the_same_as_a_scenario(fault: Fault) -> None:
    (scenario,) = load_text(to_text(explore(fault.scope, fault.text), fault.says))
    assert scenario.violates == (fault.finds,)
    assert replay(scenario, fault.text).right


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.case not in ("B81", "B82")], ids=lambda f: f.name)
def test_and_nothing_without_the_fault(fault: Fault) -> None:
    (scenario,) = load_text(to_text(explore(fault.scope, fault.text), fault.says))
    outcome = replay(scenario)
    assert not outcome.violations
    assert not outcome.right


@pytest.mark.parametrize("case", ["B73", "B77", "B80", "B82"])
def test_the_scenario_of_a_case_tells_its_fault(case: str) -> None:
    fault = next(fault for fault in FAULTS if fault.case == case)
    outcomes = [replay(scenario, fault.text) for scenario in SUITE if scenario.case == case]
    assert any(not outcome.right for outcome in outcomes)


@pytest.mark.parametrize(
    ("steps", "failure"),
    [
        ("- deliver: {to: 0}", "there is no message for rank 0"),
        ("- turn:", "no rank takes a turn"),
        ("- request: {rank: 0, becomes: refuse}", "a request for rank 0: accept, not refuse"),
        ("- copy: {to: 0, number: 1}", "rank 0 has not read message 1"),
        ("- check: {phase: 1}", "phase is 0, not 1"),
        ("- check: {members: 1, busy: []}", "members is 2, not 1"),
        ('- check: {work: {"1": 1}}', "work is {'1': 0}, not {'1': 1}"),
        ("- {request: {rank: 0}}\n- deliver: {to: 0, message: wake}", "is request, not wake"),
        (
            "- pause: keep\n- deliver: {to: 0}\n- deliver: {to: 1}\n- turn: {kinds: [step, idle]}",
            "exchange, exchange, not",
        ),
        (
            '- pause: keep\n- deliver: {to: 0}\n- deliver: {to: 1}\n- turn: {finish: {"0": 1}}',
            "1 requests cannot end on rank 0 in a exchange",
        ),
    ],
)
def test_expectations_that_are_not_met(steps: str, failure: str) -> None:
    (scenario,) = load_text(HEAD + steps)
    outcome = replay(scenario)
    assert failure in outcome.failures[0][1]
    assert not outcome.right


def test_ranks_that_wait_for_an_idle_one_hang() -> None:
    (scenario,) = load_text(HEAD + "- request: {rank: 0}\n- deliver: {to: 0}\n- turn:")
    assert replay(scenario).violations == [
        (2, "collectives-align", "rank 0 waits in a collective that rank 1 has not entered")
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nsteps: []", "lacks the key config"),
        ("name: x\nconfig: {ranks: 2, sync: [1]}\nsteps: []", "has 1 items, and there are 2 ranks"),
        (HEAD + "- deliver: {to: 2}", "names rank 2; there are 2, from 0"),
        (HEAD + '- turn: {finish: {"5": 1}}', "names rank 5; there are 2, from 0"),
        (HEAD + "- die: 3", "names rank 3"),
        (HEAD + "- check: {busy: [4]}", "names rank 4"),
        (HEAD + "- die: 1\n  resume:", "a step is one operation"),
        (HEAD + "- hurry:", "there is no such key"),
    ],
)
def test_files_that_are_no_scenarios(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message.replace("[", r"\[")):
        load_text(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "- resume:\n- sleep:", "x: step 1: sleep needs a paused group"),
        (HEAD + "- remove: 0", "x: step 0: removing a rank needs a paused group"),
        ("name: x\nconfig: {ranks: 2, sync: [1, 2]}\nsteps: []", "x: ranks of a group differ"),
    ],
)
def test_what_the_front_end_refuses_is_told_with_its_place(text: str, message: str) -> None:
    (scenario,) = load_text(text)
    with pytest.raises(ScenarioError, match=message):
        replay(scenario)


def test_a_folder_without_group_scenarios(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="holds no group scenario"):
        load(tmp_path)
