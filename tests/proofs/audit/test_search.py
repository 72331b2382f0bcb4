"""Searching small worlds to their ends."""

from dataclasses import replace

import pytest

from onbeat_proofs.audit import fingerprint
from onbeat_proofs.audit.search import Exploration
from onbeat_proofs.audit.worlds import SCOPES, SMALL, SmallWorld
from onbeat_proofs.foreign.policies import policy_of
from onbeat_proofs.play.drain import AT_REST
from onbeat_proofs.play.letters import abort, add, schedule
from onbeat_proofs.play.two_runs import Runs, replay_runs
from onbeat_proofs.scenarios.operations import Abort, Add, Op, RemoteDone, Scenario, Schedule
from onbeat_reference import Request, Scheduler
from onbeat_spec.records import Violation
from tests.proofs.audit.broken import FreedTwice, HolderStuck, NeverPromoted

TINY = SmallWorld(
    "tiny",
    "",
    replace(SMALL, num_blocks=3, max_num_seqs=2),
    (schedule(False), schedule(True), add(Add("", 3, 2), 2), add(Add("", 1, 2), 2), abort(0)),
    (4, 4, 4),
)
SCOPE = {scope.name: scope for scope in SCOPES}

Found = dict[str, tuple[Violation, Scenario]]


def explore(
    scope: SmallWorld,
    depth: int,
    cls: type = Scheduler,
    *,
    policy: str = "onbeat",
    most: int = 100_000,
    drains: int = 50,
) -> tuple[Exploration, Found]:
    found: Found = {}
    exploration = Exploration(
        replace(scope, config=replace(scope.config, policy=policy)),
        cls,
        policy_of(policy)(),
        lambda violation, scenario: found.setdefault(violation.invariant, (violation, scenario)),
        most=most,
        drains=drains,
    )
    for level in range(depth):
        exploration.level(last=level == depth - 1)
    return exploration, found


# --- What is covered -------------------------------------------------------------------------------------------------


def test_the_reference_holds() -> None:
    for scope in SCOPES:
        _, found = explore(scope, 4)
        assert found == {}, scope.name


def sequences(driver: Runs, depth: int) -> int:
    """Count sequences the slow way: execute every one of them."""
    if depth == 0:
        return 1
    total = 0
    for letter in TINY.letters:
        op = letter(driver)
        if op is not None:
            child = driver.fork()
            child.apply(op)
            total += sequences(child, depth - 1)
    return total


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_no_sequence_is_left_out(depth: int) -> None:
    explored = explore(TINY, depth)[0].explored
    assert explored.sequences == sequences(Runs(TINY.config, compares=False), depth)
    assert (explored.depth, explored.complete, explored.closed) == (depth, True, False)
    assert depth < 5 or explored.operations < explored.sequences / 2


@pytest.mark.parametrize("name", SCOPE)
def test_states_that_differ_in_names_have_the_same_future(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is merged by shape covers as many sequences, and meets the same premises, as what is told apart."""
    depth = 4
    merged = explore(SCOPE[name], depth, drains=0)[0]
    monkeypatch.setattr(fingerprint, "_named", lambda cls: fingerprint.NUMBERS)
    apart = explore(SCOPE[name], depth, drains=0)[0]
    assert merged.explored.sequences == apart.explored.sequences
    assert merged.explored.states < apart.explored.states
    met, met_apart = merged.tally.counted(), apart.tally.counted()
    assert {id for id in met if met[id]} == {id for id in met if met_apart[id]}


def test_a_world_may_close() -> None:
    explored = explore(TINY, 40)[0].explored
    assert explored.closed
    assert explored.depth < 40
    again = explore(TINY, explored.depth + 5)[0].explored
    assert again.states == explored.states


def test_a_limit_is_told() -> None:
    explored = explore(TINY, 6, most=100)[0].explored
    assert not explored.complete
    assert not explored.closed
    assert explored.depth < 6
    assert 100 <= explored.operations < 110


# --- What is found ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "invariants"),
    [
        ("pr44558", {"no-empty-step", "no-decode-no-hold", "one-token-passes", "flag-means-backlog"}),
        ("local-work", {"no-empty-step", "no-decode-no-hold", "flag-means-backlog", "resume-bypasses"}),
    ],
)
def test_earlier_policies_are_refuted(policy: str, invariants: set[str]) -> None:
    found: Found = {}
    for name, depth in (("core", 5), ("remote", 6), ("ahead", 5), ("control", 5)):
        found |= explore(SCOPE[name], depth, policy=policy, drains=0)[1]
    assert invariants <= found.keys()
    for invariant, (_, scenario) in found.items():
        outcome = replay_runs(scenario, policy=policy_of(policy)())
        assert invariant in {violation.invariant for violation in outcome.violations}


def test_the_first_found_is_a_shortest() -> None:
    scope = SCOPE["core"]
    _, found = explore(scope, 5, policy="pr44558", drains=0)
    length = len(found["one-token-passes"][1].steps)
    assert "one-token-passes" not in explore(scope, length - 1, policy="pr44558", drains=0)[1]


def test_state_of_its_own_is_never_merged() -> None:
    """FreedTwice remembers what it owes; states that differ only in that must stay apart."""
    _, found = explore(SCOPE["remote"], 4, FreedTwice)
    violation, scenario = found["blocks-conserved"]
    assert "free and" in violation.message
    assert [type(op) for op in scenario.steps] == [Add, Schedule, Abort, RemoteDone]


class CountsSteps(Scheduler):
    """Admits nobody in every third step: two states that differ in the step's number are not the same."""

    def _has_room(self, request: Request, needed: int, slots: int, blocks: int) -> bool:
        return self.num_steps % 3 != 2 and super()._has_room(request, needed, slots, blocks)


class Unpicklable(Scheduler):
    def __init__(self, config: object, policy: object = None) -> None:
        super().__init__(config, policy)  # type: ignore[arg-type]
        self.hook = lambda: None


@pytest.mark.parametrize("cls", [CountsSteps, Unpicklable, FreedTwice])
def test_what_may_matter_keeps_states_apart(cls: type) -> None:
    plain, own = explore(TINY, 5)[0].explored, explore(TINY, 5, cls)[0].explored
    assert own.states > plain.states


@pytest.mark.parametrize("cls", [HolderStuck, NeverPromoted])
def test_who_cannot_finish_is_stuck(cls: type) -> None:
    scope = SCOPE["remote"]
    _, found = explore(replace(scope, config=replace(scope.config, remote_load_timeout=0)), 5, cls)
    violation, scenario = found["progress"]
    assert "never ended" in violation.message or "did nothing though work is there" in violation.message
    assert isinstance(scenario.steps[-1], Schedule) or scenario.steps[-1] == AT_REST


# --- Fingerprints ----------------------------------------------------------------------------------------------------


def state_after(*ops: Op) -> bytes:
    driver = Runs(TINY.config, compares=False)
    tell = fingerprint.fingerprint_for(driver)
    for op in ops:
        driver.apply(op)
    return tell(driver)


STEP = Schedule(False)


def test_names_do_not_count() -> None:
    assert state_after(Add("a", 3, 2), STEP) == state_after(Add("z", 3, 2), STEP)
    assert state_after(Add("a", 3, 2), Abort("a"), STEP, Add("b", 1, 2)) == state_after(STEP, Add("a", 1, 2))


def test_what_differs_is_told_apart() -> None:
    states = [
        state_after(Add("a", 3, 2)),
        state_after(Add("a", 3, 3)),
        state_after(Add("a", 3, 2), STEP),
        state_after(Add("a", 3, 2), Schedule(None), STEP),
        state_after(Add("a", 3, 2), Add("b", 1, 2)),
        state_after(Add("b", 1, 2), Add("a", 3, 2)),
        state_after(Add("a", 3, 2, remote_tokens=2)),
        state_after(Add("a", 3, 2, remote_tokens=2), STEP),
    ]
    assert len(set(states)) == len(states)
