"""The data-parallel protocol: what a rank does, and what the front end tells it.

One numbered log. Whoever accepts requests, the front end, gives every event of the group (a request at some rank, a
pause, a resume, ...) the next number and sends it to every rank, in order: a request itself to its rank, a bare wake to
the others. A rank that has read more than was agreed takes *turns* with the others until all stop. A turn is one
collective: an *exchange* of what each has read and whether it has work that may run, or a *forward* (of a batch, or of
a dummy).

- A busy period begins with an exchange, never with a forward; after one that found work, `sync` forwards follow.
- The ranks stop when all have read the same number and none has work. So no wake is lost, and no wake is ever stale:
  its number is either new to a rank, or it was agreed upon.
- What a rank decides about its collectives depends only on what all ranks of the group share: the last exchange, and
  the forwards since.

Ranks that share no collective (dense models) are groups of one (`groups`): nothing here couples two groups.

Events travel on channels that keep their order and lose nothing (TCP does); a channel that breaks ends the group.
Copies of events, and copies, delays and losses of reports, are harmless. Several front ends: one numbers, the others
ask it. All functions are pure; a rank's requests are its scheduler's, here they are only `has_work`.
"""

from onbeat_spec.protocol.front import (
    Admission,
    Front,
    Sent,
    admission,
    complete,
    died,
    pause,
    publish,
    remove,
    report,
    request,
    resume,
    rouse,
    sleep,
)
from onbeat_spec.protocol.rank import (
    Agreement,
    Effect,
    Kind,
    Rank,
    Turn,
    Vote,
    after_step,
    before_step,
    collectives,
    lost,
    may_run,
    read,
    stop,
    tally,
)
from onbeat_spec.protocol.words import Event, PauseMode, Seen, Settings, common, groups

__all__ = [
    # in common
    "Event",
    "PauseMode",
    "Seen",
    "Settings",
    "common",
    "groups",
    # a rank
    "Agreement",
    "Effect",
    "Kind",
    "Rank",
    "Turn",
    "Vote",
    "after_step",
    "before_step",
    "collectives",
    "lost",
    "may_run",
    "read",
    "stop",
    "tally",
    # the front end
    "Admission",
    "Front",
    "Sent",
    "admission",
    "complete",
    "died",
    "pause",
    "publish",
    "remove",
    "report",
    "request",
    "resume",
    "rouse",
    "sleep",
]
