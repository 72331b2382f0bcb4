"""The step of one rank: who gets tokens, who comes in, who has to go."""

from collections.abc import Callable

import pytest

from onbeat_reference import Request, Scheduler
from onbeat_spec.errors import ProtocolMisuse
from onbeat_spec.records import Eviction, Place
from tests.reference.helpers import ids, land, photo, request, scheduler, text, turn, turns


def warm(*requests: Request, steps: int = 1, **config: object) -> Scheduler:
    """A scheduler after so many steps with these requests."""
    made = scheduler(*requests, **config)
    turns(made, steps)
    return made


# --- Order -----------------------------------------------------------------------------------------------------------


def test_first_come_first_served() -> None:
    made = scheduler(request("c", 4, priority=2), request("a", 4, priority=1), request("b", 4))
    assert ids(made.waiting) == ["c", "a", "b"]
    assert list(turn(made).scheduled) == ["c", "a", "b"]
    assert ids(made.running) == ["c", "a", "b"]


def test_by_priority_and_then_by_age() -> None:
    names = {"a": 1, "b": 0, "c": 1, "d": -5, "e": 0}
    made = scheduler(*[request(id, 4, priority=number) for id, number in names.items()], scheduling="priority")
    assert ids(made.waiting) == ["d", "b", "e", "a", "c"]
    assert list(turn(made).scheduled) == ["d", "b", "e", "a", "c"]


def test_a_better_newcomer_is_served_before_who_runs_already() -> None:
    made = warm(request("a", 4), scheduling="priority")
    made.add_request(request("b", 4, priority=-1))
    turn(made)
    assert ids(made.running) == ["b", "a"]
    assert list(turn(made).scheduled) == ["b", "a"]


def test_nobody_overtakes_a_head_that_does_not_fit() -> None:
    made = scheduler(request("a", 8), request("big", 12), request("small", 1), num_blocks=4)
    step = turn(made)
    assert (step.admitted, step.scan_over, ids(made.waiting)) == (["a"], True, ["big", "small"])


def test_an_idle_step_is_empty() -> None:
    made = scheduler()
    step = turn(made)
    assert (step.index, step.scheduled, step.saturated, step.budget) == (0, {}, False, 8192)
    step = turn(made, throttle=True)
    assert (step.index, step.hold, step.lifted, step.wrote_flag) == (1, False, False, True)


# --- Budget, chunks, caps --------------------------------------------------------------------------------------------


def test_a_prompt_is_computed_in_chunks_under_the_budget() -> None:
    made = scheduler(request("a", 12), request("b", 6), max_num_batched_tokens=8)
    steps = [turn(made) for _ in range(4)]
    assert [step.scheduled for step in steps] == [{"a": 8}, {"a": 4, "b": 4}, {"a": 1, "b": 2}, {"a": 1, "b": 1}]
    assert [step.prefill for step in steps] == [True, True, True, False]
    assert [step.budget for step in steps] == [0, 0, 5, 6]
    assert [step.saturated for step in steps] == [True, False, False, False]


def test_a_chunk_samples_nothing() -> None:
    a = request("a", 12)
    made = scheduler(a, max_num_batched_tokens=8)
    made.schedule()
    assert (a.num_computed, a.num_placeholders, made.in_flight[0].sampling) == (8, 0, [])
    assert land(made).tokens == {}
    made.schedule()
    assert (a.num_computed, a.num_placeholders, made.in_flight[0].sampling) == (12, 1, [a])


@pytest.mark.parametrize(("newcomers", "prefill"), [([], False), ([4], True)])
def test_a_step_carries_prefill_if_anybody_has_more_than_one_token(newcomers: list[int], prefill: bool) -> None:
    """Not by one token behind what a remote store loads within the step."""
    made = scheduler(*[request("a", prompt) for prompt in newcomers], request("r", 8, remote=8, mode="sync"))
    step = turn(made)
    assert (step.scheduled["r"], step.prefill) == (1, prefill)


def test_a_decode_prefills_nothing() -> None:
    a = request("a", 4)
    made = scheduler(a)
    made.schedule()
    assert made.in_flight[0].prefilled == [a]
    land(made)
    made.schedule()
    assert (made.in_flight[0].prefilled, made.in_flight[0].sampling) == ([], [a])


def test_the_threshold_caps_one_request_not_the_step() -> None:
    made = scheduler(request("a", 8), request("b", 4), long_prefill_token_threshold=3)
    assert turns(made, 4) == [{"a": 3, "b": 3}, {"a": 3, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 1}]


def test_the_budget_wins_over_a_higher_threshold() -> None:
    made = scheduler(request("a", 8), max_num_batched_tokens=5, long_prefill_token_threshold=6)
    assert turns(made, 2) == [{"a": 5}, {"a": 3}]


@pytest.mark.parametrize(("decodes", "chunk"), [(1, 4), (2, 4), (3, 3), (5, 1)])
def test_a_chunk_leaves_the_decodes_behind_it_what_they_are_due(decodes: int, chunk: int) -> None:
    """Six tokens, of which the chunk may have four; it stood aside while the decodes came."""
    a = request("a", 40)
    made = warm(a, max_num_batched_tokens=6, long_prefill_token_threshold=4)
    a.eligible_at = 2
    names = [f"d{number}" for number in range(decodes)]
    for name in names:
        made.add_request(request(name, 1))
    assert turn(made).scheduled == dict.fromkeys(names, 1)
    assert turn(made).scheduled == {"a": chunk, **dict.fromkeys(names, 1)}


def test_a_chunk_that_decodes_leave_nothing_gets_nothing() -> None:
    a = request("a", 40)
    made = warm(a, max_num_batched_tokens=4)
    a.eligible_at = 2
    for name in "bcde":
        made.add_request(request(name, 1))
    turn(made)
    assert turn(made).scheduled == dict.fromkeys("bcde", 1)
    assert (a.num_computed, a.place, a.num_blocks) == (4, Place.RUNNING, 1)


def test_decodes_beyond_the_budget_go_without_the_youngest_first() -> None:
    a = request("a", 1)
    made = warm(a, request("b", 1), max_num_batched_tokens=2)
    a.eligible_at = 2
    made.add_request(request("c", 1))
    assert turns(made, 3) == [{"b": 1, "c": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1}]
    assert ids(made.running) == ["a", "b", "c"]


def test_a_decode_that_may_not_run_is_due_nothing() -> None:
    a, idle = request("a", 40), request("idle", 1)
    made = warm(a, max_num_batched_tokens=5)
    a.eligible_at = 2
    for each in (request("b", 1), request("c", 1), idle):
        made.add_request(each)
    turn(made)
    idle.eligible_at = 3
    assert turn(made).scheduled == {"a": 3, "b": 1, "c": 1}


# --- Slots -----------------------------------------------------------------------------------------------------------


def test_running_requests_stay_within_the_slots() -> None:
    made = scheduler(request("a", 4, 2), request("b", 4, 9), request("c", 4, 9), max_num_seqs=2)
    assert turns(made, 3) == [{"a": 4, "b": 4}, {"a": 1, "b": 1}, {"b": 1, "c": 4}]
    assert made.num_slots == 2
    assert not made.saturated


def test_who_lacks_a_slot_is_backlog() -> None:
    made = warm(request("a", 4), request("b", 4), max_num_seqs=1)
    assert made.saturated


# --- Eligibility -----------------------------------------------------------------------------------------------------


def test_a_waiting_request_that_may_not_run_is_passed_over_and_keeps_its_place() -> None:
    a, b, c = request("a", 4), request("b", 4), request("c", 4)
    made = scheduler(a, b, c, max_num_seqs=2)
    a.eligible_at = 2
    assert turn(made).scheduled == {"b": 4, "c": 4}
    assert not made.saturated  # nobody is left who could have been admitted
    made.abort(c)
    assert turn(made).scheduled == {"b": 1}
    assert turn(made).scheduled == {"a": 4, "b": 1}  # from step 2 on, in its old place


def test_a_running_request_that_may_not_run_keeps_what_it_has() -> None:
    a, b = request("a", 4), request("b", 4)
    made = warm(a, b)
    a.eligible_at = 3
    assert turns(made, 2) == [{"b": 1}, {"b": 1}]
    assert (a.num_computed, a.num_blocks, a.place) == (4, 1, Place.RUNNING)
    assert list(turn(made).scheduled) == ["a", "b"]


# --- The whole sequence has to fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompt", "comes"), [(4, True), (5, False), (8, False)])
def test_admission_needs_room_for_all_beside_what_was_promised(prompt: int, comes: bool) -> None:
    """Four blocks: a holds one and was promised two, so one of the three free ones is left."""
    a = request("a", 12)
    made = warm(a, num_blocks=4, max_num_batched_tokens=4)
    assert (a.num_blocks, a.reserved, made.pool.free, made.pool.promised) == (1, 2, 3, 2)
    a.eligible_at = 2
    made.add_request(request("b", prompt))
    assert turn(made).admitted == (["b"] if comes else [])


def test_a_promise_is_used_up_as_the_prompt_is_computed() -> None:
    a = request("a", 12)
    made = scheduler(a, max_num_batched_tokens=4)
    seen = []
    for _ in range(4):
        turn(made)
        seen.append((a.num_blocks, a.reserved, made.pool.promised))
    assert seen == [(1, 2, 2), (2, 1, 1), (3, 0, 0), (4, 0, 0)]


# --- The prefix cache ------------------------------------------------------------------------------------------------

P12 = text("p", 12)


@pytest.mark.parametrize(
    ("prompt", "computed"),
    [
        (P12, 4),  # of the last block one token has to be computed, hence all of it
        ([*P12, 1], 1),
        ([*P12, 1, 2, 3], 3),
        (P12[:9], 1),
        (P12[:8], 4),
        (P12[:4], 4),
        ([*P12[:7], 0, 0], 5),
        ([0, *P12], 13),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_a_newcomer_computes_what_is_not_cached(prompt: list[int], computed: int, ended: bool) -> None:
    made = warm(request("a", P12, 1 if ended else 9), enable_prefix_caching=True)
    made.add_request(request("b", prompt))
    step = turn(made)
    assert step.scheduled["b"] == computed
    assert step.prefill == (computed > 1)


def test_what_is_in_flight_is_not_cached_yet() -> None:
    made = scheduler(request("a", P12), enable_prefix_caching=True, async_depth=2)
    made.schedule()
    made.add_request(request("b", P12))
    assert made.schedule().scheduled == {"a": 1, "b": 12}


def test_shared_blocks_need_no_room() -> None:
    """Five blocks, of which the first request holds four: one is enough for twelve shared tokens and one more."""
    a = request("a", P12, 9)
    made = warm(a, steps=2, num_blocks=5, enable_prefix_caching=True)
    assert (a.num_blocks, made.pool.free) == (4, 1)
    made.add_request(request("b", [*P12, 1], 3))
    assert turn(made).scheduled == {"a": 1, "b": 1}
    assert made.pool.free == 0


def test_salts_share_nothing() -> None:
    made = warm(request("a", P12, salt="one"), enable_prefix_caching=True)
    made.add_request(request("b", P12, salt="two"))
    made.add_request(request("c", P12, salt="one"))
    assert turn(made).scheduled == {"a": 1, "b": 12, "c": 4}


# --- Preemption ------------------------------------------------------------------------------------------------------


def full(**config: object) -> tuple[Scheduler, Request, Request]:
    """Two decodes that hold all four blocks; in the next step both need another one."""
    a, b = request("a", 7), request("b", 7)
    return warm(a, b, steps=2, **{"num_blocks": 4, **config}), a, b


def test_the_newest_goes_and_comes_back_to_be_computed_again() -> None:
    made, a, b = full()
    step = turn(made)
    assert (step.scheduled, step.evictions) == ({"a": 1}, [Eviction("b", "a", 2)])
    assert (b.place, b.num_computed, b.num_blocks, b.num_preemptions) == (Place.WAITING, 0, 0, 1)
    assert (b.num_tokens, made.pool.free) == (9, 1)
    made.abort(a)
    assert turn(made).scheduled == {"b": 9}  # prompt and outputs
    assert (b.num_tokens, b.tokens[7:]) == (10, [1, 1, 1])


def test_a_step_that_preempts_admits_nobody_and_leaves_the_flag() -> None:
    made, _, _ = full()
    made.add_request(request("c", 1))
    made.saturated = False
    step = turn(made)
    assert step.evictions
    assert made.pool.free == 1  # enough for c
    assert (step.admitted, step.wrote_flag, step.saturated) == ([], False, False)
    assert ids(made.waiting) == ["b", "c"]


def test_by_priority_the_worst_goes_and_of_these_the_newest() -> None:
    low, high, newer = request("low", 3, priority=1), request("high", 3), request("newer", 3, priority=1)
    made = warm(low, high, newer, steps=2, num_blocks=3, scheduling="priority")
    step = turn(made)
    assert step.evictions == [Eviction("newer", "high", 1), Eviction("low", "low", 1)]
    assert step.scheduled == {"high": 1}
    assert ids(made.waiting) == ["low", "newer"]


def test_as_many_go_as_it_takes() -> None:
    """The prompt was promised three blocks, and the decodes grew into them while it stood aside."""
    a = request("a", 24)
    made = warm(
        a, *[request(id, 3) for id in "bcd"], num_blocks=9, max_num_batched_tokens=21, long_prefill_token_threshold=12
    )
    assert (a.num_blocks, a.reserved, made.pool.free) == (3, 3, 3)
    a.eligible_at = 3
    turns(made, 2)
    assert made.pool.free == 0
    step = turn(made)
    assert step.evictions == [Eviction("d", "a", 2), Eviction("c", "a", 2)]
    assert step.scheduled == {"a": 12, "b": 1}


def test_who_is_the_worst_itself_goes_itself() -> None:
    made, _, b = full(num_blocks=5)
    step = turn(made)
    assert (step.scheduled, step.evictions) == ({"a": 1}, [Eviction("b", "b", 2)])
    assert (b.place, made.pool.free) == (Place.WAITING, 2)


def test_who_is_alone_ends_before_it_would_have_to_go() -> None:
    """Sixteen tokens of room: the seventeenth is sampled, needs none, and is the last."""
    a = request("a", 14, 99)
    made = scheduler(a, num_blocks=4)
    steps = [turn(made) for _ in range(3)]
    assert [step.scheduled for step in steps] == [{"a": 14}, {"a": 1}, {"a": 1}]
    assert not any(step.evictions for step in steps)
    assert (a.place, a.num_tokens) == (Place.FINISHED, 17)


def test_who_shares_all_its_blocks_is_no_victim_and_sits_the_step_out() -> None:
    """The newest holds three blocks, all of them shared with the one before it; that one has one of its own."""
    old, sharer, newest = request("old", 7), request("sharer", [*P12, 1]), request("newest", P12)
    made = scheduler(old, sharer, newest, num_blocks=6, enable_prefix_caching=True)
    sharer.eligible_at = 1
    assert turn(made).scheduled == {"old": 7, "newest": 12}
    newest.eligible_at = 2
    assert turn(made).scheduled == {"old": 1, "sharer": 1}
    assert (made.pool.free, made.pool.releasable(newest), made.pool.releasable(sharer)) == (0, 0, 1)
    step = turn(made)
    assert (step.scheduled, step.evictions) == ({"old": 1}, [Eviction("sharer", "old", 1)])
    assert (step.sat_out, newest.place, newest.num_blocks) == (["newest"], Place.RUNNING, 3)


def test_who_shares_all_its_blocks_and_needs_one_goes_itself() -> None:
    sharer, newest = request("sharer", [*P12, 1]), request("newest", P12)
    made = scheduler(sharer, newest, num_blocks=4, enable_prefix_caching=True)
    sharer.eligible_at = 1
    turn(made)
    newest.eligible_at = 2
    turn(made)
    assert (made.pool.free, newest.num_blocks, made.pool.releasable(newest)) == (0, 3, 0)
    step = turn(made)
    assert (step.scheduled, step.evictions, step.sat_out) == ({"sharer": 1}, [Eviction("newest", "newest", 0)], [])


def test_a_victim_computes_only_what_the_cache_has_lost() -> None:
    made, a, _ = full(num_blocks=4, enable_prefix_caching=True)
    turn(made)  # b's two full blocks stay findable until they are needed; a's new one takes the second
    made.abort(a)
    assert turn(made).scheduled == {"b": 5}


# --- Draft tokens ----------------------------------------------------------------------------------------------------


def drafting(*requests: Request, **config: object) -> Scheduler:
    """A scheduler whose requests are decodes with three drafts each."""
    made = scheduler(*requests, **{"num_draft_tokens": 3, **config})
    made.schedule()
    land(made, drafts={each.id: 3 for each in requests})
    return made


def test_drafts_take_what_everybody_has_left() -> None:
    made = drafting(request("a", 4), request("b", 4), max_num_batched_tokens=8)
    made.add_request(request("c", 2))
    step = turn(made)
    assert (step.scheduled, step.drafts, step.budget) == ({"a": 4, "b": 2, "c": 2}, {"a": 3, "b": 1}, 0)


def test_own_tokens_come_before_the_drafts_of_the_better() -> None:
    made = drafting(request("a", 2), request("b", 2), max_num_batched_tokens=4)
    made.add_request(request("c", 2))
    step = turn(made)
    assert (step.scheduled, step.drafts) == ({"a": 1, "b": 1, "c": 2}, {})


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_only_what_was_right_is_kept(accepted: int) -> None:
    a = request("a", 4)
    made = drafting(a)
    step = made.schedule()
    assert (step.scheduled, step.drafts, a.num_computed, a.num_placeholders) == ({"a": 4}, {"a": 3}, 8, 4)
    assert land(made, accept={"a": accepted}).tokens == {"a": [1] * (1 + accepted)}
    assert (a.num_tokens, a.num_computed, a.num_placeholders) == (6 + accepted, 5 + accepted, 0)
    assert turn(made).scheduled == {"a": 1}  # nothing new was proposed


def test_drafts_that_found_no_room_are_not_kept_for_later() -> None:
    a, b = request("a", 2), request("b", 2)
    made = drafting(a, b, max_num_batched_tokens=4)
    assert turn(made).drafts == {"a": 2}
    assert (a.num_drafts, b.num_drafts) == (0, 0)


def test_drafts_never_preempt() -> None:
    """All blocks are held: the drafts get what is left of the last one, and nobody goes."""
    made = drafting(request("a", 5), request("b", 5), num_blocks=4)
    step = turn(made)
    assert (step.scheduled, step.drafts, step.evictions) == ({"a": 3, "b": 3}, {"a": 2, "b": 2}, [])


def test_drafts_take_a_free_block_that_nobody_was_promised() -> None:
    made = drafting(request("a", 5), request("b", 5), num_blocks=5)
    step = turn(made)
    assert (step.drafts, made.pool.free) == ({"a": 3, "b": 2}, 0)


def test_drafts_in_a_last_block_need_no_room() -> None:
    """Whether promises are covered or not: the decode has grown into those of a prompt that stands aside."""
    a, c = request("a", 1), request("c", 16)
    made = scheduler(a, c, num_blocks=5, long_prefill_token_threshold=4, num_draft_tokens=1)
    turn(made)
    c.eligible_at = 99
    turns(made, 3)
    made.schedule()
    land(made, drafts={"a": 1})
    assert made.pool.promised > made.pool.free
    assert turn(made).drafts == {"a": 1}


@pytest.mark.parametrize(("num_blocks", "drafts"), [(5, 1), (6, 3)])
def test_drafts_leave_promised_blocks_alone(num_blocks: int, drafts: int) -> None:
    """In five blocks the two free ones are promised to the prompt, and one draft has room in the last block."""
    c = request("c", 16)
    made = scheduler(request("a", 2), c, num_blocks=num_blocks, long_prefill_token_threshold=4, num_draft_tokens=3)
    made.schedule()
    land(made, drafts={"a": 3})
    step = turn(made)
    assert (step.scheduled["c"], c.reserved, step.drafts) == (4, 2, {"a": drafts})
    assert made.pool.free == made.pool.promised == 2


@pytest.mark.parametrize(("max_tokens", "drafts"), [(2, 0), (3, 1), (4, 2), (5, 3), (9, 3)])
def test_no_draft_reaches_past_the_last_token(max_tokens: int, drafts: int) -> None:
    """Of the tokens to come one is the step's own, and one was delivered."""
    a = request("a", 4, max_tokens)
    made = drafting(a)
    assert a.num_drafts == drafts
    assert turn(made).scheduled == {"a": 1 + drafts}


@pytest.mark.parametrize(("proposed", "booked"), [(2, 2), (3, 3), (9, 3), (0, 0), (-1, 0)])
def test_proposals_are_cut_to_what_was_configured(proposed: int, booked: int) -> None:
    a = request("a", 4)
    made = scheduler(a, num_draft_tokens=3)
    made.schedule()
    land(made, drafts={"a": proposed, "unknown": 3})
    assert a.num_drafts == booked


def test_who_does_not_run_is_proposed_nothing() -> None:
    a, b = request("a", 4), request("b", 4)
    made = scheduler(a, b, num_draft_tokens=3, max_num_seqs=1)
    made.schedule()
    land(made, drafts={"a": 3, "b": 3})
    assert (a.num_drafts, b.num_drafts) == (3, 0)


def test_without_drafting_none_are_booked() -> None:
    a = request("a", 4)
    made = scheduler(a)
    made.schedule()
    land(made, drafts={"a": 3})
    assert turn(made).scheduled == {"a": 1}


def test_a_victim_takes_its_drafts_along() -> None:
    made, _, b = full(num_draft_tokens=3)
    b.num_drafts = 3
    step = turn(made)
    assert step.evictions == [Eviction("b", "a", 2)]
    assert (step.drafts, step.scheduled, b.num_drafts) == ({}, {"a": 1}, 0)


# --- Holding ---------------------------------------------------------------------------------------------------------


def test_a_throttled_step_holds_prefills_and_serves_decodes() -> None:
    chunk = request("chunk", 40)
    made = warm(request("d", 4), chunk, long_prefill_token_threshold=8)
    made.add_request(request("w", 8))
    step = turn(made, throttle=True)
    assert (step.throttle, step.hold, step.held, step.scheduled) == (True, True, ["chunk", "w"], {"d": 1})
    assert (step.wrote_flag, made.held_steps, chunk.num_blocks, chunk.reserved) == (False, 1, 2, 8)
    step = turn(made)
    assert (step.hold, step.held, step.scheduled) == (False, [], {"d": 1, "chunk": 8, "w": 8})
    assert (step.wrote_flag, made.held_steps) == (True, 0)


def test_behind_a_held_prefill_what_needs_one_token_goes_on() -> None:
    made = warm(request("d", 12), enable_prefix_caching=True)
    made.add_request(request("w", 8))
    made.add_request(request("one", 1))
    made.add_request(request("hit", [*text("d", 12), 0]))
    made.add_request(request("v", 8))
    step = turn(made, throttle=True)
    assert (step.scheduled, step.held) == ({"d": 1, "one": 1, "hit": 1}, ["w", "v"])


@pytest.mark.parametrize(("policy", "passes"), [("onbeat", {"one": 1}), ("local-work", {}), ("pr44558", {})])
def test_the_published_policies_look_no_further_than_the_first_they_hold(policy: str, passes: dict[str, int]) -> None:
    made = warm(request("d", 4), policy=policy)
    made.add_request(request("w", 8))
    made.add_request(request("one", 1))
    step = turn(made, throttle=True)
    assert (step.held, step.scheduled) == (["w"], {"d": 1, **passes})


@pytest.mark.parametrize(
    ("spoil", "holds"),
    [
        (lambda made: None, True),
        (lambda made: setattr(made, "saturated", True), False),
        (lambda made: setattr(made, "held_steps", 3), False),
        (lambda made: setattr(made, "held_steps", 2), True),
        (lambda made: setattr(made.running[0], "eligible_at", 9), False),
        (lambda made: made.pause("all"), False),
        (lambda made: made.pause("new"), True),
    ],
    ids=["all is well", "saturated", "the hard bound", "the last before it", "no decode can run", "paused", "closed"],
)
def test_when_a_throttled_step_holds(spoil: Callable[[Scheduler], None], holds: bool) -> None:
    made = warm(request("d", 4), max_hold_steps=3)
    made.add_request(request("w", 8))
    spoil(made)
    assert turn(made, throttle=True).hold is holds


def test_a_hold_that_leaves_nobody_is_lifted_within_the_step() -> None:
    """The decode has grown into what the prompt was promised; when it needs one block more it can only go itself."""
    old, d = request("old", 24), request("d", 8, 99)
    made = warm(old, d, num_blocks=8, long_prefill_token_threshold=12)
    for _ in range(12):
        assert turn(made, throttle=True).held == ["old"]
    assert (made.held_steps, made.pool.free, old.reserved) == (12, 0, 3)
    step = turn(made, throttle=True)
    assert step.evictions == [Eviction("d", "d", 5)]
    assert (step.hold, step.lifted, step.held, step.scheduled) == (True, True, [], {"old": 12})
    assert made.held_steps == 0


def test_steps_that_hold_are_counted_in_a_row() -> None:
    made = warm(request("d", 4, 50))
    made.add_request(request("w", 8))
    counts = []
    for throttle in (True, True, False, True):
        turn(made, throttle)
        counts.append(made.held_steps)
    assert counts == [1, 2, 0, 1]


# --- Steps in flight -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_no_more_steps_are_in_flight_than_configured(depth: int) -> None:
    made = scheduler(request("a", 4), request("b", 12), async_depth=depth, max_num_batched_tokens=8)
    for _ in range(depth):
        made.schedule()
    before = photo(made)
    with pytest.raises(ProtocolMisuse) as refused:
        made.schedule()
    assert str(refused.value) == (
        f"{depth} steps are in flight and async_depth is {depth}; call update() with the outputs of the oldest first"
    )
    assert photo(made) == before
    land(made)
    made.schedule()


def test_one_step_ahead_a_token_is_awaited_before_it_is_known() -> None:
    a = request("a", 4)
    made = scheduler(a, async_depth=2)
    seen = []
    made.schedule()
    for _ in range(3):
        seen.append((made.schedule().scheduled, a.num_tokens, a.num_placeholders, a.num_computed))
        land(made)
    assert seen == [({"a": 1}, 4, 2, 5), ({"a": 1}, 5, 2, 6), ({"a": 1}, 6, 2, 7)]


def test_nobody_is_scheduled_past_its_last_token() -> None:
    a = request("a", 4, 2)
    made = scheduler(a, async_depth=2)
    assert [made.schedule().scheduled, made.schedule().scheduled] == [{"a": 4}, {"a": 1}]
    land(made)
    assert made.schedule().scheduled == {}
    land(made)
    assert a.place is Place.FINISHED
    land(made)
    assert not made.in_flight


def test_one_step_ahead_drafts_are_booked_for_the_step_after_next() -> None:
    a = request("a", 4)
    made = scheduler(a, async_depth=2, num_draft_tokens=2)
    made.schedule()
    made.schedule()
    land(made, drafts={"a": 2})
    step = made.schedule()
    assert (step.scheduled, step.drafts, a.num_placeholders) == ({"a": 3}, {"a": 2}, 4)
    land(made)
    assert (a.num_tokens, a.num_placeholders) == (6, 3)
    land(made, accept={"a": 1})
    assert (a.num_tokens, a.num_placeholders, a.num_computed) == (8, 0, 7)
