"""Theorems about groups of any size, with any intervals and any numbers.

What all ranks of a group have in common, whatever each has read: the number they agreed on, the forwards until the
next exchange, the phase, the size of the group. *Alike* is an equivalence between two ranks, so what is shown of any
two holds for any number of them. It holds at the start (all are equal), reading keeps it, and a turn of all keeps it;
and ranks that are alike and take a turn take part in the same collective. So by induction over events and turns all
agree for ever.
"""

from typing import Any

from onbeat_proofs.prove.states import Numbers
from onbeat_proofs.prove.theorem import PathVerdict, Theorem
from onbeat_spec.policy import Policy
from onbeat_spec.protocol import (
    Agreement,
    Event,
    GroupSettings,
    Rank,
    Vote,
    after_step,
    before_step,
    collectives,
    may_run,
    read,
    stop,
    tally,
)

PAUSES = (None, "keep", "abort", "wait")
KINDS = ("request", "wake", "pause", "resume", "sleep", "rouse", "leave", "remove", "end")
MODES = ("keep", "abort", "wait")


def _settings(numbers: Numbers, name: str = "") -> GroupSettings:
    return GroupSettings(numbers.int("interval", 1), numbers.int(f"sync{name}", 1))


def _ranks(numbers: Numbers, settings: GroupSettings, *names: str) -> list[Rank]:
    """Return ranks that are alike: what they share is the same, all else is free."""
    agreed, left, phase = numbers.int("agreed", 0), numbers.int("left", 0), numbers.int("phase", 0)
    members = numbers.int("members", 1)
    ranks: list[Rank] = []
    numbers.assume(left <= settings.sync)
    numbers.assume(phase < settings.interval)
    for name in names:
        number = numbers.int(f"read {name}", 0)
        numbers.assume(number >= agreed)
        numbers.assume(number > agreed or (left == 0 and phase == 0))  # between two busy periods
        paused: Any = numbers.pick(f"paused {name}", PAUSES)
        asleep, sleep = bool(numbers.bool(f"asleep {name}")), bool(numbers.bool(f"sleep {name}"))
        numbers.assume(not asleep or sleep)
        departing = numbers.int(f"departing {name}", 0)
        for other in ranks:
            # The log says who departs; who leaves itself is no part of the group after the stop.
            numbers.assume(number != other.read or departing == other.departing)
        ranks.append(Rank(number, agreed, left, phase, paused, sleep, asleep, members, departing))
    return ranks


def _alike(one: Rank, other: Rank) -> bool:
    return bool(
        one.agreed == other.agreed
        and one.left == other.left
        and one.phase == other.phase
        and one.members == other.members
    )


def _exchanged(numbers: Numbers, *votes: Vote) -> Agreement:
    """Return what an exchange of these with any others may return."""
    lowest, highest = numbers.int("lowest", 0), numbers.int("highest", 0)
    work = bool(numbers.bool("work anywhere"))
    for vote in votes:
        numbers.assume(lowest <= vote.read)
        numbers.assume(vote.read <= highest)
        numbers.assume(work or not vote.work)
    return Agreement(lowest, highest, work)


def same_collectives(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Two that are alike and take a turn take part in the same collectives, whatever they have to do."""
    settings = _settings(numbers)
    turns = [
        before_step(rank, bool(numbers.bool(f"work {name}")), settings)
        for name, rank in zip("ab", _ranks(numbers, settings, "a", "b"), strict=True)
    ]
    if any(turn.kind == "idle" for turn in turns):
        return PathVerdict(None, False)
    one, other = (collectives(turn, numbers.pick(f"tokens {n}", (0, 1))) for n, turn in zip("ab", turns, strict=True))
    same = one == other and turns[0].throttle == turns[1].throttle and turns[0].phase == turns[1].phase
    return PathVerdict(None if same else "ranks that are alike take part in different collectives", True)


def turn_keeps(numbers: Numbers, policy: Policy) -> PathVerdict:
    """After a turn of all, two that were alike are alike, and both stop or neither."""
    settings = _settings(numbers)
    ranks = _ranks(numbers, settings, "a", "b")
    turns = [before_step(rank, bool(numbers.bool(f"work {n}")), settings) for n, rank in zip("ab", ranks, strict=True)]
    if any(turn.kind == "idle" for turn in turns):
        return PathVerdict(None, False)
    votes = [turn.vote for turn in turns if turn.vote is not None]
    agreement = _exchanged(numbers, *votes) if votes else None
    one, other = (after_step(rank, settings, agreement) for rank in ranks)
    if not _alike(one, other):
        return PathVerdict("ranks that were alike are not after a turn", True)
    if (one.read == one.agreed) != (other.read == other.agreed):
        return PathVerdict("one rank stops and the other does not", True)
    if not (one.phase >= 0 and one.phase < settings.interval and one.left >= 0 and one.left <= settings.sync):
        return PathVerdict("phase or forwards left are out of their range", True)
    return PathVerdict(None, True)


def reading_keeps(numbers: Numbers, policy: Policy) -> PathVerdict:
    """What a rank reads changes nothing that it shares, unless it ends; and it reads in order."""
    (rank,) = _ranks(numbers, _settings(numbers), "a")
    kind: Any = numbers.pick("kind", KINDS)
    mode: Any = numbers.pick("mode", MODES)
    event = Event(numbers.int("number", 0), kind, mode)
    after, _ = read(rank, event)
    if not _alike(rank, after):
        return PathVerdict("reading changes what ranks share", True)
    if not after.ended and not (after.read == rank.read or after.read == rank.read + 1):
        return PathVerdict("an event was left out", True)
    return PathVerdict(None, not after.ended)


def copies_are_harmless(numbers: Numbers, policy: Policy) -> PathVerdict:
    """An event that was read before changes nothing when it comes again."""
    (rank,) = _ranks(numbers, _settings(numbers), "a")
    kind: Any = numbers.pick("kind", KINDS)
    event = Event(numbers.int("number", 0), kind, "abort")
    numbers.assume(event.number <= rank.read)
    same = read(rank, event) == (rank, "none")
    return PathVerdict(None if same else "a copy of an event changes a rank", True)


def stops_without_work(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A rank that stops has no work that may run, and nobody has read more than it has."""
    settings = _settings(numbers)
    (rank,) = _ranks(numbers, settings, "a")
    work = bool(numbers.bool("work a"))
    turn = before_step(rank, work, settings)
    if turn.vote is None:
        return PathVerdict(None, False)
    agreement = _exchanged(numbers, turn.vote)
    after = after_step(rank, settings, agreement)
    if after.read != after.agreed:
        return PathVerdict(None, False)
    if may_run(rank, work):
        return PathVerdict("a rank stops with work", True)
    if agreement.highest != after.agreed or agreement.lowest != after.agreed:
        return PathVerdict("a rank stops and others have read more, or less", True)
    return PathVerdict(None, True)


def wakes(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A rank that has read more than was agreed takes a turn, unless it sleeps and is due for a forward."""
    settings = _settings(numbers)
    (rank,) = _ranks(numbers, settings, "a")
    work = bool(numbers.bool("work a"))
    turn = before_step(rank, work, settings)
    busy = bool(rank.read > rank.agreed)
    due = bool(rank.left > 0)
    if (turn.kind == "idle") != (not busy or (rank.asleep and due)):
        return PathVerdict("a rank is idle in a busy period, or takes a turn outside of one", True)
    if turn.kind == "dummy" and may_run(rank, work):
        return PathVerdict("a rank with work runs a dummy", True)
    return PathVerdict(None, busy)


def asleep_runs_nothing(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A rank that has given its memory up takes part in exchanges only."""
    settings = _settings(numbers)
    (rank,) = _ranks(numbers, settings, "a")
    turn = before_step(rank, bool(numbers.bool("work a")), settings)
    wrong = rank.asleep and turn.kind in ("step", "dummy")
    return PathVerdict("a rank runs a forward asleep" if wrong else None, rank.asleep)


def stop_resets(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A group that stops is idle at the number it agreed on, on the beat, and exchanges first when it wakes."""
    (rank,) = _ranks(numbers, _settings(numbers), "a")
    after = stop(rank)
    right = after.agreed == rank.read and after.read == rank.read and after.left == 0 and after.phase == 0
    return PathVerdict(None if right else "a stop leaves something of the busy period", True)


def phase_counts_forwards(numbers: Numbers, policy: Policy) -> PathVerdict:
    """If phase = forwards of the busy period - a multiple of interval, then so after every turn."""
    settings = _settings(numbers)
    (rank,) = _ranks(numbers, settings, "a")
    numbers.assume(rank.read > rank.agreed)
    multiple = numbers.int("multiple", 0)
    forwards = multiple + rank.phase
    exchange = bool(rank.left == 0)
    agreement = _exchanged(numbers, Vote(rank.read, False)) if exchange else None
    after = after_step(rank, settings, agreement)
    if after.read == after.agreed:
        return PathVerdict(None if after.phase == 0 else "an idle rank is off the beat", True)
    then = forwards if exchange else forwards + 1
    wrapped = not exchange and bool(after.phase == 0)
    if wrapped and rank.phase + 1 < settings.interval:
        return PathVerdict("the phase went back to 0 before its time", True)
    right = (multiple + settings.interval if wrapped else multiple) + after.phase == then
    return PathVerdict(None if right else "the phase does not count forwards", True)


def interval_changes_nothing_else(numbers: Numbers, policy: Policy) -> PathVerdict:
    """With another sync a rank takes the same turn, stops at the same time, and differs only in `left` after work."""
    one = _settings(numbers)
    other = one._replace(sync=numbers.int("sync other", 1))
    (rank,) = _ranks(numbers, one, "a")
    work = bool(numbers.bool("work a"))
    turn = before_step(rank, work, one)
    if turn != before_step(rank, work, other):
        return PathVerdict("a turn depends on sync", True)
    if turn.kind == "idle":
        return PathVerdict(None, False)
    agreement = _exchanged(numbers, turn.vote) if turn.vote is not None else None
    first, second = after_step(rank, one, agreement), after_step(rank, other, agreement)
    if first != second and not (agreement and agreement.work and first._replace(left=0) == second._replace(left=0)):
        return PathVerdict("something besides the forwards left depends on sync", True)
    if not (first.left >= 0 and second.left >= 0):
        return PathVerdict("forwards left are below 0", True)
    return PathVerdict(None, True)


def exchange_is_right(numbers: Numbers, policy: Policy) -> PathVerdict:
    """The outcome of an exchange bounds every vote, is one of them, and tells of work iff somebody has it."""
    votes = [Vote(numbers.int(f"read {n}", 0), bool(numbers.bool(f"work {n}"))) for n in "abc"]
    agreement = tally(votes)
    bounds = all(agreement.lowest <= vote.read and vote.read <= agreement.highest for vote in votes)
    met = any(agreement.lowest == vote.read for vote in votes) and any(agreement.highest == vote.read for vote in votes)
    work = votes[0].work or votes[1].work or votes[2].work
    right = bounds and met and agreement.work == work
    return PathVerdict(None if right else "an exchange returns something else", True)


THEOREMS = (
    Theorem("collectives-align/same-turn", "Ranks alike take part in the same collectives.", same_collectives),
    Theorem("phase-agrees/turn-keeps", "A turn of all leaves ranks alike that were; all stop or none.", turn_keeps),
    Theorem("phase-agrees/reading-keeps", "Reading changes nothing that ranks share.", reading_keeps),
    Theorem("phase-agrees/modulo", "phase = forwards of the busy period modulo interval.", phase_counts_forwards),
    Theorem("wake-not-lost/stop", "Who stops has no work, and has read as much as anybody.", stops_without_work),
    Theorem("wake-not-lost/wakes", "Who has read more than was agreed takes a turn.", wakes),
    Theorem("pause-agreed/copies", "A copy of an event changes nothing.", copies_are_harmless),
    Theorem("pause-agreed/asleep", "Who sleeps runs no forward.", asleep_runs_nothing),
    Theorem("sync-interval-free/start", "A busy period begins with an exchange, on the beat.", stop_resets),
    Theorem("sync-interval-free/else", "Nothing but the forwards left depends on sync.", interval_changes_nothing_else),
    Theorem(
        "pause-agreed/exchange",
        "An exchange returns the extremes of what was read, and whether there is work.",
        exchange_is_right,
        strength="for all values: 3 ranks",
    ),
)
