"""Two runs from one state, and ranks brought to rest."""

import pytest

from onbeat_proofs.foreign.policies import policy_of, without_hold
from onbeat_proofs.play.drain import AT_REST, drain, folded
from onbeat_proofs.play.driver import narrowed
from onbeat_proofs.play.two_runs import Runs, replay_runs, violation_in
from onbeat_proofs.scenarios.operations import Add, Deliver, Op, Pause, RemoteDone, Repeat, Scenario, Schedule, flatten
from onbeat_reference import Scheduler
from onbeat_spec.config import Config
from onbeat_spec.policy import Policy
from onbeat_spec.records import Step
from tests.proofs.audit.broken import FlagIgnored, FlagInverted

STEP = Schedule(False)
HELD = (Add("a", 1, 5), STEP, Add("b", 1, 1))
"""A decode runs and one token of work waits: the policy as first published holds it."""


def found(*ops: Op, cls: type = Scheduler, policy: str = "onbeat", config: Config | None = None) -> dict[str, str]:
    driver = Runs(config or Config(), cls, policy=policy_of(policy)())
    for op in ops:
        driver.apply(op)
    return {violation.invariant: violation.message for violation in driver.violations}


def test_what_might_have_been_is_compared() -> None:
    message = "waiting b has one token of local work and got none; without the throttle it got it"
    # The step that is executed is not throttled, so nothing that happens is wrong.
    assert found(*HELD, STEP, policy="pr44558") == {"one-token-passes": message}
    assert found(*HELD, STEP) == {}


def test_comparing_changes_nothing() -> None:
    plain, compared = Runs(Config(), compares=False), Runs(Config())
    for op in (*HELD, Schedule(True), STEP, STEP):
        plain.apply(op)
        compared.apply(op)
    assert [turn.step.scheduled for turn in plain.history] == [turn.step.scheduled for turn in compared.history]
    assert compared.scheduler.num_steps == plain.scheduler.num_steps == 4
    assert (plain.tally.pairs, compared.tally.pairs) == (0, 4)


def test_a_step_without_the_throttle_is_that_of_a_scheduler_without_the_feature() -> None:
    assert "off-means-off" in found(Add("a", 1, 5), STEP, Add("b", 2, 1), STEP, cls=FlagInverted)
    assert without_hold(Policy()).may_hold(throttle=True, saturated=False, held_steps=0, max_hold_steps=9) is False
    assert Policy().may_hold(throttle=True, saturated=False, held_steps=0, max_hold_steps=9) is True


def test_the_clock_is_on_a_beat() -> None:
    class Late(Scheduler):
        """Not deterministic: its 13th call holds whatever the flag, and that is the third step's, by the clock."""

        calls = 0

        def schedule(self, throttle_prefills: bool = False) -> Step:
            Late.calls += 1
            return super().schedule(throttle_prefills or Late.calls == 13)

    config = Config(prefill_schedule_interval=2, data_parallel_size=2)
    clocked = (Add("a", 1, 9), Schedule(), Schedule(), Add("b", 5, 1), Schedule())
    assert "beat-equals-baseline" in found(*clocked, cls=Late, config=config)
    assert "beat-equals-baseline" not in found(*clocked, config=config)


def test_a_budget_holds_in_both_runs() -> None:
    config = Config(max_num_batched_tokens=8)
    assert narrowed(config, 9) is config
    assert narrowed(config, 0).max_num_batched_tokens == 0
    assert found(Add("a", 20, 2), Schedule(True, budget=3), Schedule(False, budget=0), config=config) == {}


def test_a_step_that_speaks_of_a_stranger() -> None:
    class Dreams(Scheduler):
        def schedule(self, throttle_prefills: bool = False) -> Step:
            step = super().schedule(throttle_prefills)
            step.held.append("nobody")
            return step

    assert "nobody" in found(STEP, cls=Dreams)["one-place"]


def test_a_crash_in_a_run_that_was_only_tried() -> None:
    class Touchy(Scheduler):
        def schedule(self, throttle_prefills: bool = False) -> Step:
            if throttle_prefills:
                raise ZeroDivisionError("not this flag")
            return super().schedule(throttle_prefills)

    assert "ZeroDivisionError: not this flag" in found(STEP, cls=Touchy)["no-crash"]


def test_a_scenario_with_two_runs() -> None:
    scenario = Scenario("held", config=Config(policy="pr44558"), steps=(*HELD, STEP))
    violation = violation_in(scenario, "one-token-passes")
    assert violation is not None
    assert violation.step == 1
    assert violation_in(scenario, "budget") is None
    assert violation_in(scenario, "one-token-passes", policy=Policy()) is None
    assert replay_runs(scenario, most=1).violations == []


def test_the_throttle_without_effect_is_told() -> None:
    driver = Runs(Config(), FlagIgnored)
    for op in (Add("a", 1, 5), STEP, Add("b", 2, 1), Schedule(True)):
        driver.apply(op)
    assert (driver.tally.pairs, driver.tally.effects) == (2, 0)
    assert driver.tally.counted()["off-means-off"] == 0


# --- At rest ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_a_rank_comes_to_rest(depth: int) -> None:
    driver = Runs(Config(async_depth=2 if depth == 2 else 1, block_size=2, num_blocks=6))
    for op in (Add("a", 5, 4), Add("b", 4, 3, remote_tokens=2), STEP, Pause("all"), Add("c", 9, 9), Add("d", 1, 1)):
        driver.apply(op)
    driver.apply(AT_REST)
    assert driver.violations == []
    assert not driver.scheduler.has_unfinished_requests()
    assert driver.scheduler.pool.free == 6


def test_who_is_stuck_is_named() -> None:
    class Deaf(Scheduler):
        def load_finished(self, request: object) -> None: ...

    ops = (Add("a", 4, 3, remote_tokens=2), Add("b", 4, 2), STEP, AT_REST)
    assert found(*ops, cls=Deaf)["progress"] == "a never ended, though nothing kept the rank from working"


def test_the_draining_written_down() -> None:
    driver = Runs(Config(async_depth=2))
    ops: list[Op] = []

    def apply(op: Op) -> None:
        ops.append(op)
        driver.apply(op)

    driver.apply(Add("a", 3, 7))
    drain(driver, apply)
    assert ops[:4] == [Schedule(), Schedule(), Deliver(1), Schedule()]
    short = folded(ops)
    assert len(short) < len(ops)
    assert [op for _, op in flatten(short)] == ops


def test_folding() -> None:
    one: Op = Schedule()
    other: Op = RemoteDone("a")
    assert folded([one, one]) == (one, one)
    assert folded([other, one, one, one, other]) == (other, Repeat(3, (one,)), other)
    assert folded([one, other] * 4 + [one]) == (Repeat(4, (one, other)), one)
    assert folded([]) == ()
