"""What the stock classes break, seen on the real ones, and that ours do not."""

from itertools import pairwise

import pytest

from tests.engine.vllm.needs import needs_vllm

needs_vllm()

import vllm  # noqa: E402 - only where it is installed

from onbeat_engine.vllm.releases import release  # noqa: E402 - as above
from tests.engine.vllm.real import (  # noqa: E402 - as above
    AsyncScheduler,
    Engine,
    OnbeatAsyncScheduler,
    OnbeatScheduler,
    Options,
    Scheduler,
)

SERIES = release(vllm.__version__) or (0, 33)
BOTH = pytest.mark.parametrize("cls", [Scheduler, OnbeatScheduler])


def decoding(cls: type, options: Options, outputs: int = 20) -> Engine:
    """An engine in which `d` decodes."""
    engine = Engine(cls, options)
    engine.add("d", 4, outputs)
    engine.step()
    return engine


def flag(engine: Engine) -> bool:
    return bool(engine.scheduler.prefill_capacity_bound)


@BOTH
def test_a_resume_with_work_left_blocks_no_ready_full_resume(cls: type) -> None:
    engine = decoding(cls, Options(remote=True))
    engine.add("part", 12, remote=8)
    engine.add("full", 8, remote=8)
    engine.step(landed=("part", "full"))
    expected = {"d": 1} if cls is Scheduler else {"d": 1, "part": 4, "full": 1}
    assert engine.step(True) == expected
    assert engine.step(True) == ({"d": 1} if cls is Scheduler else {"d": 1, "part": 1, "full": 1})


@BOTH
def test_a_better_fresh_prefill_blocks_no_full_hit(cls: type) -> None:
    engine = Engine(cls, Options(scheduling="priority", caching=True))
    engine.add("d", 9, 20, prefix=9)
    engine.step()
    engine.add("fresh", 9, priority=0)
    engine.add("hit", 9, priority=3, prefix=9)
    assert engine.step(True) == ({"d": 1} if cls is Scheduler else {"d": 1, "hit": 1})
    assert next(each.request_id for each in engine.scheduler.waiting) == "fresh"


@BOTH
def test_a_better_fresh_prefill_blocks_no_ready_resume(cls: type) -> None:
    engine = decoding(cls, Options(scheduling="priority", remote=True))
    engine.add("part", 12, remote=8, priority=3)
    engine.step(landed=("part",))
    engine.add("fresh", 9, priority=0)
    assert engine.step(True) == ({"d": 1} if cls is Scheduler else {"d": 1, "part": 4})


@pytest.mark.parametrize("cls", [AsyncScheduler, OnbeatAsyncScheduler])
def test_a_finished_decode_justifies_no_hold(cls: type) -> None:
    engine = decoding(cls, Options(lookahead=True), outputs=2)
    engine.schedule()
    engine.add("fresh", 6)
    assert engine.schedule(True).num_scheduled_tokens == ({} if cls is AsyncScheduler else {"fresh": 6})


@BOTH
def test_a_ready_resume_left_out_of_budget_raises_the_flag(cls: type) -> None:
    engine = decoding(cls, Options(remote=True, tokens=6, seqs=4))
    engine.add("part", 14, remote=8)
    engine.add("full", 8, remote=8)
    engine.step(landed=("part", "full"))
    assert engine.step() == {"d": 1, "part": 5}
    assert flag(engine) is (cls is not Scheduler)


@BOTH
def test_pausing_new_requests_raises_no_flag(cls: type) -> None:
    engine = decoding(cls, Options())
    engine.add("fresh", 4)
    engine.pause("PAUSED_NEW")
    assert engine.step() == {"d": 1}
    assert flag(engine) is (cls is Scheduler and SERIES >= (0, 32))


@BOTH
def test_a_load_in_flight_beside_full_slots_raises_no_flag(cls: type) -> None:
    engine = Engine(cls, Options(remote=True, seqs=1))
    engine.add("loads", 8, remote=8)
    engine.step()
    engine.add("d", 4, 20)
    engine.step()
    assert engine.step() == {"d": 1}
    assert engine.loading == ["loads"]
    assert not flag(engine)


@BOTH
def test_a_hold_that_leaves_the_step_empty_is_lifted(cls: type) -> None:
    """The only decode is the newest, needs a block, and evicts itself, while a held chunk has room."""
    engine = Engine(cls, Options(block_size=2, num_blocks=10, tokens=6, seqs=4, threshold=4))
    engine.add("c", 12)
    engine.add("d", 2, 60)
    assert engine.step() == {"c": 4, "d": 2}
    steps = 0
    while (given := engine.step(True)) == {"d": 1}:
        steps += 1
    assert steps == 14
    assert given == ({} if cls is Scheduler else {"c": 4})
    assert [each.request_id for each in engine.scheduler.waiting] == ["d"]


@BOTH
def test_a_held_chunk_stays_a_victim_and_keeps_its_blocks_otherwise(cls: type) -> None:
    engine = Engine(cls, Options(block_size=2, num_blocks=10, tokens=6, seqs=4, threshold=4))
    engine.add("d", 2, 60)
    engine.add("c", 12)
    assert engine.step() == {"d": 2, "c": 4}
    held = engine.scheduler.kv_cache_manager.get_block_ids("c")
    while len(engine.scheduler.running) == 2:
        assert engine.scheduler.kv_cache_manager.get_block_ids("c") == held
        assert engine.step(True) == {"d": 1}
    assert [each.request_id for each in engine.scheduler.waiting] == ["c"]
    assert engine.scheduler.requests["d"].num_tokens == 18


@BOTH
def test_nobody_is_held_for_ever(cls: type) -> None:
    engine = decoding(cls, Options(), outputs=200)
    engine.add("fresh", 6)
    steps = 0
    while steps < 100 and engine.step(True) == {"d": 1}:
        steps += 1
    assert steps == (100 if cls is Scheduler else 64)


@BOTH
def test_a_chunk_with_one_token_left_is_never_held(cls: type) -> None:
    engine = Engine(cls, Options(tokens=8, seqs=4))
    engine.add("d", 2, 20)
    engine.step()
    engine.add("c", 8)
    assert engine.step() == {"d": 1, "c": 7}
    assert engine.step(True) == ({"d": 1} if cls is Scheduler else {"d": 1, "c": 1})


def test_a_resume_passes_the_local_clock_too() -> None:
    engine = decoding(OnbeatScheduler, Options(remote=True, interval=5))
    engine.add("part", 12, remote=8)
    engine.step(landed=("part",))
    assert engine.step() == {"d": 1, "part": 4}
    engine.add("fresh", 6)
    assert engine.step() == {"d": 1, "part": 1}


def test_a_failed_load_is_held_in_its_place() -> None:
    """It is fresh again, and waits on where it stood: before a better request that came for the other queue."""
    engine = decoding(OnbeatScheduler, Options(remote=True, scheduling="priority"))
    engine.add("fails", 12, remote=8, priority=3)
    engine.step(failed=("fails",))
    engine.add("fresh", 9, priority=0)
    assert engine.step(True) == {"d": 1}
    assert engine.scheduler.onbeat_turn.held == ["fails", "fresh"]
    assert [each.request_id for each in engine.scheduler.kv_holding_waiting] == ["fails"]
    assert [each.request_id for each in engine.scheduler.waiting] == ["fresh"]
    assert engine.step() == {"d": 1, "fails": 12, "fresh": 9}


def prefill_every_second_step(cls: type, interval: int, tokens: int) -> list[dict[str, int]]:
    """The tokens of each step; a fresh prompt comes in every second one, and once a long one."""
    engine = decoding(cls, Options(interval=interval, tokens=tokens), outputs=60)
    steps = []
    for number in range(24):
        if number % 2 == 0:
            engine.add(f"f{number}", 24 if number == 6 else 3, 1)
        steps.append(engine.step())
    return steps


@pytest.mark.parametrize("tokens", [16, 64], ids=["saturated", "never-saturated"])
@pytest.mark.parametrize("interval", [1, 2, 3, 5])
def test_the_local_clock_is_that_of_the_release_that_has_one(interval: int, tokens: int) -> None:
    ours, stock = (prefill_every_second_step(cls, interval, tokens) for cls in (OnbeatScheduler, Scheduler))
    if SERIES >= (0, 33) or interval == 1:
        assert ours == stock
    elif interval > 2:  # without a lock-step group these releases ignore the interval
        assert ours != stock
    if tokens == 64:
        prefills = [number for number, given in enumerate(ours) if len(given) > 1]
        assert len(prefills) >= 4
        assert all(later - earlier >= interval for earlier, later in pairwise(prefills))
