"""Small groups, completely; and that what the checker leaves out makes no difference."""

import pytest

from onbeat_proofs.protocol import chart, rules
from onbeat_proofs.protocol.decide import BASE, QUICK
from onbeat_proofs.protocol.explore import explore
from onbeat_proofs.protocol.faults import FAULTS
from onbeat_proofs.protocol.functions import Text
from onbeat_proofs.protocol.state import GroupScope
from onbeat_spec.protocol import (
    Effect,
    Event,
    Front,
    GroupSettings,
    Rank,
    Sent,
    Turn,
    before_step,
    read,
    restart,
)
from tests.proofs.protocol.plain import at_rest


@pytest.mark.parametrize("scope", [scope for scope in QUICK if scope not in BASE], ids=str)
def test_two_ranks(scope: GroupScope) -> None:
    found = explore(scope)
    assert (found.invariant, found.message) == ("", "")
    assert found.states > 10_000


def test_every_interval_of_exchanges_ends_the_same() -> None:
    found = [explore(scope) for scope in BASE]
    assert [each.invariant for each in found] == [""] * 4
    assert all(each.at_rest == found[0].at_rest for each in found)
    assert len(found[0].at_rest) > 50


@pytest.mark.parametrize(
    "scope",
    [
        GroupScope(requests=1, controls=1),
        GroupScope(requests=2, controls=1, settings=(GroupSettings(2, 1),)),
        GroupScope(requests=1, controls=2, settings=(GroupSettings(2, 3),)),
        GroupScope(requests=1, controls=2, holds=True),
        GroupScope(ranks=3, requests=1, controls=1),
        GroupScope(requests=1, controls=1, aborts=1, holds=True),
        GroupScope(requests=2, controls=1, aborts=1),
    ],
    ids=str,
)
def test_the_reductions_leave_out_nothing_that_can_be_seen(scope: GroupScope) -> None:
    plain, states = at_rest(scope)
    found = explore(scope)
    assert found.invariant == ""
    assert found.at_rest == plain
    assert found.states < states


def test_all_kinds_of_moves_are_made() -> None:
    found = [
        explore(GroupScope(requests=1, controls=3, removals=1, deaths=1)),
        explore(GroupScope(requests=1, controls=2, holds=True, deaths=1, restarts=1, aborts=1)),
        explore(GroupScope(requests=1, controls=1, orphans=True)),
    ]
    assert {each.invariant for each in found} == {""}
    assert set().union(*(each.kinds for each in found)) == {
        *("request", "pause", "resume", "sleep", "rouse", "remove", "die"),
        *("turn", "fail", "notice", "end"),
        *("restart", "abort", "withdraw", "orphan", "gone"),
    }


def test_a_group_is_paused_and_held_requests_stay_whatever_ends_it() -> None:
    """What was held is lost by no restart, and is handed in once the group is not paused."""

    def forget(front: Front) -> tuple[Front, Sent]:
        after, sent = restart(front)
        return after._replace(held=0), sent

    found = explore(GroupScope(requests=1, controls=1, holds=True, deaths=1, restarts=1), Text(restart=forget))
    assert (found.invariant, "starts again" in found.message) == ("pause-agreed", True)


def test_a_rank_that_takes_a_dummy_though_it_has_work_is_found() -> None:
    def lazy(rank: Rank, has_work: bool, settings: GroupSettings) -> Turn:
        turn = before_step(rank, has_work, settings)
        return turn._replace(kind="dummy") if turn.kind == "step" and turn.phase else turn

    found = explore(GroupScope(requests=1, controls=1), Text(before_step=lazy))
    assert found.invariant == "wake-not-lost"
    assert found.message.endswith("runs a dummy, and has 1 requests that may run")


@pytest.mark.parametrize("keeps", ["paused", "sleep"])
def test_a_rank_that_rests_otherwise_than_the_front_end_says_is_found(
    keeps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here what a rank reads is not judged, so that only what it rests in tells."""

    def keep(rank: Rank, event: Event) -> tuple[Rank, Effect]:
        after, effect = read(rank, event)
        return after._replace(**{keeps: getattr(rank, keeps)}), effect

    monkeypatch.setattr(rules, "READ_PREDICATES", [])
    found = explore(GroupScope(requests=1, controls=2), Text(read=keep))
    assert found.invariant == "pause-agreed"
    assert "the group is" in found.message or "told to sleep" in found.message


def test_a_search_that_is_too_large_is_undecided() -> None:
    found = explore(GroupScope(), most=1000)
    assert (found.invariant, found.message) == ("undecided", "more than 1,000 states")


def test_a_run_as_a_chart() -> None:
    fault = FAULTS[0]
    assert chart.text(explore(fault.scope, fault.text)) == (
        "wake-not-lost: a rank that reads #1 takes it for 1, and 1 as agreed\n"
        "\n"
        "    front end               rank 0                    rank 1\n"
        "1   #1 request for rank 0 | --> #1 request          | --> #1 wake\n"
        "2                         | has not read #1 request | has not read #1 wake\n"
        "                          | is idle                 | waits in its next turn"
    )
