"""What is read of a vLLM scheduler, on stand-ins with its attributes. The real one's tests are in tests/engine."""

from types import SimpleNamespace
from typing import Any

import pytest

from onbeat_reference.observe_vllm import (
    Arrivals,
    config_of,
    facts_of,
    holds,
    observe_vllm,
    paused,
    step_of,
    waiting_requests,
)
from onbeat_spec.records import Eviction, Place, State, Step


class Blocks:
    """The KV cache manager: a table for each request, and null blocks with the id 0."""

    def __init__(self, total: int) -> None:
        self.tables: dict[str, list[int]] = {}
        self.total = total
        self.block_pool = SimpleNamespace(
            num_gpu_blocks=total + 1,
            null_block=SimpleNamespace(block_id=0),
            get_num_free_blocks=lambda: total - len({block for table in self.tables.values() for block in table}),
        )

    def get_block_ids(self, id: str) -> tuple[list[int], ...]:
        return (self.tables.get(id, []),)


def scheduler(**changes: Any) -> Any:
    """A scheduler as 0.31.0 and later have it, with 10 blocks of 4 tokens."""
    facts = {
        "requests": {},
        "running": [],
        "waiting": [],
        "kv_holding_waiting": [],
        "finished_recving_kv_req_ids": set(),
        "kv_cache_manager": Blocks(10),
        "block_size": 4,
        "max_model_len": 64,
        "max_num_running_reqs": 3,
        "max_num_scheduled_tokens": 16,
        "prefill_capacity_bound": False,
        "scheduler_config": SimpleNamespace(prefill_schedule_interval=4, async_scheduling=False),
        "parallel_config": SimpleNamespace(data_parallel_size=2),
        "cache_config": SimpleNamespace(enable_prefix_caching=False),
        "policy": SimpleNamespace(value="fcfs"),
        "_pause_state": SimpleNamespace(name="UNPAUSED"),
    }
    return SimpleNamespace(**{**facts, **changes})


def put(made: Any, id: str, status: str, *, tokens: int, computed: int, blocks: int = 0, **changes: Any) -> Any:
    """Put a request where its status says it is."""
    request = SimpleNamespace(
        request_id=id,
        status=SimpleNamespace(name=status),
        num_tokens=tokens,
        num_prompt_tokens=changes.pop("prompt", tokens),
        max_tokens=8,
        num_computed_tokens=computed,
        num_output_placeholders=0,
        spec_token_ids=[],
        priority=0,
        is_prefill_chunk=changes.pop("chunk", False),
        **changes,
    )
    made.requests[id] = request
    used = {block for table in made.kv_cache_manager.tables.values() for block in table}
    free = [block for block in range(1, 11) if block not in used]
    made.kv_cache_manager.tables[id] = free[:blocks]
    if status == "RUNNING":
        made.running.append(request)
    elif not status.startswith("FINISHED"):
        (made.kv_holding_waiting if blocks else made.waiting).append(request)
    return request


def output(**scheduled: int) -> Any:
    return SimpleNamespace(num_scheduled_tokens=scheduled, scheduled_spec_decode_tokens={})


def test_the_configuration() -> None:
    config = config_of(scheduler())
    assert (config.num_blocks, config.block_size, config.max_num_batched_tokens, config.max_num_seqs) == (10, 4, 16, 3)
    assert (config.prefill_schedule_interval, config.data_parallel_size, config.async_depth) == (4, 2, 1)


def test_every_status_has_its_place() -> None:
    made = scheduler(finished_recving_kv_req_ids={"landed"})
    put(made, "decode", "RUNNING", tokens=5, computed=4, blocks=2)
    put(made, "loading", "WAITING_FOR_REMOTE_KVS", tokens=8, computed=8, blocks=1)
    put(made, "landed", "WAITING_FOR_REMOTE_KVS", tokens=8, computed=8, blocks=2)
    put(made, "grammar", "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", tokens=8, computed=0)
    put(made, "again", "PREEMPTED", tokens=8, computed=0)
    put(made, "gone", "FINISHED_ABORTED", tokens=8, computed=8, blocks=1)
    state = observe_vllm(made)
    assert (state.running, state.parked) == (("decode",), ("loading",))
    assert state.waiting == ("landed", "grammar", "again")
    assert state.requests["gone#5"].place is Place.FINISHED
    assert (state.free, state.held, state.held_by_running, state.num_loading) == (4, 6, 2, 2)
    loading, landed = state.requests["loading"], state.requests["landed"]
    assert (loading.num_computed, loading.external, loading.reserved) == (0, 8, 1)
    assert (landed.num_computed, landed.external, landed.reserved) == (7, 7, 0)  # the last token is always computed
    assert [id for id in state.waiting if state.requests[id].eligible_at == 0] == ["landed", "again"]


def test_blocks_that_are_freed_later_are_held() -> None:
    made = scheduler(deferred_frees=[(3, [SimpleNamespace(block_id=9), SimpleNamespace(block_id=10)])])
    assert observe_vllm(made).held == 2


def test_drafts_of_a_step_in_flight_are_awaited() -> None:
    made = scheduler()
    put(made, "a", "RUNNING", tokens=5, computed=7, blocks=2)
    assert observe_vllm(made, in_flight=1).requests["a"].num_placeholders == 2


def test_blocked_requests_of_older_releases_come_first() -> None:
    made = scheduler()
    del made.kv_holding_waiting
    made.waiting, made.skipped_waiting = ["b"], ["a"]
    assert list(waiting_requests(made)) == ["a", "b"]
    made.policy.value, made.waiting, made.skipped_waiting = "priority", ["a", "c"], ["b"]
    assert list(waiting_requests(made)) == ["a", "b", "c"]


def test_arrivals_stay_and_a_name_used_again_gets_a_new_one() -> None:
    arrivals = Arrivals()
    assert dict(arrivals.number({"a": 1, "b": 1})) == {"a": 0, "b": 1}
    assert dict(arrivals.number({"b": 1, "c": 1})) == {"b": 1, "c": 2}
    arrivals.came("b")
    assert arrivals.of("b") == 3
    assert dict(arrivals.number({"a": 1, "c": 1})) == {"a": 4, "c": 2}


@pytest.mark.parametrize(
    ("saturated", "throttle", "chunk", "expected"),
    [(False, True, False, True), (True, True, False, False), (False, False, False, False), (False, True, True, False)],
)
def test_a_hold_needs_the_throttle_a_decode_and_no_saturation(
    saturated: bool, throttle: bool, chunk: bool, expected: bool
) -> None:
    made = scheduler(prefill_capacity_bound=saturated)
    put(made, "a", "RUNNING", tokens=5, computed=4, blocks=2, chunk=chunk)
    assert holds(made, throttle) is expected


def test_the_local_cadence_holds_by_itself() -> None:
    made = scheduler(local_prefill_interval=4, num_executed_steps=5, last_prefill_step=3)
    put(made, "a", "RUNNING", tokens=5, computed=4, blocks=2)
    assert holds(made, False)
    made.num_executed_steps = 6
    assert not holds(made, False)


def test_pauses() -> None:
    names = ("UNPAUSED", "PAUSED_NEW", "PAUSED_ALL")
    assert [paused(scheduler(_pause_state=SimpleNamespace(name=name))) for name in names] == [None, "new", "all"]


def stepped(made: Any, change: Any, throttle: bool = False, **scheduled: int) -> tuple[State, Step, State]:
    """A step that changes the scheduler by `change`."""
    arrivals = Arrivals()
    before, hold, config = observe_vllm(made, arrivals), holds(made, throttle), config_of(made)
    change()
    after = observe_vllm(made, arrivals, in_flight=1)
    step = step_of(output(**scheduled), before, after, config, index=0, throttle=throttle, hold=hold)
    facts = facts_of(config, before, step, after)
    return facts.before, step, after


def test_an_admission() -> None:
    made = scheduler()
    put(made, "a", "RUNNING", tokens=5, computed=4, blocks=2)
    request = put(made, "b", "WAITING", tokens=4, computed=0)

    def change() -> None:
        made.running.append(made.waiting.pop())
        made.running[0].num_computed_tokens, request.num_computed_tokens = 5, 4
        request.status.name = "RUNNING"
        made.kv_cache_manager.tables["b"] = [9]

    _, step, after = stepped(made, change, a=1, b=4)
    assert (step.admitted, step.resumed, step.prefill, step.budget) == (["b"], [], True, 11)
    assert (step.hold, step.wrote_flag, after.num_slots) == (False, True, 2)


def test_a_hold_passes_over_a_chunk_and_the_first_fresh_prefill() -> None:
    made = scheduler()
    put(made, "a", "RUNNING", tokens=5, computed=4, blocks=2)
    put(made, "b", "RUNNING", tokens=8, computed=4, blocks=1, chunk=True)
    put(made, "c", "WAITING", tokens=4, computed=0)
    put(made, "d", "WAITING", tokens=4, computed=0)

    def change() -> None:
        made.running[0].num_computed_tokens = 5

    _, step, _ = stepped(made, change, throttle=True, a=1)
    assert (step.hold, step.held, step.wrote_flag) == (True, ["b", "c"], False)


def test_an_eviction_is_for_the_best_that_grew_or_for_itself() -> None:
    made = scheduler()
    for id in ("a", "b", "c"):
        put(made, id, "RUNNING", tokens=5, computed=4, blocks=1)

    def evict(id: str) -> None:
        victim = next(each for each in made.running if each.request_id == id)
        made.running.remove(victim)
        made.waiting.insert(0, victim)
        victim.status.name, victim.num_computed_tokens = "PREEMPTED", 0
        made.kv_cache_manager.tables[id] = []

    def change() -> None:
        evict("c")
        for request in made.running:
            request.num_computed_tokens += 1
            made.kv_cache_manager.tables[request.request_id].append(ord(request.request_id) - 90)

    _, step, _ = stepped(made, change, a=1, b=1)
    assert step.evictions == [Eviction("c", "a", 1)]
    _, step, _ = stepped(made, lambda: evict("b"))
    assert step.evictions == [Eviction("b", "b", 2)]


def test_a_load_took_what_was_offered() -> None:
    made = scheduler()
    request = put(made, "a", "WAITING", tokens=8, computed=0)

    def change() -> None:
        made.waiting.remove(request)
        made.kv_holding_waiting.append(request)
        request.status.name, request.num_computed_tokens = "WAITING_FOR_REMOTE_KVS", 4
        made.kv_cache_manager.tables["a"] = [1]

    before, step, after = stepped(made, change)
    assert (step.loading, step.admitted) == (["a"], [])
    assert (before.requests["a"].remote_tokens, after.requests["a"].external) == (4, 4)
