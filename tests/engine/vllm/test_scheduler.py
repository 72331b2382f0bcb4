"""The real classes on random histories: equal to stock where nothing is throttled, and held to the invariants."""

import copy
from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.engine.vllm.needs import needs_vllm

needs_vllm()

from onbeat_engine.vllm.releases import LOGGER  # noqa: E402 - only where vLLM is installed
from onbeat_engine.vllm.watch import FATAL, MONITOR, STOCKS_OWN, STOCKS_OWN_UNHELD, Watch  # noqa: E402 - as above
from onbeat_spec.errors import InvariantViolated  # noqa: E402 - as above
from onbeat_spec.invariants import RUNS_PREDICATES  # noqa: E402 - as above
from onbeat_spec.policy import Policy  # noqa: E402 - as above
from onbeat_spec.records import Facts  # noqa: E402 - as above
from tests.engine.vllm.histories import apply, operation, options  # noqa: E402 - as above
from tests.engine.vllm.real import (  # noqa: E402 - as above
    AsyncScheduler,
    Engine,
    OnbeatAsyncScheduler,
    OnbeatScheduler,
    Options,
    Scheduler,
    books,
    build,
    plain,
)

SEEDS = 40
STEPS = 60


class Keeper(Watch):
    """Keeps the last step's facts, and hides no error of its own."""

    facts: Facts

    def _evaluate(self, scheduler: Any, facts: Facts) -> Any:
        self.facts = facts
        return super()._evaluate(scheduler, facts)

    def _give_up(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize(
    ("stock", "ours"), [(Scheduler, OnbeatScheduler), (AsyncScheduler, OnbeatAsyncScheduler)], ids=["sync", "async"]
)
def test_without_the_throttle_the_step_is_the_stock_one(stock: type, ours: type) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        random = Random(seed)
        chosen = options(random, lookahead=stock is AsyncScheduler)
        left, right = Engine(stock, chosen), Engine(ours, chosen)
        for number in range(STEPS):
            what = operation(random, left, throttle=0)
            one, other = apply(left, what), apply(right, what)
            assert plain(one) == plain(other), f"seed {seed}, operation {number}: {what}"
            assert books(left.scheduler) == books(right.scheduler), f"seed {seed}, operation {number}: {what}"
            if chosen.remote:
                assert left.scheduler.connector.looked_up == right.scheduler.connector.looked_up
            seen[what[0]] += 1
            if what[0] == "schedule":
                seen["preempted"] += len(one.preempted_req_ids)
                seen["cached"] += any(new.num_computed_tokens for new in one.scheduled_new_reqs)
                seen["loading"] += bool(left.loading)
                seen["priority"] += chosen.scheduling == "priority"
    met = ("schedule", "deliver", "abort", "pause", "preempted", "cached", "loading", "priority")
    assert all(seen[each] >= 10 for each in met), seen


def within_the_step(engine: Engine, verdict: str) -> bool:
    """Whether a verdict is about somebody whose prefix is in the cache only once an elder is let in, in this step.

    vLLM caches blocks when it gives them out, before they are computed. So the unthrottled run finds one token of work
    where the throttled one has the whole prompt to compute, or wait for.
    """
    id, _, told = verdict.partition(" ")
    if not told.startswith("has one token of local work"):
        return False
    request = engine.scheduler.requests[id]
    hit: int = engine.scheduler.kv_cache_manager.get_computed_blocks(request)[1]
    return bool(request.num_tokens - hit > 1)


@pytest.mark.parametrize("ours", [OnbeatScheduler, OnbeatAsyncScheduler], ids=["sync", "async"])
def test_every_throttled_step_keeps_the_invariants(ours: type) -> None:
    """Each step is run from a copy without the throttle too, and both runs are compared."""
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        random = Random(seed)
        engine = Engine(ours, options(random, lookahead=ours is OnbeatAsyncScheduler))
        engine.scheduler._watch = Keeper(engine.scheduler.onbeat_violations)
        for number in range(STEPS):
            what = operation(random, engine, throttle=0.7)
            if what[0] != "schedule":
                apply(engine, what)
                continue
            twin = copy.deepcopy(engine.scheduler)
            apply(engine, what)
            twin.schedule(False)
            facts, baseline = engine.scheduler._watch.facts, twin._watch.facts
            verdicts = {
                entry.id: check(facts, baseline)
                for entry, check in RUNS_PREDICATES
                if not (facts.step.throttle and entry.id in ("off-means-off", "beat-equals-baseline"))
            }
            verdicts = {id: told for id, told in verdicts.items() if told and not within_the_step(engine, told)}
            assert not verdicts, f"seed {seed}, operation {number}: {verdicts}"
            turn, found = engine.scheduler.onbeat_turn, engine.scheduler.onbeat_violations
            stocks_own = STOCKS_OWN if turn.hold else STOCKS_OWN_UNHELD
            assert not found.keys() - stocks_own, f"seed {seed}, operation {number}: {found}"
            found.clear()
            seen["throttled"] += turn.throttle
            seen["held somebody"] += bool(turn.held)
            seen["admitted in a hold"] += turn.holding and bool(facts.step.admitted)
            seen["saturated"] += engine.scheduler.prefill_capacity_bound
            seen["evicted"] += bool(facts.step.evictions)
    assert all(seen[each] >= 10 for each in ("throttled", "held somebody", "saturated", "evicted")), seen
    assert seen["admitted in a hold"] >= 3, seen


@pytest.mark.parametrize("ours", [OnbeatScheduler, OnbeatAsyncScheduler])
def test_vllm_finds_the_class_by_its_name(ours: type) -> None:
    config = build(Scheduler).scheduler_config
    config.scheduler_cls = f"onbeat_engine.vllm.{ours.__name__}"
    assert config.get_scheduler_cls() is ours


def test_a_scheduler_can_be_copied_and_both_go_on_alike() -> None:
    engine = Engine(OnbeatScheduler, Options())
    engine.add("d", 4, 20)
    engine.step()
    engine.add("f", 9)
    twin = copy.deepcopy(engine.scheduler)
    assert plain(engine.scheduler.schedule(True)) == plain(twin.schedule(True))
    assert books(engine.scheduler) == books(twin)


@pytest.mark.parametrize("broken", ["allocate_slots", "get_computed_blocks"])
def test_an_error_in_the_middle_leaves_no_trace_of_the_hold(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(OnbeatScheduler, Options(tokens=8, seqs=4))
    engine.add("d", 4, 20)
    engine.step()
    engine.add("c", 20)
    engine.step()
    engine.add("f", 9)
    before = books(engine.scheduler)

    def fails(*arguments: Any, **named: Any) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler.kv_cache_manager, broken, fails)
        with pytest.raises(RuntimeError, match="broken"):
            engine.scheduler.schedule(True)
    after = books(engine.scheduler)
    assert [after[key] for key in ("waiting", "holding", "deferred")] == [["f"], [], []]
    eligible = {id: facts[5] for id, facts in before["requests"].items()}
    assert {id: facts[5] for id, facts in after["requests"].items()} == eligible


class HoldsResumes(Policy):
    """Breaks one promise."""

    def holds_waiting(self, *, work: int, computed: int, external: int) -> bool:
        return work > 1


def held_resume() -> Engine:
    """An engine whose scheduler is about to hold a ready remote resume, three steps in a row."""
    engine = Engine(OnbeatScheduler, Options(remote=True))
    engine.scheduler._policy = HoldsResumes()
    engine.add("d", 4, 20)
    engine.step()
    engine.add("part", 12, remote=8)
    engine.step(landed=("part",))
    return engine


def test_the_monitor_counts_what_a_broken_policy_does(
    monkeypatch: pytest.MonkeyPatch, heard: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(MONITOR, "1")
    engine = held_resume()
    assert engine.scheduler.onbeat_violations == {}
    for _ in range(3):
        assert engine.step(True) == {"d": 1}
    assert engine.scheduler.onbeat_violations == {"resume-bypasses": 3}
    (told,) = [record.getMessage() for record in heard.records if record.name == LOGGER.name]
    assert told.startswith("resume-bypasses does not hold at step 2: part, a remote resume with 8 loaded tokens")


def test_the_monitor_stops_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FATAL, "1")
    engine = held_resume()
    with pytest.raises(InvariantViolated, match="resume-bypasses does not hold at step 2"):
        engine.step(True)


def test_nothing_is_watched_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (MONITOR, FATAL):
        monkeypatch.delenv(name, raising=False)
    engine = held_resume()
    assert engine.step(True) == {"d": 1}
    assert engine.scheduler.onbeat_violations == {}
