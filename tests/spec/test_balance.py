"""Load balancing: the public cases, and each rule by itself."""

from dataclasses import replace

import pytest

from onbeat_spec.balance import (
    WAITING_WEIGHT,
    Candidate,
    EngineLoad,
    Fleet,
    LoadReport,
    choose,
    counted,
    distance,
    fleet_of,
    is_newer,
    joined,
    paused,
    place,
    preferred,
    publishes,
    removed,
    reported,
    score,
    sent,
    serves,
    unread,
)
from onbeat_spec.errors import RequestRefused
from tests.spec.honest_rank import Rank


def place_all(fleet: Fleet, *prompts: int) -> tuple[list[int], Fleet]:
    """Place requests of so many tokens; return who got them."""
    chosen = []
    for tokens in prompts:
        index, fleet = place(fleet, tokens)
        chosen.append(index)
    return chosen, fleet


def loaded(*loads: int, turn: int = 0) -> Fleet:
    """Engines that run so many requests."""
    return Fleet(tuple(EngineLoad(LoadReport(number=1, running=load)) for load in loads), turn)


# --- The public cases ------------------------------------------------------------------------------------------------


def test_b84_before_the_first_statistics_all_engines_are_used() -> None:
    chosen, fleet = place_all(fleet_of(8), *[10] * 64)
    assert [chosen.count(index) for index in range(8)] == [8] * 8
    assert [score(engine, False) for engine in fleet.engines] == [8 * WAITING_WEIGHT] * 8


def test_b86_an_older_snapshot_forgets_no_send() -> None:
    before, fleet = place_all(fleet_of(4), *[10] * 4)
    for index in range(4):
        fleet = reported(fleet, index, LoadReport(number=1))  # all zero, and nothing read yet
    after, _ = place_all(fleet, *[10] * 4)
    assert [(before + after).count(index) for index in range(4)] == [2] * 4


@pytest.mark.parametrize(("by_tokens", "right"), [(True, 1), (False, 0)])
def test_b87_tokens_tell_a_giant_prompt_from_two_small_ones(by_tokens: bool, right: int) -> None:
    fleet = fleet_of(2, by_tokens=by_tokens)
    fleet = reported(fleet, 0, LoadReport(number=1, waiting=1, tokens=10_000))
    fleet = reported(fleet, 1, LoadReport(number=1, waiting=2, tokens=2_000))
    assert [score(engine, by_tokens) for engine in fleet.engines] == ([10_000, 2_000] if by_tokens else [4, 8])
    assert choose(fleet) == right


@pytest.mark.parametrize(("publishing", "widest"), [(True, 1), (False, 13)])
def test_b88_engines_with_long_outputs_are_seen(publishing: bool, widest: int) -> None:
    """Engines 0 and 1 never finish, the others do before the next arrival; blind, the spread grows with each round."""
    fleet, ranks, spreads = fleet_of(8), [Rank() for _ in range(8)], []
    for _ in range(100):
        index, fleet = place(fleet, 10)
        rank = ranks[index]
        rank.inbox.append(10)
        rank.read()
        rank.admit()
        if publishing:
            fleet = reported(fleet, index, rank.publish())
            assert [counted(engine) for engine in fleet.engines] == [len(rank.running) for rank in ranks]
        spreads.append(max(len(rank.running) for rank in ranks) - min(len(rank.running) for rank in ranks))
        if index > 1:
            rank.end()
            if publishing:
                fleet = reported(fleet, index, rank.publish())
    assert max(spreads) == widest  # the case asks for at most 2


def test_b88_an_engine_publishes_whatever_changes_and_nothing_else() -> None:
    last = LoadReport(3, 7, 1, 2, 30, 4, 50)
    for name in ("waiting", "running", "tokens", "read", "read_tokens"):
        for change in (-1, 1):
            assert publishes(last, replace(last, **{name: getattr(last, name) + change}))
    assert not publishes(last, replace(last, epoch=4, number=1))
    assert not publishes(LoadReport(), LoadReport(0, 1))


def test_b89_the_order_of_reports_is_each_engines_own() -> None:
    fleet = fleet_of(2)
    fleet = reported(fleet, 0, LoadReport(2, 10, running=5))
    fleet = reported(fleet, 1, LoadReport(2, 9, running=6))
    assert [counted(engine) for engine in fleet.engines] == [5, 6]
    assert reported(fleet, 1, LoadReport(2, 8, running=7)) is fleet


# --- The load --------------------------------------------------------------------------------------------------------


def test_what_counts() -> None:
    engine = EngineLoad(
        LoadReport(1, 1, waiting=2, running=3, tokens=70, read=4, read_tokens=40), sent=6, sent_tokens=55
    )
    assert unread(engine) == 2
    assert counted(engine) == 7
    assert score(engine, False) == 4 * (2 + 2) + 3
    assert score(engine, True) == 70 + 15


def test_a_send_counts_at_its_engine_alone() -> None:
    fleet = sent(fleet_of(3), 1, 12)
    assert fleet.engines == (EngineLoad(), EngineLoad(sent=1, sent_tokens=12), EngineLoad())
    assert fleet.turn == 2
    assert sent(fleet, 2, 1).turn == 0


def test_a_new_fleet() -> None:
    assert fleet_of(3) == Fleet((EngineLoad(), EngineLoad(), EngineLoad()), 0, False)
    assert fleet_of(2, by_tokens=True).by_tokens
    assert place_all(fleet_of(4, turn=2), 1, 1, 1)[0] == [2, 3, 0]


# --- The choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loads", "turn", "right"),
    [
        ((3, 1, 2), 0, 1),
        ((3, 1, 2), 2, 1),
        ((1, 1, 1), 0, 0),
        ((1, 1, 1), 1, 1),
        ((1, 1, 1), 2, 2),
        ((1, 2, 1), 1, 2),
        ((1, 1, 2), 2, 0),
        ((0,), 0, 0),
    ],
)
def test_the_least_loaded_is_chosen_and_the_turn_settles_ties(loads: tuple[int, ...], turn: int, right: int) -> None:
    assert choose(loaded(*loads, turn=turn)) == right


def test_a_tie_goes_round_even_where_others_are_in_between() -> None:
    """Engines 0 and 1 of 4 are tied, and every report is back before the next request."""
    fleet, chosen = loaded(1, 1, 9, 9), []
    for _ in range(6):
        index, after = place(fleet, 1)
        chosen.append(index)
        fleet = replace(fleet, turn=after.turn)
    assert chosen == [0, 1, 0, 1, 0, 1]


def test_distance_goes_round() -> None:
    assert [distance(index, 2, 4) for index in range(4)] == [2, 3, 0, 1]


def test_of_two_that_are_wholly_alike_the_first_stays() -> None:
    first, second = Candidate(3, 1, 0), Candidate(3, 1, 5)
    assert preferred(first, second) is first
    assert preferred(None, second) is second


# --- Who serves ------------------------------------------------------------------------------------------------------


def test_paused_and_gone_engines_are_not_chosen() -> None:
    fleet = paused(removed(loaded(0, 1, 2), 0), 1, True)
    assert [serves(engine) for engine in fleet.engines] == [False, False, True]
    assert choose(fleet) == 2
    fleet = paused(fleet, 1, False)
    assert choose(fleet) == 1
    assert not serves(paused(fleet, 0, False).engines[0])


def test_pausing_keeps_what_is_counted() -> None:
    fleet = sent(loaded(4, 4), 0, 9)
    assert paused(paused(fleet, 0, True), 0, False) == fleet
    assert counted(paused(fleet, 0, True).engines[0]) == 5


@pytest.mark.parametrize(
    ("lost", "asleep", "message"),
    [
        ((), (0, 1, 2), "3 paused, 0 dead or removed; send it again after resume"),
        ((0,), (0, 1, 2), "2 paused, 1 dead or removed; send it again after resume"),
        ((0, 1, 2), (), "0 paused, 3 dead or removed; start engines"),
        ((0, 1, 2), (1,), "0 paused, 3 dead or removed; start engines"),
    ],
)
def test_nobody_left_is_a_clear_answer(lost: tuple[int, ...], asleep: tuple[int, ...], message: str) -> None:
    fleet = fleet_of(3)
    for index in lost:
        fleet = removed(fleet, index)
    for index in asleep:
        fleet = paused(fleet, index, True)
    assert choose(fleet) is None
    with pytest.raises(RequestRefused, match=message):
        place(fleet, 1)
    assert choose(Fleet(())) is None


def test_who_joins_has_no_load_and_is_not_taken_for_the_one_before() -> None:
    fleet = reported(sent(fleet_of(2), 0, 5), 0, LoadReport(1, 8, waiting=3, read=1))
    fleet = removed(fleet, 0)
    assert reported(fleet, 0, LoadReport(1, 9, waiting=4)) is fleet
    fleet = joined(fleet, 0, 2)
    assert fleet.engines == (EngineLoad(LoadReport(2)), EngineLoad())
    assert reported(fleet, 0, LoadReport(1, 10, waiting=4)) is fleet
    assert counted(reported(fleet, 0, LoadReport(2, 1, waiting=4)).engines[0]) == 4


# --- The order of reports --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "than", "newer"),
    [
        ((0, 1), (0, 0), True),
        ((0, 1), (0, 1), False),
        ((0, 1), (0, 2), False),
        ((1, 1), (0, 9), True),
        ((0, 9), (1, 1), False),
    ],
)
def test_newer(order: tuple[int, int], than: tuple[int, int], newer: bool) -> None:
    assert is_newer(LoadReport(*order), LoadReport(*than)) is newer
    fleet = Fleet((EngineLoad(LoadReport(*than)),))
    assert reported(fleet, 0, LoadReport(*order, waiting=5)).engines[0].report.waiting == (5 if newer else 0)


def test_a_paused_engine_still_reports() -> None:
    fleet = reported(paused(fleet_of(1), 0, True), 0, LoadReport(0, 1, running=3))
    assert fleet.engines == (EngineLoad(LoadReport(0, 1, running=3), paused=True),)
