"""Single spots of the step that no invariant speaks about; each test notices one change that nothing else would."""

from onbeat_reference import BlockPool, Request, Scheduler
from onbeat_reference.pool import CountingPool
from onbeat_reference.watch import Watch
from onbeat_spec.config import Config
from onbeat_spec.records import Step
from tests.reference.helpers import request, scheduler


def run(made: Scheduler, throttle: bool = False, **sampled: list[int]) -> Step:
    """One step and its outputs: one token for everybody who samples, unless the caller says which."""
    step = made.schedule(throttle)
    made.update(step, {r.id: sampled.get(r.id, [9]) for r in made.in_flight[-1].sampling})
    return step


def test_a_scheduler_starts_open() -> None:
    made = scheduler()
    assert (made.saturated, made.held_steps, made.num_steps, made.paused) == (False, 0, 0, None)


def test_nothing_is_owed_to_the_evicted_nor_to_who_sits_out() -> None:
    made = scheduler(request("a", 1), request("b", 1), request("c", 1))
    run(made)
    a, b, c = made.running
    now = made.num_steps
    behind = made._decodes(made.running, now)
    assert list(behind) == [a, b, c]
    made._preempt(c)
    assert made._owed(behind, now) == 2
    b.eligible_at = now + 1
    assert made._owed(behind, now) == 1
    assert list(made._decodes([a, b, c], now)) == [a]


def test_who_sits_out_sits_out_one_step() -> None:
    class Shared(CountingPool):
        def releasable(self, request: Request) -> int:
            return 0

    made = scheduler(request("a", 2), request("b", 2))
    run(made)
    made.pool.__class__ = Shared
    step = Step(made.num_steps, False)
    assert made._victim(step, made.running[0]) is made.running[0]
    assert step.sat_out == ["b"]
    assert made.running[1].eligible_at == made.num_steps + 1


def test_a_sync_resume_passes_a_hold() -> None:
    made = scheduler(request("d", 4))
    run(made)
    made.add_request(request("s", 12, remote=8, mode="sync"))
    step = run(made, throttle=True)
    assert step.hold
    assert step.scheduled == {"d": 1, "s": 4}


def test_a_store_that_offers_what_is_cached_makes_no_resume() -> None:
    made = scheduler(request("a", [1] * 9, 1), enable_prefix_caching=True)
    run(made)
    made.add_request(request("d", 4))
    run(made)
    made.add_request(request("s", [1] * 8 + [2] * 4, remote=8, mode="sync"))
    assert run(made, throttle=True).held == ["s"]


def test_a_cache_that_holds_more_than_the_store_offers_wins() -> None:
    made = scheduler(request("a", [1] * 9, 1), enable_prefix_caching=True)
    run(made)
    made.add_request(request("s", [1] * 8 + [2], remote=4, mode="sync"))
    assert run(made).scheduled == {"s": 1}


def test_a_landed_request_with_one_block_keeps_what_it_loaded() -> None:
    made = scheduler(request("r", 6, remote=3))
    run(made)
    made.load_finished(made.parked[0])
    assert run(made).scheduled == {"r": 3}


def test_after_a_misfit_only_block_holders_are_admitted() -> None:
    made = scheduler(request("r", 4, remote=4), num_blocks=4, max_num_seqs=4)
    run(made)
    made.add_request(request("big", 14))
    made.add_request(request("small", 2))
    made.load_finished(made.parked[0])
    assert made.schedule().admitted == ["r"]


def test_a_reset_leaves_a_later_eligibility_alone() -> None:
    made = scheduler(request("a", 4), async_depth=2)
    made.schedule()
    made.running[0].eligible_at = 9
    made.reset_prefix_cache()
    assert made.waiting[0].eligible_at == 9


def test_a_load_that_spoils_a_cached_block_takes_it_out_of_the_cache() -> None:
    made = scheduler(request("a", [1] * 9, 1), enable_prefix_caching=True)
    run(made)
    made.add_request(request("s", [1] * 8 + [2] * 4, remote=11, mode="sync"))
    made.schedule()
    made.load_failed(made.running[0], 1)
    other = request("b", [1] * 9)
    assert made.pool.match(other) == 4


def test_what_is_cut_off_at_the_end_is_not_counted() -> None:
    made = scheduler(request("a", 4, 8, stop=[5]), num_draft_tokens=3)
    ended = made.waiting[0]
    made.update(made.schedule(), {"a": [9]}, {"a": 3})
    made.update(made.schedule(), {"a": [8, 5, 7, 7]})
    assert ended.tokens[4:] == [9, 8, 5]
    assert ended.num_tokens == 7


def test_drafts_leave_room_for_what_is_in_flight() -> None:
    made = scheduler(request("a", 4, 4), num_draft_tokens=3, async_depth=2)
    first = made.schedule()
    made.schedule()
    made.update(first, {"a": [9]}, {"a": 3})
    assert made.running[0].num_drafts == 1  # of 4 tokens one is known, one in flight, one the step's own


def pool() -> BlockPool:
    return BlockPool(10, 2, enable_prefix_caching=True)


def committed(made: BlockPool, tokens: list[int], computed: int) -> Request:
    owner = Request("o", tokens, 4)
    made.grow(owner, computed)
    owner.num_computed = computed
    made.commit(owner)
    return owner


def test_a_match_ends_at_the_first_block_that_is_missing() -> None:
    made = pool()
    owner = committed(made, [1, 2, 3, 4, 5, 6], 6)
    made._uncache(owner.blocks[0])
    assert made.match(Request("b", [1, 2, 3, 4, 5, 6, 7], 1)) == 0


def test_only_known_tokens_are_committed() -> None:
    made = pool()
    committed(made, [1, 2, 3], 4)  # the fourth is still in flight
    assert len(made._by_hash) == 1


def test_config_defaults_are_what_a_scheduler_uses() -> None:
    assert Scheduler(Config()).config.prefill_cap == Config().max_num_batched_tokens


def test_no_salt_passes_for_a_block() -> None:
    made = BlockPool(10, 4, enable_prefix_caching=True)
    first, rest = [6437] * 4, [7, 8, 9, 10]
    victim = committed(made, [*first, 1], 4)
    salt = made._hashes(victim, 1)[0].decode("utf-8", "surrogateescape")
    evil = Request("evil", [*rest, 1], 1, cache_salt=salt)
    made.grow(evil, 4)
    evil.num_computed = 4
    made.commit(evil)
    assert made.match(Request("v", [*first, *rest, 2], 1)) == 4
    assert made.match(Request("odd", [1] * 5, 1, cache_salt="\ud800")) == 0


def test_drafts_are_for_whom_they_were_proposed() -> None:
    made = scheduler(request("a", 4), async_depth=2, num_draft_tokens=3)
    first = made.schedule()
    made.abort(made.running[0])
    made.add_request(request("a", 5))
    made.schedule()
    made.update(first, {"a": [1]}, {"a": 3})
    assert made.running[0].num_drafts == 0


def test_a_watch_tells_two_of_one_name_apart() -> None:
    made = scheduler()
    watch = Watch(made)
    for _ in range(2):
        loading = request("r", 8, 1, remote=4)
        made.add_request(loading)
        step = made.schedule()
        watch.step(step)
        watch.delivered(made.update(step, {}))
        made.abort(loading)
        made.load_finished(loading)
    assert watch.violations == []


def test_a_watch_sees_a_holder_behind_a_fresh_prefill() -> None:
    made = scheduler(request("r", 8, 4, remote=4, priority=1), max_num_seqs=1, scheduling="priority")
    watch = Watch(made, any_flag=True)
    step = made.schedule()
    watch.step(step)
    watch.delivered(made.update(step, {}))
    made.add_request(request("w", 8, 4))
    made.parked[0].eligible_at = 9
    made.load_finished(made.parked[0])
    for _ in range(4):
        watch.step(run(made))
    assert watch.violations == []


def test_a_failed_load_voids_what_was_sampled_before_a_reset() -> None:
    made = scheduler(request("r", 12, 8, remote=12, mode="sync"))
    r, step = made.waiting[0], made.schedule()
    made.reset_prefix_cache()
    made.load_failed(r, 0)
    assert made.update(step, {"r": [666]}).tokens == {}
    assert run(made).scheduled == {"r": 12}


def test_a_failed_load_voids_what_was_sampled_before_an_eviction() -> None:
    made = scheduler(request("a", 4, 8), request("r", 8, 4, remote=8, mode="sync"), num_blocks=4, async_depth=2)
    a, r = made.waiting
    made.update(made.schedule(), {"a": [9], "r": [9]})
    assert made.running == [a, r]
    made.schedule()
    assert made.running == [a]
    made.load_failed(r, 0)  # its outputs were back: too late to matter
    assert r.num_tokens == 9


def test_a_load_within_a_step_that_lost_nothing_changes_nothing() -> None:
    made = scheduler(request("r", 8, 4, remote=8, mode="sync"))
    r, step = made.waiting[0], made.schedule()
    made.load_failed(r, 2)
    assert made.update(step, {"r": [9]}).tokens == {"r": [9]}
