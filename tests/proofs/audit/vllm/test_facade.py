"""A vLLM scheduler through the interface of the reference: what is read off it."""

import pytest

from onbeat_proofs.foreign.branching import branch
from onbeat_proofs.play.driver import Driver
from onbeat_proofs.scenarios.operations import Add, Deliver, Op, RemoteDone, RemoteFailed, Schedule
from onbeat_spec.config import Config
from onbeat_spec.records import Place, Step

pytest.importorskip("vllm", reason="vLLM is not installed here; make vllm-test VERSION=0.33.0 runs this with it")

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from onbeat_proofs.audit.vllm.facade import VllmScheduler

SMALL = Config(block_size=2, num_blocks=5, max_num_batched_tokens=4, max_num_seqs=2, max_model_len=12)
ON, OFF = Schedule(throttle=True), Schedule(throttle=False)


def driven(*ops: Op, config: Config = SMALL, cls: type = Scheduler) -> Driver:
    """A driver after some operations."""
    driver = Driver(config, lambda config, policy: VllmScheduler(cls, config))
    for op in ops:
        driver.apply(op)
    return driver


def facade(driver: Driver) -> VllmScheduler:
    assert isinstance(driver.scheduler, VllmScheduler)
    return driver.scheduler


def last(driver: Driver) -> Step:
    """The latest step."""
    return driver.history[-1].step


def test_a_step_is_described() -> None:
    driver = driven(Add("a", 3, 3), OFF, Add("b", 3, 2), ON)
    step = last(driver)
    assert (step.index, step.throttle, step.hold, step.wrote_flag) == (1, True, True, False)
    assert (step.scheduled, step.held, step.admitted) == ({"a": 1}, ["b"], [])
    driver.apply(OFF)
    step = last(driver)
    assert (step.scheduled, step.admitted, step.prefill) == ({"a": 1, "b": 3}, ["b"], True)
    assert (step.hold, step.wrote_flag, step.saturated, step.budget) == (False, True, False, 0)


def test_the_flag_is_seen_to_be_written_also_if_it_stays() -> None:
    driver = driven(Add("a", 4, 2), Add("b", 3, 2), OFF)
    assert (last(driver).wrote_flag, driver.scheduler.saturated) == (True, True)
    driver.apply(OFF)
    assert (last(driver).wrote_flag, driver.scheduler.saturated) == (True, False)


def test_an_eviction_names_its_cause_and_what_it_brought() -> None:
    config = Config(block_size=1, num_blocks=4, max_num_batched_tokens=8, max_num_seqs=2, max_model_len=12)
    driver = driven(Add("a", 2, 4), Add("b", 2, 4), OFF, OFF, config=config)
    (eviction,) = last(driver).evictions
    assert eviction == ("b", "a", 2)
    assert driver.tracks["b"][-1].request.place is Place.WAITING
    assert driver.tracks["b"][-1].request.num_blocks == 0


def test_a_remote_load_parks_lands_and_resumes() -> None:
    driver = driven(Add("a", 3, 2, remote_tokens=2), OFF)
    request = driver.tracks["a"][-1].request
    assert (last(driver).loading, request.place, request.external) == (["a"], Place.PARKED, 2)
    driver.apply(RemoteDone("a"))
    assert (request.place, request.num_blocks) == (Place.WAITING, 1)
    driver.apply(OFF)
    assert (last(driver).resumed, last(driver).scheduled) == (["a"], {"a": 1})


def test_a_load_that_failed_leaves_what_is_valid() -> None:
    driver = driven(Add("a", 5, 2, remote_tokens=4), OFF, RemoteFailed("a", 1))
    request = driver.tracks["a"][-1].request
    assert (request.place, request.num_computed, request.external) == (Place.WAITING, 2, 2)


def test_a_load_within_a_step_is_external() -> None:
    driver = driven(Add("a", 5, 2, remote_tokens=4, remote_mode="sync"), OFF)
    assert last(driver).scheduled == {"a": 1}
    assert driver.tracks["a"][-1].request.external == 4


def test_steps_ahead_of_their_outputs() -> None:
    config = Config(block_size=2, num_blocks=8, max_num_batched_tokens=4, max_num_seqs=2, async_depth=2)
    driver = driven(Add("a", 3, 3), OFF, OFF, config=config, cls=AsyncScheduler)
    request = driver.tracks["a"][-1].request
    assert (driver.in_flight, request.num_placeholders, request.num_tokens) == (2, 2, 3)
    driver.apply(Deliver(2))
    assert (request.num_placeholders, request.num_tokens) == (0, 5)


def test_a_branch_is_independent() -> None:
    driver = driven(Add("a", 3, 3), OFF, Add("b", 3, 2))
    twin = branch(driver.scheduler, {})
    twin.schedule(False)
    assert len(twin.running) == 2
    assert len(driver.scheduler.running) == 1
    assert driver.scheduler.pool.free == 3


def test_equal_states_have_equal_shapes_whatever_their_names() -> None:
    one = driven(Add("a", 3, 3), OFF, Add("b", 3, 2))
    other = driven(Add("x", 1, 1), OFF, Add("y", 3, 3), OFF, Add("z", 3, 2))
    names = [dict(zip(driver.scheduler.requests, range(9), strict=False)) for driver in (one, other)]
    assert facade(one).shape(names[0]) == facade(other).shape(names[1])
    one.apply(ON)
    other.apply(OFF)
    assert facade(one).shape(names[0]) != facade(other).shape(names[1])


def test_functions_that_a_class_put_on_its_objects_stay() -> None:
    driver = driven(Add("a", 3, 3))
    manager = facade(driver).real.kv_cache_manager
    usual, calls = manager.allocate_slots, []

    def own(request: object, *args: object, **kwargs: object) -> object:
        calls.append(request)
        return usual(request, *args, **kwargs)

    manager.allocate_slots = own
    driver.apply(OFF)
    driver.apply(OFF)
    assert vars(manager)["allocate_slots"] is own
    assert len(calls) == 2
