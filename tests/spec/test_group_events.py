"""What an event of a group obliges to: a case of each obligation that is met, and of each that is not."""

from typing import Any

import pytest

from onbeat_spec import protocol
from onbeat_spec.catalogue import GROUP_CATALOGUE
from onbeat_spec.invariants import CALL_PREDICATES, READ_PREDICATES
from onbeat_spec.protocol import Event, Front, Rank, Sent
from onbeat_spec.protocol.facts import CallKind, EventRead, FrontCall

FRONT = Front((0, 1, 2))
PAUSED, TOLD = protocol.pause(FRONT, "keep", holds=True)
ABORTED, ABORT = protocol.pause(PAUSED._replace(held=1), "abort", holds=False)
ASLEEP, SLEEP = protocol.sleep(PAUSED)
AWAKE, ROUSE = protocol.rouse(ASLEEP)
RESUMED, RESUME = protocol.resume(ASLEEP._replace(held=2))
LEFT, LEAVE = protocol.remove(PAUSED, 1)
OVER, END = protocol.died(LEFT, 1)
ASKED, REQUEST = protocol.request(FRONT, 1)
HELD, _ = protocol.request(PAUSED, 1)


def called(kind: CallKind, before: Front, after: Front, sent: Sent, **about: Any) -> dict[str, str]:
    about = {"living": (0, 1, 2), **about}
    call = FrontCall(kind, before, after, sent, **about)
    return {entry.id: message for entry, check in CALL_PREDICATES if (message := check(call))}


def without(sent: Sent, rank: int) -> Sent:
    return tuple(message for message in sent if message[0] != rank)


CALLS: list[tuple[CallKind, Front, Front, Sent, dict[str, Any]]] = [
    ("request", FRONT, ASKED, REQUEST, {"rank": 1}),
    ("pause", FRONT, PAUSED, TOLD, {"mode": "keep"}),
    ("pause", PAUSED._replace(held=1), ABORTED, ABORT, {"mode": "abort"}),
    ("sleep", PAUSED, ASLEEP, SLEEP, {}),
    ("rouse", ASLEEP, AWAKE, ROUSE, {}),
    ("resume", ASLEEP._replace(held=2), RESUMED, RESUME, {}),
    ("remove", PAUSED, LEFT, LEAVE, {"rank": 1}),
]


@pytest.mark.parametrize(("kind", "before", "after", "sent", "about"), CALLS)
def test_whoever_lives_is_told(kind: CallKind, before: Front, after: Front, sent: Sent, about: dict[str, Any]) -> None:
    invariant = "wake-not-lost" if kind == "request" else "pause-agreed"
    assert called(kind, before, after, sent, **about) == {}
    for rank in (0, 1, 2):
        found = called(kind, before, after, without(sent, rank), **about)
        assert found == {invariant: f"rank {rank} is not told of a {kind}"}
        assert called(kind, before, after, without(sent, rank), **{**about, "living": {0, 1, 2} - {rank}}) == {}
    late = tuple((to, event._replace(number=event.number + 1)) for to, event in sent)
    assert "is told" in called(kind, before, after, late, **about)[invariant]


@pytest.mark.parametrize(("kind", "before", "after", "sent", "about"), CALLS[1:])
def test_the_front_end_takes_the_group_for_what_was_asked(
    kind: CallKind, before: Front, after: Front, sent: Sent, about: dict[str, Any]
) -> None:
    assert "the front end takes" in called(kind, before, before, sent, **about)["pause-agreed"]
    for wrong in (after._replace(held=7), after._replace(sleeping=not after.sleeping), after._replace(paused="wait")):
        assert "the front end takes" in called(kind, before, wrong, sent, **about)["pause-agreed"]
    assert called(kind, after, after, (), **about) == {}


def test_a_paused_group_takes_no_request() -> None:
    assert called("request", PAUSED, HELD, (), rank=1) == {}
    for after, sent in ((PAUSED, ()), (HELD, REQUEST)):
        assert "neither held nor refused" in called("request", PAUSED, after, sent, rank=1)["pause-agreed"]


def test_a_death_ends_the_group_and_all_that_are_left_are_told() -> None:
    assert called("death", LEFT, OVER, END, rank=1, living=(0, 2)) == {}
    assert called("death", LEFT, LEFT, (), rank=1, living=(0, 2)) == {
        "end-is-clear": "rank 1 died, and the front end goes on with the group"
    }
    assert called("death", LEFT, OVER, without(END, 2), rank=1, living=(0, 2)) == {
        "end-is-clear": "rank 2 is not told of a death"
    }
    assert called("death", OVER, OVER, (), rank=2, living=(0,)) == {}
    assert "a rouse ends" in called("rouse", PAUSED, PAUSED._replace(ended="x"), ())["end-is-clear"]


@pytest.mark.parametrize("asked", [RESUMED, PAUSED, ASLEEP, PAUSED._replace(held=2)])
def test_a_group_starts_again_as_it_was_asked_to_be(asked: Front) -> None:
    ended = asked._replace(ended="rank 1 died", leaving=(2,))
    after, sent = protocol.restart(ended)
    assert called("restart", ended, after, sent) == {}
    wrongs = (
        after._replace(paused="wait"),
        after._replace(sleeping=not after.sleeping),
        after._replace(held=7),
        after._replace(last=9),
        after._replace(leaving=(2,)),
    )
    for wrong in wrongs:
        assert "pause-agreed" in called("restart", ended, wrong, sent)
    assert "end-is-clear" in called("restart", ended, after._replace(ended="still"), sent)
    if sent:
        assert "is told []" in called("restart", ended, after, without(sent, 1))["pause-agreed"]


def test_an_ended_group_is_sent_nothing() -> None:
    ended = FRONT._replace(ended="rank 1 died")
    after, sent = protocol.pause(ended, "keep", holds=True)
    assert called("pause", ended, after, sent, mode="keep") == {}
    assert "is sent" in called("pause", ended, after, TOLD, mode="keep")["pause-agreed"]
    assert "takes back" in called("pause", ended, PAUSED, (), mode="keep")["end-is-clear"]
    assert "the front end takes" in called("pause", ended, ended, (), mode="keep")["pause-agreed"]


def has_read(event: Event, before: Rank, after: Rank, had: int, has: int) -> dict[str, str]:
    read = EventRead(event, before, after, had, has)
    return {entry.id: message for entry, check in READ_PREDICATES if (message := check(read))}


READS = [
    (Event(4, "request"), 1),
    (Event(4, "wake"), 0),
    (Event(4, "pause", "keep"), 0),
    (Event(4, "pause", "wait"), 0),
    (Event(4, "pause", "abort"), -2),
    (Event(4, "resume"), 0),
    (Event(4, "sleep"), 0),
    (Event(4, "rouse"), 0),
    (Event(4, "leave"), 0),
    (Event(4, "remove"), 0),
    (Event(4, "end"), -2),
]


@pytest.mark.parametrize(("event", "more"), READS, ids=str)
def test_what_an_event_leaves(event: Event, more: int) -> None:
    before = Rank(read=3, agreed=2, members=3, paused=None if event.kind == "pause" else "keep")
    before = before._replace(asleep=event.kind in ("resume", "rouse"), sleep=event.kind in ("resume", "rouse"))
    after, _ = protocol.read(before, event)
    assert has_read(event, before, after, 2, 2 + more) == {}
    assert has_read(event, before, after, 2, 3 + more)
    assert has_read(event, before, after._replace(ended="" if after.ended else "why"), 2, 2 + more)
    if not after.ended:
        assert "wake-not-lost" in has_read(event, before, after._replace(agreed=4), 2, 2 + more)
        changes: dict[str, Any] = {
            "paused": "wait" if after.paused != "wait" else None,
            "departing": 5,
            "leaving": not after.leaving,
        }
        changes |= {"sleep": not after.sleep, "asleep": not after.asleep}
        for field, value in changes.items():
            assert "pause-agreed" in has_read(event, before, after._replace(**{field: value}), 2, 2 + more), field


def test_the_predicates_are_those_of_invariants_that_are_listed() -> None:
    both = {"wake-not-lost", "pause-agreed", "end-is-clear"}
    assert {entry.id for entry, _ in CALL_PREDICATES} == {entry.id for entry, _ in READ_PREDICATES} == both
    assert all({"call", "read"} <= set(GROUP_CATALOGUE[id].scopes) for id in both)
