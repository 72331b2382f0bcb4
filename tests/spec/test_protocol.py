"""The data-parallel protocol, function by function."""

import pytest

from onbeat_spec import protocol
from onbeat_spec.errors import ConfigError, ProtocolMisuse, RequestRefused
from onbeat_spec.protocol import Agreement, Event, Front, GroupSettings, Rank, Turn, Vote

TWO = GroupSettings(interval=2, sync=3)
FRONT = Front((0, 1))
PAUSED = protocol.pause(FRONT, "keep", holds=False)[0]
HOLDING = protocol.pause(FRONT, "keep", holds=True)[0]
BUSY = Rank(read=4, agreed=3, left=2, phase=1, members=2)


# --- In common -------------------------------------------------------------------------------------------------------


def test_ranks_of_a_group_have_the_same_settings() -> None:
    assert protocol.common([TWO, TWO]) == TWO
    with pytest.raises(ConfigError, match=r"\[\(2, 3\), \(2, 4\)\]"):
        protocol.common([TWO, GroupSettings(2, 4)])


@pytest.mark.parametrize("settings", [GroupSettings(0, 1), GroupSettings(1, 0)])
def test_intervals_are_at_least_one(settings: GroupSettings) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        protocol.common([settings])


def test_a_shipped_rank_exchanges_every_16_forwards() -> None:
    assert GroupSettings() == (1, 16)
    assert protocol.common([GroupSettings(1, 1)]) == (1, 1)


def test_ranks_that_share_nothing_are_groups_of_one() -> None:
    assert protocol.groups(3, coupled=True) == ((0, 1, 2),)
    assert protocol.groups(3, coupled=False) == ((0,), (1,), (2,))


# --- A rank reads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "after", "effect"),
    [
        (Event(1, "request"), Rank(read=1), "accept"),
        (Event(1, "wake"), Rank(read=1), "none"),
        (Event(1, "pause", "keep"), Rank(read=1, paused="keep"), "none"),
        (Event(1, "pause", "wait"), Rank(read=1, paused="wait"), "none"),
        (Event(1, "pause", "abort"), Rank(read=1, paused="abort"), "abort"),
        (Event(1, "sleep"), Rank(read=1, sleep=True), "none"),
        (Event(1, "leave"), Rank(read=1, leaving=True), "none"),
        (Event(1, "remove"), Rank(read=1, departing=1), "none"),
        (Event(1, "end"), Rank(read=1, ended="a rank of the group died"), "abort"),
        (Event(2, "wake"), Rank(ended="event 1 was lost"), "abort"),
        (Event(0, "request"), Rank(), "none"),
    ],
)
def test_what_an_event_does_to_a_rank(event: Event, after: Rank, effect: str) -> None:
    assert protocol.read(Rank(), event) == (after, effect)


def test_resume_ends_sleep_too_and_rousing_leaves_the_pause() -> None:
    asleep = Rank(paused="keep", sleep=True, asleep=True)
    assert protocol.read(asleep, Event(1, "resume"))[0] == Rank(read=1)
    assert protocol.read(asleep, Event(1, "rouse"))[0] == Rank(read=1, paused="keep")


def test_a_rank_that_has_ended_reads_nothing_more() -> None:
    ended = Rank(ended="removed")
    assert protocol.read(ended, Event(1, "request")) == (ended, "none")


# --- A rank's turn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "work", "turn"),
    [
        (Rank(), True, Turn("idle")),
        (Rank(read=1, ended="removed"), True, Turn("idle")),
        (Rank(read=1), True, Turn("exchange", vote=Vote(1, True))),
        (Rank(read=1), False, Turn("exchange", vote=Vote(1, False))),
        (Rank(read=1, paused="keep"), True, Turn("exchange", vote=Vote(1, False))),
        (Rank(read=1, paused="abort"), True, Turn("exchange", vote=Vote(1, False))),
        (Rank(read=1, paused="wait"), True, Turn("exchange", vote=Vote(1, True))),
        (Rank(read=1, asleep=True), False, Turn("exchange", vote=Vote(1, False))),
        (BUSY, True, Turn("step", True, 1)),
        (BUSY, False, Turn("dummy", True, 1)),
        (BUSY._replace(phase=0), True, Turn("step", False, 0)),
        (BUSY._replace(asleep=True), True, Turn("idle")),
        (BUSY._replace(members=1), True, Turn("step", None, 1)),  # its local clock throttles it (B80)
    ],
)
def test_what_a_rank_does_next(rank: Rank, work: bool, turn: Turn) -> None:
    assert protocol.before_step(rank, work, TWO) == turn


def test_a_step_without_tokens_takes_part_in_the_same_collectives() -> None:
    assert protocol.collectives(Turn("step"), 0) == protocol.collectives(Turn("step"), 7) == ("forward",)
    assert protocol.collectives(Turn("dummy"), 0) == ("forward",)
    assert protocol.collectives(Turn("exchange"), 0) == ("exchange",)
    assert protocol.collectives(Turn("idle"), 0) == ()


def test_an_exchange_returns_extremes_and_whether_anybody_has_work() -> None:
    assert protocol.tally([Vote(3, False), Vote(5, True), Vote(4, False)]) == Agreement(3, 5, True)
    assert protocol.tally([Vote(3, False)]) == Agreement(3, 3, False)


def test_a_forward_moves_the_phase_and_nears_the_next_exchange() -> None:
    assert protocol.after_step(BUSY, TWO, None) == BUSY._replace(left=1, phase=0)


def test_after_an_exchange_that_found_work_forwards_follow() -> None:
    rank = BUSY._replace(left=0)
    assert protocol.after_step(rank, TWO, Agreement(2, 4, True)) == rank._replace(left=3)
    alone = rank._replace(members=1)
    assert protocol.after_step(alone, TWO, Agreement(4, 4, True)) == alone._replace(left=1)


def test_while_some_have_not_read_all_the_exchange_is_repeated() -> None:
    rank = BUSY._replace(left=0)
    assert protocol.after_step(rank, TWO, Agreement(3, 4, False)) == rank


def test_all_have_read_the_same_and_none_has_work_so_they_stop_on_the_beat() -> None:
    rank = BUSY._replace(left=0)
    assert protocol.after_step(rank, TWO, Agreement(4, 4, False)) == Rank(read=4, agreed=4, members=2)


def test_a_group_changes_and_falls_asleep_when_it_stops() -> None:
    stopped = protocol.stop(BUSY._replace(sleep=True, departing=1))
    assert stopped == Rank(read=4, agreed=4, sleep=True, asleep=True, members=1)
    assert protocol.stop(BUSY._replace(leaving=True)).ended == "removed"


def test_a_rank_that_lost_its_group_keeps_the_first_reason() -> None:
    rank, effect = protocol.lost(BUSY, "a collective failed")
    assert (rank.ended, effect) == ("a collective failed", "abort")
    assert protocol.lost(rank, "later")[0].ended == "a collective failed"


# --- The front end ---------------------------------------------------------------------------------------------------


def test_a_request_goes_to_its_rank_and_wakes_all_others() -> None:
    front, sent = protocol.request(FRONT, 1)
    assert front == FRONT._replace(last=1)
    assert sent == ((0, Event(1, "wake")), (1, Event(1, "request")))


def test_admission() -> None:
    assert protocol.admission(FRONT, 1) == "accept"
    assert protocol.admission(FRONT, 2) == "refuse"
    assert protocol.admission(PAUSED, 1) == "refuse"
    assert protocol.admission(HOLDING, 1) == "hold"
    assert protocol.admission(protocol.pause(HOLDING, "abort", holds=False)[0], 1) == "refuse"
    assert protocol.admission(FRONT._replace(leaving=(1,)), 1) == "refuse"
    assert protocol.admission(PAUSED._replace(ended="rank 0 died"), 1) == "ended"


def test_a_request_while_paused_is_refused_or_held_and_counted() -> None:
    with pytest.raises(RequestRefused, match=r"rank 1 takes no requests now \(keep\); try again later"):
        protocol.request(PAUSED, 1)
    held, sent = protocol.request(HOLDING, 1)
    assert (held.held, held.last, sent) == (1, 1, ())
    assert protocol.resume(held)[0] == FRONT._replace(last=2, holds=True)


def test_a_request_that_is_held_can_be_withdrawn() -> None:
    held = HOLDING._replace(held=2)
    assert protocol.withdraw(held) == held._replace(held=1)
    for front in (PAUSED, protocol.withdraw(protocol.withdraw(held))):
        with pytest.raises(ProtocolMisuse, match="no request is held"):
            protocol.withdraw(front)


def test_a_request_to_a_group_that_has_ended_is_refused_for_good() -> None:
    with pytest.raises(RequestRefused, match="the group has ended: rank 0 died; start it again"):
        protocol.request(protocol.died(FRONT, 0)[0], 1)
    with pytest.raises(RequestRefused, match="it is leaving"):
        protocol.request(FRONT._replace(leaving=(1,)), 1)


def test_pause_and_resume_are_idempotent() -> None:
    assert protocol.pause(FRONT, "keep", holds=False)[1] == ((0, Event(1, "pause")), (1, Event(1, "pause")))
    assert protocol.pause(PAUSED, "keep", holds=False) == (PAUSED, ())
    assert protocol.pause(PAUSED, "abort", holds=False)[1][0] == (0, Event(2, "pause", "abort"))
    assert protocol.resume(FRONT) == (FRONT, ())
    assert protocol.resume(PAUSED)[1] == ((0, Event(2, "resume")), (1, Event(2, "resume")))


def test_sleep_is_on_top_of_a_pause() -> None:
    with pytest.raises(ProtocolMisuse, match="pause it first"):
        protocol.sleep(FRONT)
    sleeping, sent = protocol.sleep(PAUSED)
    assert (sleeping.sleeping, sent[0]) == (True, (0, Event(2, "sleep")))
    assert protocol.sleep(sleeping) == (sleeping, ())
    with pytest.raises(ProtocolMisuse, match="rouse it first"):
        protocol.pause(sleeping, "wait", holds=False)
    assert protocol.pause(sleeping, "abort", holds=False)[0].paused == "abort"
    assert protocol.rouse(PAUSED) == (PAUSED, ())
    roused, sent = protocol.rouse(sleeping)
    assert (roused.sleeping, roused.paused, sent[1]) == (False, "keep", (1, Event(3, "rouse")))
    assert not protocol.resume(sleeping)[0].sleeping


def test_a_rank_is_removed_from_a_paused_group() -> None:
    with pytest.raises(ProtocolMisuse, match="pause it first"):
        protocol.remove(FRONT, 1)
    front, sent = protocol.remove(PAUSED, 1)
    assert (front.leaving, sent) == ((1,), ((0, Event(2, "remove")), (1, Event(2, "leave"))))
    assert protocol.remove(front, 1) == (front, ())
    for rank in (0, 2):
        with pytest.raises(ProtocolMisuse, match="cannot be removed"):
            protocol.remove(front, rank)


def test_a_dead_rank_ends_its_group_and_nothing_follows() -> None:
    front, sent = protocol.died(PAUSED, 1)
    assert (front.ended, sent) == ("rank 1 died", ((0, Event(2, "end")), (1, Event(2, "end"))))
    assert protocol.died(front, 0) == (front, ())
    assert protocol.remove(front, 1) == (front, ())


def test_what_is_asked_of_an_ended_group_counts_when_it_starts_again() -> None:
    ended = protocol.died(HOLDING._replace(held=2), 1)[0]
    assert protocol.restart(ended) == (
        Front((0, 1), 1, "keep", holds=True, held=2),
        ((0, Event(1, "pause", "keep")), (1, Event(1, "pause", "keep"))),
    )
    asleep, sent = protocol.sleep(ended)
    assert (asleep, sent) == (ended._replace(sleeping=True), ())
    front, told = protocol.restart(asleep)
    assert (front.sleeping, front.last, [event.kind for to, event in told if to == 1]) == (True, 2, ["pause", "sleep"])
    assert protocol.rouse(asleep) == (ended, ())
    resumed, sent = protocol.resume(asleep)
    assert (resumed, sent) == (ended._replace(paused=None), ())
    assert protocol.restart(resumed) == (Front((0, 1)), ())
    aborted, sent = protocol.pause(resumed, "abort", holds=False)
    assert ((aborted.paused, aborted.held), sent) == (("abort", 0), ())
    with pytest.raises(ProtocolMisuse, match="only a group that has ended"):
        protocol.restart(HOLDING)


def test_a_rank_that_is_left_alone_shares_no_forward() -> None:
    pair = Rank(members=2, departing=1)
    assert (protocol.shares(pair), protocol.shares(protocol.stop(pair))) == (True, False)


def test_reports_are_compared_rank_by_rank() -> None:
    # Case B89: engine 0 at 10, engine 1 at 9, then a late one of engine 1 at 8.
    front = protocol.report(protocol.report(FRONT._replace(last=10), 0, 10), 1, 9)
    assert front.stopped == (10, 9)
    assert protocol.report(front, 1, 8) == front


def test_who_is_no_member_neither_reports_nor_dies() -> None:
    for call in (lambda: protocol.report(FRONT, 2, 1), lambda: protocol.died(FRONT, 2)):
        with pytest.raises(ProtocolMisuse, match=r"rank 2 is no member of this group, which has \(0, 1\)"):
            call()
    assert protocol.report(Front((4, 7), last=3), 7, 3).stopped == (0, 3)


def test_complete_follows_from_reports_about_the_latest_number() -> None:
    assert protocol.complete(FRONT)
    front = PAUSED
    assert not protocol.complete(front)
    front = protocol.report(front, 0, 1)
    assert not protocol.complete(front)
    assert protocol.complete(protocol.report(front, 1, 1))
    assert protocol.complete(front._replace(leaving=(1,)))
