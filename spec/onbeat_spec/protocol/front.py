"""What the front end of a group does: it numbers events, admits requests, and knows when all have stopped."""

from typing import Literal, NamedTuple

from onbeat_spec.errors import ProtocolMisuse, RequestRefused
from onbeat_spec.protocol.words import Event, PauseMode, Seen

Admission = Literal["accept", "hold", "refuse", "ended"]


class Front(NamedTuple):
    """What the front end of one group knows."""

    members: tuple[int, ...]
    """Ranks that are sent to, in the order of their numbers; removed ones included."""
    last: int = 0
    """Number of the latest event."""
    paused: PauseMode | None = None
    sleeping: bool = False
    holds: bool = False
    """Requests that come while paused are held here, not refused; as the latest pause said."""
    held: int = 0
    """Requests that are held. They have no rank and no number yet."""
    leaving: tuple[int, ...] = ()
    stopped: tuple[int, ...] = ()
    """By member: the highest number at which it has reported to have stopped; empty: none has reported."""
    ended: str = ""


Sent = tuple[tuple[int, Event], ...]
"""Messages: to which rank, what."""


def publish(
    front: Front, kind: Seen, others: Seen, mode: PauseMode = "keep", rank: int | None = None
) -> tuple[Front, Sent]:
    """Number an event and send it to every rank, the one it happened at included (B73, B77).

    Nobody is left in a group that has ended: it is sent nothing. What was asked of it counts once it starts again.

    Args:
        kind: what it is to `rank`, or to all if that is None.
        others: what it is to all others.
    """
    if front.ended:
        return front, ()
    number = front.last + 1
    sent = tuple((to, Event(number, kind if rank in (None, to) else others, mode)) for to in front.members)
    return front._replace(last=number), sent


def admission(front: Front, rank: int) -> Admission:
    """Say what becomes of a request for a rank: `refuse` may be tried again (elsewhere, or later), `ended` not."""
    if front.ended:
        return "ended"
    if front.paused is not None:
        return "hold" if front.holds else "refuse"
    return "refuse" if rank in front.leaving or rank not in front.members else "accept"


def request(front: Front, rank: int) -> tuple[Front, Sent]:
    """Accept a request for a rank, or hold it back and count it.

    Raises:
        RequestRefused: see `admission`; nothing changes.
    """
    answer = admission(front, rank)
    if answer == "hold":
        return front._replace(held=front.held + 1), ()
    if answer == "accept":
        return publish(front, "request", "wake", rank=rank)
    if answer == "refuse":
        raise RequestRefused(f"rank {rank} takes no requests now ({front.paused or 'it is leaving'}); try again later")
    raise RequestRefused(f"the group has ended: {front.ended}; start it again")


def withdraw(front: Front) -> Front:
    """Forget a request that was held: its client gave it up, or waits no longer.

    Raises:
        ProtocolMisuse: none is held.
    """
    if front.held == 0:
        raise ProtocolMisuse("no request is held; those that were accepted are aborted at their rank")
    return front._replace(held=front.held - 1)


def pause(front: Front, mode: PauseMode, *, holds: bool) -> tuple[Front, Sent]:
    """Pause the group; see `complete`. A second pause of the same mode changes nothing; the latest mode counts.

    An abort drops what was held, too: the caller tells those who wait for it.

    Args:
        holds: requests that come while it is paused are held, not refused.

    Raises:
        ProtocolMisuse: it sleeps, and the requests that it keeps are to be finished.
    """
    if front.paused == mode:
        return front, ()
    if front.sleeping and mode == "wait":
        raise ProtocolMisuse("a sleeping group cannot finish requests; rouse it first, or pause with keep or abort")
    held = 0 if mode == "abort" else front.held
    return publish(front._replace(paused=mode, holds=holds, held=held), "pause", "pause", mode)


def resume(front: Front) -> tuple[Front, Sent]:
    """Resume, from sleep too. The caller now hands in, with `request`, the requests that were held.

    Those of a group that has ended stay held until it starts again, unless another group takes them (`withdraw`).
    """
    if front.paused is None:
        return front, ()
    held = front.held if front.ended else 0
    return publish(front._replace(paused=None, sleeping=False, held=held), "resume", "resume")


def sleep(front: Front) -> tuple[Front, Sent]:
    """Let the ranks of a paused group give their memory up, once they have stopped.

    Raises:
        ProtocolMisuse: it is not paused.
    """
    if front.paused is None:
        raise ProtocolMisuse("sleep needs a paused group; pause it first")
    if front.sleeping:
        return front, ()
    return publish(front._replace(sleeping=True), "sleep", "sleep")


def rouse(front: Front) -> tuple[Front, Sent]:
    """Let the ranks of a sleeping group take their memory back. It stays paused."""
    if not front.sleeping:
        return front, ()
    return publish(front._replace(sleeping=False), "rouse", "rouse")


def remove(front: Front, rank: int) -> tuple[Front, Sent]:
    """Remove a rank of a paused group when that has stopped; what it still has ends there.

    Raises:
        ProtocolMisuse: the group is not paused, or would be left without ranks.
    """
    if front.paused is None:
        raise ProtocolMisuse("removing a rank needs a paused group; pause it first")
    if front.ended or rank in front.leaving:
        return front, ()
    if rank not in front.members or len(front.leaving) + 1 >= len(front.members):
        raise ProtocolMisuse(f"rank {rank} cannot be removed from {front.members} without {front.leaving}")
    return publish(front._replace(leaving=(*front.leaving, rank)), "leave", "remove", rank=rank)


def died(front: Front, rank: int) -> tuple[Front, Sent]:
    """End the group: a rank is gone that the others share collectives with.

    Ranks that wait in a collective with it cannot read this; their collective fails or runs out of time (`lost`).
    A rank that has ended as removed is gone, too, and has not died: the others go on without it.

    Raises:
        ProtocolMisuse: it is no member.
    """
    _place(front, rank)
    if front.ended:
        return front, ()
    front, sent = publish(front, "end", "end")
    return front._replace(ended=f"rank {rank} died"), sent


def restart(front: Front) -> tuple[Front, Sent]:
    """Begin the log of a group that has ended anew, for ranks that were all started in the place of its members.

    They are told what was asked of the group last, before its end or after it: that it is paused, and sleeps. If it is
    not, the caller now hands in what was held, as after `resume`. Ranks that had been removed are members again.

    Raises:
        ProtocolMisuse: it has not ended.
    """
    if not front.ended:
        raise ProtocolMisuse("only a group that has ended is started again")
    fresh = Front(front.members)
    if front.paused is None:
        return fresh, ()
    fresh, sent = pause(fresh, front.paused, holds=front.holds)
    fresh = fresh._replace(held=front.held)
    if not front.sleeping:
        return fresh, sent
    fresh, more = sleep(fresh)
    return fresh, (*sent, *more)


def report(front: Front, rank: int, number: int) -> Front:
    """Take note that a rank has stopped at a number. Reports are compared rank by rank (B89), in every mode (B88).

    A late one is harmless: it holds for ever that the rank stopped there.

    Raises:
        ProtocolMisuse: it is no member.
    """
    place = _place(front, rank)
    known = front.stopped or (0,) * len(front.members)
    return front._replace(stopped=(*known[:place], max(known[place], number), *known[place + 1 :]))


def complete(front: Front) -> bool:
    """Whether every rank has stopped after all that happened: a pause is complete, the group is drained.

    It follows from what ranks report, not from what they are expected to do (B76). The ranks stay stopped until the
    next event, since the number they stopped at is the latest that exists. A removed rank stopped for good. A group
    that has ended never is: whoever waits for it looks at `ended` as well.
    """
    known = front.stopped or (0,) * len(front.members)
    return all(number == front.last or rank in front.leaving for rank, number in zip(front.members, known, strict=True))


def _place(front: Front, rank: int) -> int:
    if rank not in front.members:
        raise ProtocolMisuse(f"rank {rank} is no member of this group, which has {front.members}")
    return front.members.index(rank)
