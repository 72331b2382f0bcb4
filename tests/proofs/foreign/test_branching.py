"""Forks of a driver are independent of it, and of each other."""

import copy
import random
from collections.abc import Callable

import pytest

from onbeat_proofs.foreign.branching import branch
from onbeat_proofs.play.driver import Driver
from onbeat_proofs.scenarios.operations import (
    Abort,
    Add,
    Deliver,
    Ineligible,
    Op,
    Pause,
    RemoteDone,
    RemoteFailed,
    ResetPrefixCache,
    Resume,
    Schedule,
    Stop,
)
from onbeat_reference import Request, Scheduler
from onbeat_reference.observe import observe
from onbeat_spec.config import Config
from onbeat_spec.policy import Policy

SMALL = Config(block_size=2, num_blocks=12, max_num_batched_tokens=8, max_num_seqs=3)


def random_ops(rng: random.Random, config: Config, count: int) -> list[Op]:
    """Return operations that are possible in this order, from a driver with nothing in flight."""
    ops: list[Op] = [Add("a", 5, 6, prefix=("p", 4))]
    flights = 0
    while len(ops) < count:
        id = rng.choice("abc")
        if flights == config.async_depth:
            ops.append(Deliver(1))
            flights -= 1
        remote = rng.choice([0, 0, 3])
        mode = rng.choice(["async", "sync"])
        ops.append(
            rng.choice(
                [
                    *[Schedule(rng.choice([None, True, False]), rng.choice([None, 3]), {id: 1})] * 4,
                    *[Add(id, 5, 6, rng.randint(0, 1), ("p", 4), remote, mode)] * 2,  # type: ignore[arg-type]
                    *[Abort("a"), Stop("a"), RemoteDone("a"), RemoteFailed("a", 1), Ineligible("a", 1)],
                    *[Pause("new"), Resume(), Resume(), ResetPrefixCache()],
                ]
            )
        )
        flights += config.async_depth == 2 and isinstance(ops[-1], Schedule)
    return ops


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("monitor", [True, False])
def test_a_fork_goes_its_own_way(seed: int, monitor: bool) -> None:
    rng = random.Random(seed)
    config = Config(
        scheduling=rng.choice(["fcfs", "priority"]),
        block_size=2,
        num_blocks=8,
        max_num_batched_tokens=8,
        enable_prefix_caching=rng.random() < 0.5,
        num_draft_tokens=rng.choice([0, 2]),
        async_depth=rng.choice([1, 2]),
        prefill_schedule_interval=2,
    )
    ops = random_ops(rng, config, 40)
    straight = Driver(config, monitor=monitor)
    forked = Driver(config, monitor=monitor)
    for op in ops:
        straight.apply(op)
        past = forked
        before, flights = observe(past.scheduler), past.in_flight
        forked = past.fork()
        forked.apply(op)
        assert observe(past.scheduler) == before
        assert past.in_flight == flights
    straight.finish()
    forked.finish()
    assert observe(forked.scheduler) == observe(straight.scheduler)
    assert forked.violations == straight.violations == []
    assert [turn.delivered for turn in forked.history] == [turn.delivered for turn in straight.history]
    assert [turn.step.scheduled for turn in forked.history] == [turn.step.scheduled for turn in straight.history]


def test_a_fork_copies_what_a_subclass_adds() -> None:
    class Notes(Scheduler):
        def __init__(self, config: Config, policy: Policy | None = None) -> None:
            super().__init__(config, policy)
            self.seen: dict[Request, list[set[int]]] = {}
            self.hook = self.note

        def note(self, request: Request) -> None:
            self.seen.setdefault(request, []).append({len(self.seen)})

        def add_request(self, request: Request) -> None:
            super().add_request(request)
            self.hook(request)

    one = Driver(SMALL, Notes).run([Add("a", 3)])
    other = one.fork()
    other.apply(Add("b", 3))
    assert isinstance(one.scheduler, Notes)
    assert isinstance(other.scheduler, Notes)
    assert [request.id for request in one.scheduler.seen] == ["a"]
    assert [request.id for request in other.scheduler.seen] == ["a", "b"]
    assert next(iter(other.scheduler.seen)) is other.scheduler.waiting[0]


def test_a_fork_is_as_good_as_a_deep_copy() -> None:
    driver = Driver(SMALL).run([Add("a", 5, 6), Add("b", 5, 6), Schedule(), Schedule()])
    fork, deep = driver.fork(), copy.deepcopy(driver)
    for one in (fork, deep):
        one.run([Schedule(), Abort("a"), Schedule()])
    assert observe(fork.scheduler) == observe(deep.scheduler)
    assert len(driver.history) == 2


class Counter:
    """Counts calls; a wrapper of its method can be put on it."""

    def __init__(self) -> None:
        self.count = 0
        self.hook: Callable[[], int] = self.step

    def step(self) -> int:
        self.count += 1
        return self.count


def test_a_wrapper_is_that_of_the_copy() -> None:
    one = Counter()
    step = one.step
    one.hook = lambda: 10 * step()
    other = branch(one, {})
    assert [other.hook(), other.hook()] == [10, 20]
    assert (one.count, other.count) == (0, 2)


def test_a_bound_method_is_that_of_the_copy() -> None:
    one = Counter()
    other = branch(one, {})
    assert other.hook() == 1
    assert (one.count, other.count) == (0, 1)


def test_a_function_that_remembers_nothing_is_shared() -> None:
    size = 3
    value = [lambda: size]
    assert branch(value, {})[0] is value[0]
