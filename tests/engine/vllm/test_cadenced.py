"""The policy laid around a stand-in for the stock step: what it is asked, and what it is left with."""

from types import SimpleNamespace

import pytest

from tests.engine.vllm.fakes import Fake, chunk, decode, request


def given(scheduler: Fake, throttle: bool = True) -> dict[str, int]:
    tokens: dict[str, int] = scheduler.schedule(throttle).num_scheduled_tokens
    return tokens


def test_the_stock_step_is_always_run_unthrottled_and_once() -> None:
    scheduler = Fake()
    scheduler.put(decode(), chunk(), where="running")
    given(scheduler)
    given(scheduler, throttle=False)
    assert scheduler.flags == [False, False]


def test_a_held_step_serves_decodes_and_passes_over_prefills() -> None:
    scheduler = Fake()
    scheduler.put(chunk("c"), decode("d"), where="running")
    scheduler.put(request("f"), request("g"), where="waiting")
    assert given(scheduler) == {"d": 1}
    assert scheduler.onbeat_turn.held == ["c", "f", "g"]
    assert [each.request_id for each in scheduler.waiting] == ["f", "g"]
    assert not scheduler.deferred_waiting
    assert given(scheduler, throttle=False) == {"c": 4, "d": 0, "f": 8, "g": 8}


def test_what_has_its_kv_at_hand_goes_ahead_of_the_held() -> None:
    scheduler = Fake()
    scheduler.put(decode("d"), where="running")
    scheduler.put(request("f"), request("hit"), request("remote"), where="waiting")
    scheduler.hits = {"hit": 7, "f": 4}
    scheduler.offers = {"remote": 2}
    assert given(scheduler) == {"d": 1, "hit": 1, "remote": 6}
    assert scheduler.onbeat_turn.held == ["f"]
    assert scheduler.onbeat_turn.remote == {"remote": 2}


def test_landed_loads_pass_and_sessions_do_not() -> None:
    scheduler = Fake()
    scheduler.put(decode("d"), where="running")
    landed, session = request("landed", computed=4), request("session", computed=4)
    scheduler.put(landed, session, where="kv_holding_waiting")
    scheduler._update_waiting_for_remote_kv(landed)
    assert given(scheduler) == {"d": 1, "landed": 4}
    assert scheduler.onbeat_turn.held == ["session"]
    assert not scheduler._landed, "who has been admitted is not remembered"


def test_tokens_to_be_replayed_are_work_and_hide_no_remote_store() -> None:
    scheduler = Fake()
    scheduler.prefix_replay_tokens = 3
    scheduler.put(decode("d"), where="running")
    scheduler.put(request("hit"), request("remote"), where="waiting")
    scheduler.hits = {"hit": 7, "remote": 2}
    scheduler.offers = {"hit": -3, "remote": 4 - 3}  # what the stock class passes on is less by the replay
    assert given(scheduler) == {"d": 1, "remote": 5}


def test_a_hold_that_leaves_the_step_empty_is_lifted_within_it() -> None:
    scheduler = Fake()
    scheduler.put(chunk("c"), decode("d"), where="running")
    scheduler.put(request("f"), where="waiting")
    scheduler.stuck = {"d"}
    output = scheduler.schedule(True)
    assert output.num_scheduled_tokens == {"c": 4}
    assert output.preempted_req_ids == {"d"}
    turn = scheduler.onbeat_turn
    assert (turn.hold, turn.lifted, turn.preempted, turn.held) == (True, True, True, [])
    assert scheduler.current_step == 1
    assert [each.request_id for each in scheduler.waiting] == ["d", "f"], "nobody is admitted after an eviction"
    assert not scheduler.deferred_waiting


def test_an_empty_step_that_held_nobody_is_not_run_again() -> None:
    scheduler = Fake()
    scheduler.put(decode("d"), where="running")
    scheduler.stuck = {"d"}
    assert given(scheduler) == {}
    assert scheduler.flags == [False]


@pytest.mark.parametrize("state", ["PAUSED_ALL", "PAUSED_NEW"])
def test_a_paused_step_writes_no_flag(state: str) -> None:
    scheduler = Fake()
    scheduler.put(decode("d"), where="running")
    scheduler.put(request("f"), where="waiting")
    scheduler._scan = lambda given: None  # type: ignore[method-assign]  # nobody is admitted while paused
    scheduler._pause_state = SimpleNamespace(name=state)
    given(scheduler, throttle=False)
    assert scheduler.prefill_capacity_bound is False
    scheduler._pause_state = SimpleNamespace(name="UNPAUSED")
    given(scheduler, throttle=False)
    assert scheduler.prefill_capacity_bound is True


def test_nothing_is_held_where_nothing_may_be_scheduled() -> None:
    scheduler = Fake()
    scheduler.put(decode("d"), chunk("c"), where="running")
    scheduler._pause_state = SimpleNamespace(name="PAUSED_ALL")
    given(scheduler)
    assert (scheduler.onbeat_turn.hold, scheduler.onbeat_turn.held) == (False, [])


def test_a_held_step_writes_no_flag_and_a_saturated_rank_does_not_hold() -> None:
    scheduler = Fake()
    scheduler.put(decode("d"), where="running")
    scheduler.put(request("f"), where="waiting")
    given(scheduler)
    assert (scheduler.prefill_capacity_bound, scheduler.onbeat_turn.wrote_flag) == (False, False)
    scheduler.prefill_capacity_bound = True
    assert "f" in given(scheduler)


def test_the_flag_counts_who_could_have_been_admitted() -> None:
    scheduler = Fake()
    blocked = request("loading")
    scheduler.put(blocked, where="waiting")
    blocked.status = SimpleNamespace(name="WAITING_FOR_REMOTE_KVS")
    scheduler._scan = lambda given: None  # type: ignore[method-assign]  # the slots are taken: nobody is looked at
    given(scheduler, throttle=False)
    assert scheduler.prefill_capacity_bound is False
    scheduler.finished_recving_kv_req_ids = {"loading"}
    given(scheduler, throttle=False)
    assert scheduler.prefill_capacity_bound is True


def test_who_is_skipped_for_another_reason_is_neither_held_nor_backlog() -> None:
    scheduler = Fake()
    scheduler.put(decode("d"), where="running")
    scheduler.put(request("coming"), where="waiting")
    scheduler.in_transit = {"coming"}
    assert given(scheduler) == {"d": 1}
    assert scheduler.onbeat_turn.held == []
    assert {each.request_id for each in scheduler.deferred_waiting} == {"coming"}
    scheduler.put(decode("e"), where="running")
    given(scheduler, throttle=False)
    assert (scheduler.prefill_capacity_bound, scheduler.onbeat_turn.wrote_flag) == (False, True)


def test_the_hard_bound_wins_over_the_flag() -> None:
    scheduler = Fake()
    scheduler.put(decode("d", max_tokens=200), where="running")
    scheduler.put(chunk("c"), where="running")
    steps = 0
    while steps < 100 and "c" not in scheduler.schedule(True).num_scheduled_tokens:
        scheduler.requests["d"].num_computed_tokens = 8
        steps += 1
    assert steps == 64


@pytest.mark.parametrize(("interval", "ranks", "pattern"), [(3, 1, "pddpddp"), (1, 1, "ppppppp"), (3, 2, "ppppppp")])
def test_a_rank_on_its_own_keeps_its_own_clock(interval: int, ranks: int, pattern: str) -> None:
    scheduler = Fake(interval=interval, ranks=ranks)
    scheduler.put(decode("d"), where="running")
    seen = ""
    for step in pattern:
        scheduler.requests["d"].num_computed_tokens = 8
        if not scheduler.waiting:
            scheduler.put(request(f"f{len(seen)}", max_tokens=1), where="waiting")
        tokens = given(scheduler, throttle=False)
        scheduler.running = scheduler.running[:1]
        seen += "p" if len(tokens) > 1 else "d"
        assert step in "pd"
    assert seen == pattern


def test_an_error_in_the_stock_step_leaves_everything_in_place() -> None:
    scheduler = Fake()
    held = chunk("c", next_decode_eligible_step=0)
    scheduler.put(held, decode("d"), where="running")
    blocked = request("b")
    scheduler.put(blocked, where="waiting")
    scheduler.deferred_waiting = {blocked}

    def fails(given: object) -> None:
        raise RuntimeError("broken")

    scheduler._scan = fails  # type: ignore[method-assign]  # somebody else's fault in the middle of the step
    with pytest.raises(RuntimeError, match="broken"):
        scheduler.schedule(True)
    assert held.next_decode_eligible_step == 0
    assert scheduler.deferred_waiting == {blocked}
    assert scheduler.prefill_capacity_bound is False
