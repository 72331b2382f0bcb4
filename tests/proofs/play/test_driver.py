"""The driver: what it does with a scheduler, and what it sees a wrong one do."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from onbeat_proofs.play.driver import Driver
from onbeat_proofs.scenarios.operations import (
    Abort,
    Add,
    Deliver,
    Ineligible,
    Op,
    RemoteDone,
    ResetPrefixCache,
    Schedule,
    Stop,
)
from onbeat_reference import Outputs, Request, Scheduler
from onbeat_spec.config import Config
from onbeat_spec.errors import NotAScheduler, ScenarioError
from onbeat_spec.policy import Policy
from onbeat_spec.records import Step

SMALL = Config(block_size=2, num_blocks=12, max_num_batched_tokens=8, max_num_seqs=3)


def driven(config: Config, *ops: Op, factory: Callable[..., Scheduler] = Scheduler, monitor: bool = True) -> Driver:
    return Driver(config, factory, monitor=monitor).run(ops)


def scheduled(driver: Driver) -> list[dict[str, int]]:
    return [turn.step.scheduled for turn in driver.history]


# --- The model and the clients ---------------------------------------------------------------------------------------


def test_outputs_are_a_function_of_request_and_position() -> None:
    once, again = (driven(SMALL, Add("a", 3, 4), Add("b", 3, 4), *[Schedule()] * 5) for _ in range(2))
    tokens = [turn.delivered for turn in once.history]
    assert tokens == [turn.delivered for turn in again.history]
    delivered = [token for turn in tokens for row in turn.values() for token in row]
    assert len(delivered) == len(set(delivered)) == 8
    assert not once.violations


def test_a_scripted_output_is_sampled_first() -> None:
    driver = driven(SMALL, Add("a", 3, 4, output=(7, 7)), *[Schedule()] * 4)
    tokens = [turn.delivered["a"][0] for turn in driver.history]
    assert tokens[:2] == [7, 7]
    assert tokens[2] != tokens[3]
    assert not driver.violations


def test_prefixes_of_one_name_are_the_same_tokens_and_nothing_else_is() -> None:
    ops = [Add("a", 6, prefix=("p", 4)), Add("b", 6, prefix=("p", 4)), Add("c", 6, prefix=("q", 4)), Add("d", 6)]
    driver = driven(SMALL, *ops)
    prompts = {id: tracks[0].request.tokens for id, tracks in driver.tracks.items()}
    assert prompts["a"][:4] == prompts["b"][:4]
    everything = [token for prompt in prompts.values() for token in prompt]
    assert len(everything) - len(set(everything)) == 4


def test_a_stop_token_is_the_next_one_delivered() -> None:
    driver = driven(SMALL, Add("a", 3, 4), Schedule(), Stop("a"), Schedule())
    assert driver.tracks["a"][0].request.finish_reason is not None
    assert driver.tracks["a"][0].request.finish_reason.value == "stop"
    assert not driver.violations


def test_a_budget_binds_one_step_only() -> None:
    driver = driven(SMALL, Add("a", 8, 4), Schedule(budget=0), Schedule(budget=3), Schedule(budget=100), Schedule())
    assert scheduled(driver) == [{}, {"a": 3}, {"a": 5}, {"a": 1}]
    assert driver.scheduler.config is SMALL
    assert not driver.violations


def test_the_clock_decides_where_no_flag_is_given() -> None:
    config = Config(prefill_schedule_interval=3, data_parallel_size=2)
    driver = driven(config, Add("d", 4, 50), *[Schedule()] * 4)
    assert [turn.step.throttle for turn in driver.history] == [False, True, True, False]
    driver.run([Abort("d"), Add("e", 4, 50), *[Schedule()] * 2])
    assert [turn.step.throttle for turn in driver.history[4:]] == [False, True], "a new wave begins on a beat"


def test_an_abort_means_an_instance() -> None:
    driver = driven(SMALL, Add("x", 3), Abort("x"), Add("x", 3), Abort("x", 0), Schedule())
    assert scheduled(driver) == [{"x": 3}]
    assert driver.run([Abort("x"), Abort("x")]).scheduler.requests == {}
    assert not driver.violations


def test_operations_on_a_refused_request_do_nothing() -> None:
    driver = driven(SMALL, Add("x", 99), Abort("x"), Abort("x", 0), Stop("x"), RemoteDone("x"), Ineligible("x", 2))
    assert driver.refused == ["x"]
    assert not driver.violations


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((Abort("x"),), "Abort: no request 'x' has been added before"),
        ((Add("x", 3), Abort("x", 1)), "Abort: instance 1 of 'x'"),
        ((Schedule(), Schedule(), Schedule()), "2 steps are in flight and async_depth is 2; deliver first"),
        ((Schedule(), Deliver(2)), "deliver: 2 steps, and 1 are in flight"),
    ],
)
def test_what_no_scheduler_could_do_is_an_error_of_the_scenario(ops: Sequence[Op], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        driven(Config(async_depth=2), *ops)


def test_rejected_drafts_move_what_is_in_flight_behind_them() -> None:
    config = Config(num_draft_tokens=2, async_depth=2)
    ops: list[Op] = [Add("a", 5, 9), Schedule(), Deliver(1), Schedule(accept={"a": 1}), Schedule(), Deliver(2)]
    driver = driven(config, *ops, monitor=False)
    assert [len(turn.delivered["a"]) for turn in driver.history] == [1, 2, 1]
    assert not driver.violations


# --- Wrong schedulers ------------------------------------------------------------------------------------------------


class Loses(Scheduler):
    """Drops the tokens of every third step."""

    def update(
        self, step: Step, sampled: Mapping[str, Sequence[int]], drafts: Mapping[str, int] | None = None
    ) -> Outputs:
        outputs = super().update(step, sampled, drafts)
        return Outputs({}, outputs.finished) if step.index % 3 == 2 else outputs


class Repeats(Scheduler):
    """Forgets that a preempted request has a token in flight (case B40)."""

    def reset_prefix_cache(self) -> None:
        super().reset_prefix_cache()
        for request in self.waiting:
            request.eligible_at = 0


class Lingers(Scheduler):
    """Never ends a request by its length."""

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        request.limit += 1


class Crashes(Scheduler):
    """Cannot take a load that ended late (case B65)."""

    def load_finished(self, request: Request) -> None:
        if request not in self.parked:
            raise ValueError("not\nloading")
        super().load_finished(request)


class Invents(Scheduler):
    """Schedules somebody who is not there."""

    def schedule(self, throttle_prefills: bool = False) -> Step:
        step = super().schedule(throttle_prefills)
        step.scheduled["ghost"] = 1
        return step


class Twins(Scheduler):
    """Takes an id that is live (case B51)."""

    def add_request(self, request: Request) -> None:
        self.requests.pop(request.id, None)
        super().add_request(request)


@pytest.mark.parametrize("monitor", [True, False])
@pytest.mark.parametrize(
    ("factory", "config", "ops", "invariant"),
    [
        (Loses, SMALL, [Add("a", 3, 9), *[Schedule()] * 4], "exactly-once"),
        (
            Repeats,
            Config(async_depth=2),
            [Add("a", 3, 9), Schedule(), Deliver(1), Schedule(), ResetPrefixCache(), Schedule(), Deliver(2)],
            "exactly-once",
        ),
        (Lingers, SMALL, [Add("a", 3, 1), Schedule()], "exactly-once"),
        (Crashes, SMALL, [Add("a", 3), RemoteDone("a"), Schedule()], "no-crash"),
        (Invents, SMALL, [Add("a", 3), Schedule()], "one-place"),
        (Twins, SMALL, [Add("a", 3), Add("a", 3)], "one-place"),
    ],
)
def test_a_wrong_scheduler_is_seen(
    factory: Callable[..., Scheduler], config: Config, ops: Sequence[Op], invariant: str, monitor: bool
) -> None:
    driver = driven(config, *ops, factory=factory, monitor=monitor)
    assert invariant in {violation.invariant for violation in driver.violations}


def test_a_crash_ends_the_run_and_says_where() -> None:
    driver = driven(SMALL, Add("a", 3), RemoteDone("a"), Schedule(), factory=Crashes)
    assert driver.ended
    assert not driver.history
    (violation,) = driver.violations
    assert violation.message.startswith("ValueError: not loading at ")
    assert "test_driver.py:" in violation.message


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda config, policy: object(), "object has no add_request, abort, schedule"),
        (lambda config: None, r"cannot be made from \(config, policy\): TypeError"),
        (type("Mute", (Scheduler,), {"schedule": lambda self, flag: None}), r"schedule\(\) returned a NoneType"),
        (type("Deaf", (Scheduler,), {"update": lambda self, *args: {}}), r"update\(\) returned a dict"),
    ],
)
def test_what_cannot_be_driven_is_no_scheduler(factory: Callable[..., Scheduler], message: str) -> None:
    with pytest.raises(NotAScheduler, match=message):
        driven(SMALL, Add("a", 3), Schedule(), factory=factory)


def test_the_factory_gets_the_policy() -> None:
    class Mine(Policy):
        name = "mine"

    policy = Mine()
    given, named = Driver(SMALL, policy=policy).scheduler, Driver(Config(policy="pr44558")).scheduler
    assert isinstance(given, Scheduler)
    assert isinstance(named, Scheduler)
    assert given.policy is policy
    assert type(named.policy).__name__ == "PullRequest44558"
