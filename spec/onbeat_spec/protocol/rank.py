"""What a rank does: what it reads, its next turn, and what the turn leaves."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from onbeat_spec.cadence import advance, throttles
from onbeat_spec.protocol.words import Event, GroupSettings, PauseMode

Kind = Literal["idle", "exchange", "step", "dummy"]
Effect = Literal["none", "accept", "abort"]


class Rank(NamedTuple):
    """What a rank knows. It is in a busy period iff it has read more than was agreed."""

    read: int = 0
    """Number of the latest event that it has read."""
    agreed: int = 0
    """Number at which the whole group stopped last."""
    left: int = 0
    """Forwards until the next exchange."""
    phase: int = 0
    paused: PauseMode | None = None
    sleep: bool = False
    """It is to give its memory up when the group has stopped."""
    asleep: bool = False
    """It has given its memory up: no forward until it is roused or resumed. Exchanges need no memory."""
    members: int = 1
    """Ranks of the group, itself included."""
    departing: int = 0
    """Other ranks that leave when the group stops."""
    leaving: bool = False
    """It leaves itself when the group stops."""
    ended: str = ""
    """Why it will never take another turn; empty: it goes on."""


class Vote(NamedTuple):
    """What a rank brings to an exchange."""

    read: int
    work: bool


class Agreement(NamedTuple):
    """What an exchange returns, the same to all: over the votes."""

    lowest: int
    highest: int
    work: bool


class Turn(NamedTuple):
    """What a rank does next. `idle`: nothing, until it reads an event."""

    kind: Kind
    throttle: bool | None = False
    """Prefills are held back in this forward; None: its local clock says (`cadence.LocalClock`), in a group of one."""
    phase: int = 0
    vote: Vote | None = None


def read(rank: Rank, event: Event) -> tuple[Rank, Effect]:
    """Take note of an event; return what the rank's scheduler has to do: accept the request, or abort all it has.

    A copy of an earlier event changes nothing (B74). A gap means that the channel broke.
    """
    if rank.ended or event.number <= rank.read:
        return rank, "none"
    if event.number != rank.read + 1:
        return rank._replace(ended=f"event {rank.read + 1} was lost"), "abort"
    rank = rank._replace(read=event.number)
    match event.kind:
        case "request":
            return rank, "accept"
        case "pause":
            return rank._replace(paused=event.mode), "abort" if event.mode == "abort" else "none"
        case "resume":
            return rank._replace(paused=None, sleep=False, asleep=False), "none"
        case "sleep":
            return rank._replace(sleep=True), "none"
        case "rouse":
            return rank._replace(sleep=False, asleep=False), "none"
        case "leave":
            return rank._replace(leaving=True), "none"
        case "remove":
            return rank._replace(departing=rank.departing + 1), "none"
        case "end":
            return lost(rank, "a rank of the group died")
    return rank, "none"


def shares(rank: Rank) -> bool:
    """Whether a rank's forwards are those of others too. One that is left alone in its group is on its own."""
    return rank.members > 1


def may_run(rank: Rank, has_work: bool) -> bool:
    """Whether a rank has work that may run: a pause that waits lets it finish, the others do not."""
    return has_work and rank.paused in (None, "wait")


def before_step(rank: Rank, has_work: bool, settings: GroupSettings) -> Turn:
    """Return a rank's next turn. It reads what has arrived first; while it is in a turn it reads nothing.

    Without work it runs a dummy, so that it takes part in the same collectives as the others (B78). Who is asleep and
    due for a forward waits: whoever has work has read of a resume that this rank has not read yet.

    Args:
        has_work: its scheduler has a request that has not ended, be it blocked or not.
    """
    if rank.ended or rank.read == rank.agreed:
        return Turn("idle")
    if rank.left == 0:
        return Turn("exchange", vote=Vote(rank.read, may_run(rank, has_work)))
    if rank.asleep:
        return Turn("idle")
    kind: Kind = "step" if may_run(rank, has_work) else "dummy"
    throttle = throttles(rank.phase, settings.interval) if shares(rank) else None
    return Turn(kind, throttle, rank.phase)


def collectives(turn: Turn, tokens: int) -> tuple[str, ...]:
    """Return the collectives of a turn, in order. A step that schedules no token runs a dummy batch instead (B78)."""
    if turn.kind == "idle":
        return ()
    if turn.kind == "exchange":
        return ("exchange",)
    return ("forward",)


def tally(votes: Sequence[Vote]) -> Agreement:
    """Return the outcome of an exchange (an all-reduce of a minimum, a maximum, and an or)."""
    return Agreement(min(v.read for v in votes), max(v.read for v in votes), any(v.work for v in votes))


def after_step(rank: Rank, settings: GroupSettings, agreement: Agreement | None) -> Rank:
    """Return the rank after a turn with all others.

    Work anywhere: `sync` forwards follow. None, and all have read the same: stop. None, but somebody knows of an event
    that others have not read yet: exchange again, without a forward in between. A group of one needs no forwards in
    which it cannot stop: it exchanges with itself after each.

    Args:
        agreement: of an exchange; None after a forward.
    """
    if agreement is None:
        return rank._replace(left=rank.left - 1, phase=advance(rank.phase, settings.interval))
    if agreement.work:
        return rank._replace(left=settings.sync if shares(rank) else 1)
    if agreement.lowest == agreement.highest:
        return stop(rank)
    return rank


def stop(rank: Rank) -> Rank:
    """Return the rank after all have agreed to stop: the only place where a group changes or falls asleep.

    The next busy period begins with an exchange, on the beat (B82).
    """
    return rank._replace(
        agreed=rank.read,
        left=0,
        phase=0,
        asleep=rank.sleep,
        members=rank.members - rank.departing,
        departing=0,
        ended="removed" if rank.leaving else "",
    )


def lost(rank: Rank, why: str) -> tuple[Rank, Effect]:
    """End a rank: a collective failed or ran out of time, the group is over, or its channel broke.

    Whoever ends, also by `stop`, aborts what its scheduler still has.
    """
    return rank._replace(ended=rank.ended or why), "abort"
