"""The monitor: what it holds against a run, and that a plain run gives it nothing to say."""

from collections.abc import Callable
from typing import Any

import pytest

from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.config import Config
from onbeat_spec.monitor import Monitor
from onbeat_spec.records import Eviction, Place, State, Violation
from tests.spec.builders import CONFIG, chunk, decode, facts, fresh, landed, loading, partial, state

TIMED = Config(block_size=4, num_blocks=10, remote_load_timeout=3)
NO_TOKENS = Config(block_size=4, num_blocks=10)
object.__setattr__(NO_TOKENS, "max_num_batched_tokens", 0)  # what a caller makes of a step that may not execute

AB = state(decode("a"), chunk("b"))
HELD = {"hold": True, "held": ["b"], "scheduled": {"a": 1}}
OPEN = {"scheduled": {"a": 1, "b": 8}, "wrote_flag": True}
DUE_AND_HELD = {"throttle": True, "hold": True, "held": ["b"], "scheduled": {"a": 1}}
LIFTED = {"throttle": True, "hold": True, "lifted": True, "scheduled": {"b": 8}}
SERVES = {"scheduled": {"a": 1}}
LOADS = {"loading": ["d"], "scheduled": {"a": 1}}
OFFERED = state(decode("a"), fresh("d", remote_tokens=4))
LOADING = state(decode("a"), loading("d"))
EVICTS = {"evictions": [Eviction("b", "a", 1)], "scheduled": {"a": 1}}


def watch(
    monitor: Monitor,
    *steps: dict[str, Any],
    before: State = AB,
    after: State | None = None,
    config: Config | None = None,
) -> Monitor:
    """Show the monitor these steps, one after the other, each between the same two states."""
    for index, step in enumerate(steps):
        monitor.step(facts(before, after, config or monitor.config, **{"index": index, **step}))
    return monitor


def watch_loads(monitor: Monitor, *steps: dict[str, Any]) -> Monitor:
    """The same between an offer that was there and a load in flight."""
    return watch(monitor, *steps, before=OFFERED, after=LOADING)


def said(monitor: Monitor, invariant: str) -> list[str]:
    return [violation.message for violation in monitor.violations if violation.invariant == invariant]


def when(monitor: Monitor, invariant: str) -> list[int]:
    return [violation.step for violation in monitor.violations if violation.invariant == invariant]


# --- A plain run -----------------------------------------------------------------------------------------------------


def test_a_plain_run_gives_it_nothing_to_say() -> None:
    """A prompt of 4 and two outputs, beside a load that lands and runs for one output."""
    monitor = Monitor(CONFIG)
    monitor.accepted("a", 4, True)
    monitor.accepted("c", 8, True)
    monitor.refused("x", 999, False)
    a, c = fresh("a", num_tokens=4, num_prompt=4, limit=6), fresh("c", remote_tokens=4, limit=9)
    come = state(a, c)
    monitor.state(come, 0)

    a = decode("a", num_tokens=4, num_computed=4, num_placeholders=1, limit=6)
    parked = state(a, loading("c", limit=9), in_flight=1)
    monitor.step(facts(come, parked, index=0, scheduled={"a": 4}, admitted=["a"], loading=["c"], wrote_flag=True))
    monitor.state(parked, 0)
    monitor.delivered("a", 0, [7], [7])
    a = a._replace(num_tokens=5, num_placeholders=0)
    parked = state(a, loading("c", limit=9))
    monitor.state(parked, 0)
    ready = state(a, landed("c", limit=9))
    monitor.notice(parked, ready, known=True, now=1)
    monitor.notice(ready, ready, known=False, now=1)
    monitor.state(ready, 1)

    a = a._replace(num_computed=5, num_blocks=2, num_placeholders=1)
    c = landed("c", limit=9, num_computed=8, num_blocks=2, reserved=0, num_placeholders=1, place=Place.RUNNING)
    last = state(a, c, in_flight=1)
    monitor.step(
        facts(ready, last, index=1, scheduled={"a": 1, "c": 4}, admitted=["c"], resumed=["c"], hold=True, throttle=True)
    )
    monitor.state(last, 1)
    for id, token in (("a", 8), ("c", 9)):
        monitor.delivered(id, 1, [token], [token])
        monitor.finished(id, "length", 2)
    monitor.state(state(), 2)
    assert monitor.violations == []


# --- Every history invariant, both ways ------------------------------------------------------------------------------


def accepts_and_refuses(monitor: Monitor) -> None:
    monitor.accepted("a", 4, True)
    monitor.refused("b", 99, False)


def takes_notice(monitor: Monitor) -> None:
    """Of what it knows, with an effect; of what it does not know, with none."""
    monitor.notice(AB, state(), known=True)
    monitor.notice(AB, AB, known=False)


HISTORY: dict[str, tuple[Callable[[Monitor], object], Callable[[Monitor], object], str]] = {
    "never-fits-refused": (
        accepts_and_refuses,
        lambda monitor: monitor.accepted("b", 99, False, 7),
        "b with 99 prompt tokens can never fit; it was accepted",
    ),
    "exactly-once": (
        lambda monitor: monitor.delivered("a", 7, (1, 2), [1, 2]),
        lambda monitor: monitor.delivered("a", 7, [1, 1], [1]),
        "a was delivered [1, 1]; sampled was [1]",
    ),
    "late-is-harmless": (
        takes_notice,
        lambda monitor: monitor.notice(AB, state(), known=False, now=7),
        "a late notice changed the state",
    ),
    "no-crash": (
        lambda monitor: None,
        lambda monitor: monitor.crashed("KeyError: 'a'", 7),
        "KeyError: 'a'",
    ),
    "held-at-most": (
        lambda monitor: watch(monitor, HELD, HELD, HELD, OPEN, HELD, HELD, HELD),
        lambda monitor: watch(monitor, OPEN, OPEN, OPEN, OPEN, HELD, HELD, HELD, {**HELD, "index": 7}),
        "b was held 4 steps in a row; 3 is the most",
    ),
    "throttle-holds": (
        lambda monitor: watch(
            monitor, *[DUE_AND_HELD] * 3, OPEN, {**DUE_AND_HELD, "lifted": True, "scheduled": {"b": 8}}
        ),
        lambda monitor: watch(monitor, *[DUE_AND_HELD] * 7, {**OPEN, "throttle": True, "index": 7}),
        "chunk b got 8 tokens in a throttled step",
    ),
    "flag-lag": (
        lambda monitor: watch(monitor, HELD, HELD, HELD, OPEN, HELD, HELD, HELD),
        lambda monitor: watch(monitor, OPEN, OPEN, OPEN, OPEN, HELD, HELD, HELD, {**HELD, "index": 7}),
        "the flag was not written for 4 steps; 3 is the most",
    ),
    "progress": (
        lambda monitor: watch(monitor, {}, {}, OPEN, {}, {}, before=AB),
        lambda monitor: watch(monitor, OPEN, OPEN, OPEN, OPEN, OPEN, {}, {}, {"index": 7}, before=AB),
        "3 steps in a row did nothing though work is there",
    ),
    "load-once": (
        lambda monitor: watch_loads(monitor, LOADS, SERVES, SERVES),
        lambda monitor: watch_loads(monitor, *[SERVES] * 3, LOADS, *[SERVES] * 3, LOADS),
        "d loads again within one allocation",
    ),
    "load-bounded": (
        lambda monitor: watch_loads(monitor, LOADS, SERVES, SERVES),
        lambda monitor: watch_loads(monitor, *[SERVES] * 4, LOADS, SERVES, SERVES, SERVES),
        "d has been loading for 3 steps of 3",
    ),
}


@pytest.mark.parametrize(("invariant", "case"), HISTORY.items(), ids=HISTORY.keys())
def test_a_history_holds_and_fails(
    invariant: str, case: tuple[Callable[[Monitor], object], Callable[[Monitor], object], str]
) -> None:
    """Every failure is in step 7, which the report says."""
    right, wrong, message = case
    config = TIMED if invariant == "load-bounded" else CONFIG
    monitor = Monitor(config)
    right(monitor)
    assert said(monitor, invariant) == []
    monitor = Monitor(config)
    wrong(monitor)
    assert Violation(invariant, 7, message) in monitor.violations
    assert when(monitor, invariant) == [7]


def test_a_load_that_one_step_starts_twice_is_one_too_many() -> None:
    monitor = watch_loads(Monitor(CONFIG), {**LOADS, "loading": ["d", "d"]})
    assert said(monitor, "load-once") == ["d loads again within one allocation"]


def test_no_history_invariant_is_left_out() -> None:
    assert set(HISTORY) == {entry.id for entry in CATALOGUE.values() if entry.history is not None}


# --- One state, one step ---------------------------------------------------------------------------------------------


def test_it_looks_at_states_and_steps() -> None:
    monitor = Monitor(CONFIG)
    monitor.state(state(decode("a"), num_slots=4), 5)
    monitor.step(facts(AB, index=6, scheduled={"a": 17}))
    assert [(violation.invariant, violation.step) for violation in monitor.violations[:2]] == [
        ("slots", 5),
        ("budget", 6),
    ]
    assert monitor.violations[0].message == "4 requests hold a slot (1 run); max_num_seqs is 3"


def test_it_goes_on_after_a_violation() -> None:
    """Everything that is wrong with a state is reported, each time it is seen."""
    monitor = Monitor(CONFIG)
    wrong = state(decode("a"), free=0, num_slots=4, running=())
    monitor.state(wrong, 1)
    monitor.state(wrong, 2)
    assert [violation.invariant for violation in monitor.violations] == ["slots", "blocks-conserved", "one-place"] * 2


# --- never-fits-refused, exactly-once, late notices ------------------------------------------------------------------


def test_what_fits_is_not_refused() -> None:
    monitor = Monitor(CONFIG)
    monitor.refused("a", 4, True, 3)
    assert monitor.violations == [Violation("never-fits-refused", 3, "a with 4 prompt tokens fits; it was refused")]


def test_before_the_first_step_it_is_step_zero() -> None:
    monitor = Monitor(CONFIG)
    monitor.accepted("a", 99, False)
    monitor.refused("a", 4, True)
    monitor.notice(AB, state(), known=False)
    assert [violation.step for violation in monitor.violations] == [0, 0, 0]


@pytest.mark.parametrize("delivered", [[], [2], [2, 1], [1], [1, 2, 2], [1, 2, 3]])
def test_tokens_are_delivered_as_sampled(delivered: list[int]) -> None:
    monitor = Monitor(CONFIG)
    monitor.delivered("a", 0, delivered, [1, 2])
    assert said(monitor, "exactly-once") == [f"a was delivered {delivered}; sampled was [1, 2]"]


# --- held-at-most ----------------------------------------------------------------------------------------------------


def holding(ids: str) -> dict[str, Any]:
    return {"hold": True, "held": list(ids), "scheduled": {"a": 1}}


def test_holds_are_counted_for_each_request() -> None:
    """Five held steps, of which nobody is held in more than three in a row."""
    before = state(decode("a"), fresh("c"), fresh("d"))
    monitor = watch(Monitor(CONFIG), *map(holding, ("c", "cd", "cd", "d", "c")), before=before)
    assert said(monitor, "held-at-most") == []


def test_every_step_too_long_is_reported() -> None:
    monitor = watch(Monitor(CONFIG), *[HELD] * 6)
    assert said(monitor, "held-at-most") == [f"b was held {count} steps in a row; 3 is the most" for count in (4, 5, 6)]


def test_the_next_of_its_name_begins_anew() -> None:
    monitor = watch(Monitor(CONFIG), HELD, HELD, HELD)
    monitor.finished("b", "abort", 3)
    watch(monitor, HELD, HELD, HELD)
    assert said(monitor, "held-at-most") == []
    watch(monitor, HELD)
    assert len(said(monitor, "held-at-most")) == 1


def test_without_a_clock_only_the_hard_bound_counts() -> None:
    monitor = Monitor(Config(block_size=4, num_blocks=10, max_hold_steps=5))
    monitor.interval = 0
    watch(monitor, *[HELD] * 5)
    assert said(monitor, "held-at-most") == said(monitor, "flag-lag") == []
    watch(monitor, HELD)
    assert said(monitor, "held-at-most") == ["b was held 6 steps in a row; 5 is the most"]
    assert said(monitor, "flag-lag") == ["the flag was not written for 6 steps; 5 is the most"]


def test_with_interval_one_nobody_is_held() -> None:
    monitor = watch(Monitor(Config(block_size=4, num_blocks=10)), HELD)
    assert said(monitor, "held-at-most") == ["b was held 1 steps in a row; 0 is the most"]
    assert said(monitor, "flag-lag") == ["the flag was not written for 1 steps; 0 is the most"]


# --- throttle-holds --------------------------------------------------------------------------------------------------


def test_a_hold_is_due_for_as_long_as_the_bound_allows() -> None:
    config = Config(block_size=4, num_blocks=10, max_hold_steps=2)
    let_through = {**OPEN, "throttle": True}
    monitor = watch(Monitor(config), DUE_AND_HELD, DUE_AND_HELD, let_through, let_through, config=config)
    assert when(monitor, "throttle-holds") == [3]


@pytest.mark.parametrize(
    "before",
    [
        state(decode("a"), chunk("b"), saturated=True),
        state(decode("a", eligible_at=9), chunk("b")),
        state(chunk("a", num_prompt=8), chunk("b")),
    ],
    ids=["saturated", "no decode that can run", "no decode"],
)
def test_no_hold_is_due(before: State) -> None:
    monitor = watch(Monitor(CONFIG), {"throttle": True, "scheduled": {"b": 8}}, before=before)
    assert said(monitor, "throttle-holds") == []


def test_a_hold_is_lifted_only_if_no_decode_was_served() -> None:
    monitor = watch(Monitor(CONFIG), {**DUE_AND_HELD, "lifted": True, "scheduled": {"a": 1, "b": 8}, "held": []})
    assert said(monitor, "throttle-holds") == ["the hold was lifted, though decode a got a token"]


# --- flag-lag --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("excuse", [OPEN, EVICTS, {"open": False}], ids=["writes", "preempts", "is paused"])
def test_the_lag_counts_from_a_step_that_could_not_write(excuse: dict[str, Any]) -> None:
    monitor = watch(Monitor(CONFIG), HELD, HELD, HELD, excuse, HELD, HELD, HELD)
    assert said(monitor, "flag-lag") == []
    watch(monitor, HELD)
    assert said(monitor, "flag-lag") == ["the flag was not written for 4 steps; 3 is the most"]


def test_a_dummy_in_between_starts_all_counts_again() -> None:
    """A rank that was paused over the beat has not left anybody waiting longer than the cadence does."""
    monitor = Monitor(CONFIG)
    most = CONFIG.prefill_schedule_interval - 1
    for _ in range(3):
        watch(monitor, *[HELD] * most)
        monitor.took_part(may_run=False)
    assert said(monitor, "held-at-most") == said(monitor, "flag-lag") == []
    watch(monitor, *[HELD] * (most + 1))
    assert len(said(monitor, "held-at-most")) == len(said(monitor, "flag-lag")) == 1
    nothing = Monitor(CONFIG)
    for _ in range(3):
        watch(nothing, {}, {})
        nothing.took_part(may_run=False)
    assert said(nothing, "progress") == []
    watch(nothing, {}, {}, {})
    assert len(said(nothing, "progress")) == 1


def test_a_dummy_in_place_of_a_step_excuses_nothing() -> None:
    """Else a rank that takes a dummy on every beat would hold its requests for ever, and nobody would notice."""
    monitor = watch(Monitor(CONFIG), *[HELD] * (CONFIG.prefill_schedule_interval - 1))
    monitor.took_part(may_run=True)
    watch(monitor, HELD)
    assert len(said(monitor, "held-at-most")) == len(said(monitor, "flag-lag")) == 1
    nothing = watch(Monitor(CONFIG), {}, {})
    nothing.took_part(may_run=True)
    watch(nothing, {})
    assert len(said(nothing, "progress")) == 1


def test_a_step_that_may_not_execute_is_no_lag() -> None:
    monitor = watch(Monitor(CONFIG), HELD, HELD, HELD)
    watch(monitor, *[{}] * 9, config=NO_TOKENS)
    assert said(monitor, "flag-lag") == []


# --- progress --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "busy",
    [{"scheduled": {"c": 8}}, {"loading": ["c"]}, {"open": False}],
    ids=["schedules", "loads", "is paused"],
)
def test_a_step_that_does_something_starts_the_count_again(busy: dict[str, Any]) -> None:
    before = state(fresh("c", remote_tokens=4))
    monitor = watch(Monitor(CONFIG), {}, {}, busy, {}, {}, before=before)
    assert said(monitor, "progress") == []
    watch(monitor, {}, before=before)
    assert said(monitor, "progress") == ["3 steps in a row did nothing though work is there"]


@pytest.mark.parametrize(
    "before",
    [
        state(),
        state(fresh("c", eligible_at=99)),
        state(decode("a", num_placeholders=1, limit=6), in_flight=1),
        state(fresh("c"), loading("d")),
        state(fresh("c"), decode("a", eligible_at=99)),
        state(fresh("c"), landed("d", eligible_at=99)),
        state(fresh("c"), num_loading=1),
    ],
    ids=[
        "nobody is there",
        "nobody may run",
        "the last token is in flight",
        "a load is due",
        "a block holder may not run",
        "a landed load may not run",
        "a load of somebody who ended",
    ],
)
def test_nothing_is_done_for_a_reason(before: State) -> None:
    assert said(watch(Monitor(CONFIG), *[{}] * 6, before=before), "progress") == []


@pytest.mark.parametrize(
    "before",
    [
        state(fresh("c")),
        state(decode("a")),
        state(landed("d")),
        state(fresh("c", eligible_at=1)),
        state(fresh("c", eligible_at=99), fresh("d")),
        partial(fresh("c")),
    ],
    ids=["waiting", "running", "landed", "eligible by now", "one of two may not run", "in a part"],
)
def test_nothing_is_done_for_no_reason(before: State) -> None:
    monitor = watch(Monitor(CONFIG), {"index": 1}, {"index": 2}, before=before)
    assert said(monitor, "progress") == []
    watch(monitor, {"index": 3}, before=before)
    assert said(monitor, "progress") == ["3 steps in a row did nothing though work is there"]


def test_a_step_without_tokens_to_give_does_nothing() -> None:
    assert said(watch(Monitor(CONFIG), *[{}] * 6, config=NO_TOKENS), "progress") == []


def test_an_end_or_a_notice_is_progress() -> None:
    monitor = watch(Monitor(CONFIG), {}, {})
    monitor.finished("x", "stop", 2)
    watch(monitor, {}, {})
    monitor.notice(AB, AB, known=True)
    watch(monitor, {}, {})
    assert said(monitor, "progress") == []
    watch(monitor, {})
    assert len(said(monitor, "progress")) == 1


# --- Loads -----------------------------------------------------------------------------------------------------------


def test_an_eviction_ends_an_allocation() -> None:
    evicts = {"evictions": [Eviction("d", "a", 1)], **SERVES}
    monitor = watch_loads(Monitor(CONFIG), LOADS, SERVES)
    watch(monitor, evicts, before=state(decode("a"), decode("d")), after=OFFERED)
    watch_loads(monitor, LOADS)
    assert said(monitor, "load-once") == []
    watch_loads(monitor, LOADS)
    assert said(monitor, "load-once") == ["d loads again within one allocation"]


def test_the_end_of_a_request_ends_its_allocation() -> None:
    monitor = watch_loads(Monitor(CONFIG), LOADS)
    monitor.finished("d", "abort", 1)
    watch_loads(monitor, LOADS)
    assert said(monitor, "load-once") == []


def test_kv_lost_outside_of_a_step_ends_its_allocation() -> None:
    monitor = watch_loads(Monitor(CONFIG), LOADS)
    monitor.released("d")
    watch_loads(monitor, LOADS)
    assert said(monitor, "load-once") == []


def test_without_a_deadline_a_load_may_take_for_ever() -> None:
    assert said(watch_loads(Monitor(CONFIG), LOADS, *[SERVES] * 99), "load-bounded") == []


def test_a_load_that_landed_is_not_loading() -> None:
    monitor = watch_loads(Monitor(TIMED), LOADS, SERVES)
    watch(monitor, *[SERVES] * 6, before=state(decode("a"), landed("d")))
    watch(monitor, *[SERVES] * 6, before=state(decode("a")))
    assert said(monitor, "load-bounded") == []


def test_monitors_share_nothing() -> None:
    one, other = Monitor(CONFIG), Monitor(CONFIG)
    watch(one, *[HELD] * 4)
    watch(other, HELD)
    assert said(one, "held-at-most")
    assert not said(other, "held-at-most")
