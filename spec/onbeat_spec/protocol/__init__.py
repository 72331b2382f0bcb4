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

How an engine calls it. For each of `groups`: a `Front(members)`, and at each of its ranks a `Rank(members=how many)`
and the settings that `common` returns for all of them. A rank, for ever: `read` every event that has come, in order,
and do as its effect says; while `before_step` says idle, wait for one. Else take the turn: an exchange is one
all-reduce of the maximum over (-read, read, work), or `tally`; a forward runs the batch, or a dummy if that has no
token. Then `after_step`; and if now `read` is `agreed`, the rank has stopped: it tells the front end that number
(`report`), gives its memory up if `asleep`, and goes if `ended`; who stays then makes the communicator of those who
are left. When a collective fails or runs out of time, or the front end is gone: `lost`. A rank that ends, and was not
removed, has to be made known to the front end (`died`), which fails what all its ranks had; when all its ranks have
been started anew, `restart`. A forward is throttled as its turn says, or by the rank's own clock; a batch without
tokens is a dummy where the forward is `shares`d, else nothing. A wait-pause is the protocol's alone: a scheduler that
stops admission would never finish what it has. The front end sends what each function returns, and beside an event
what is the engine's: a request's tokens with `request`, who goes with `leave` and `remove`. That a client aborts its
request is no event: it follows the request on the same channel, and only takes work away. Nobody joins a group: it is
started anew.

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
    restart,
    resume,
    rouse,
    sleep,
    withdraw,
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
    shares,
    stop,
    tally,
)
from onbeat_spec.protocol.words import Event, GroupSettings, PauseMode, Seen, common, groups

__all__ = [
    # in common
    "Event",
    "PauseMode",
    "Seen",
    "GroupSettings",
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
    "shares",
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
    "restart",
    "resume",
    "rouse",
    "sleep",
    "withdraw",
]
