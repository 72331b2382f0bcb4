"""What the invariants of a group read of one event: how the front end took it, and what a rank made of it."""

from typing import Literal, NamedTuple

from onbeat_spec.protocol.front import Front, Sent
from onbeat_spec.protocol.rank import Rank
from onbeat_spec.protocol.words import Event, PauseMode

CallKind = Literal["request", "pause", "resume", "sleep", "rouse", "remove", "death", "restart"]
"""What the front end is asked for; `death`: it notices one; `restart`: all members were started again."""


class FrontCall(NamedTuple):
    """One call of a group's front end: what it knew before and after it, and what it sent."""

    kind: CallKind
    before: Front
    after: Front
    sent: Sent
    living: tuple[int, ...]
    """Members that run, those that are leaving included; not those that have died or were removed."""
    rank: int | None = None
    """Whom it is about; None: all."""
    mode: PauseMode | None = None
    """Of a pause."""


class EventRead(NamedTuple):
    """An event that a rank has read: the next one of the log, by a rank that had not ended."""

    event: Event
    before: Rank
    after: Rank
    requests_before: int
    """Requests of its scheduler that had not ended; likewise the next."""
    requests_after: int
