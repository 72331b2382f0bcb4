"""What each event of a group obliges to: whom the front end tells of it, and what it leaves at a rank that reads it.

The predicates belong to the invariants of `group.py`. A call that finds everything as it is asked for sends nothing;
neither does one that finds the group ended, since nobody is left to be told.
"""

from collections.abc import Mapping

from onbeat_spec.catalogue import Verdict
from onbeat_spec.invariants.group import end_is_clear, pause_agreed, wake_not_lost
from onbeat_spec.protocol.facts import EventRead, FrontCall
from onbeat_spec.protocol.front import Front
from onbeat_spec.protocol.words import Seen

# --- The front end ---------------------------------------------------------------------------------------------------


@wake_not_lost.over("call")
def request_is_told(call: FrontCall) -> Verdict:
    """A request that a group takes is told to all its ranks: to its own as a request, to the others as a wake."""
    if call.kind != "request" or call.before.paused is not None:
        return None
    return _untold(call, {rank: "request" if rank == call.rank else "wake" for rank in call.living})


@pause_agreed.over("call")
def control_is_told(call: FrontCall) -> Verdict:
    """A control is told to all ranks, those that leave included, and the front end takes the group for what was asked.

    A paused group takes no request: one is held, and counted, or refused.
    """
    before, after = call.before, call.after
    if call.kind == "restart":
        return _restarted(call)
    if call.kind == "request" and before.paused is not None and (call.sent or after != _held(before)):
        return f"a request that comes while paused ({before.paused}) is neither held nor refused"
    if call.kind in ("request", "death"):
        return None
    if (wrong := _not_as_asked(call)) is not None:
        return f"after a {call.kind} the front end takes the group for {wrong}"
    if before.ended or _as_asked(call, before):
        return f"a {call.kind} that changes nothing is sent to the ranks" if call.sent else None
    return _untold(call, {rank: _seen(call, rank) for rank in call.living})


@end_is_clear.over("call")
def death_is_told(call: FrontCall) -> Verdict:
    """A death, that of a leaving rank too, ends the group, and all that are left are told. Nothing else ends it."""
    if call.kind == "restart":
        return f"a group that starts again has ended: {call.after.ended}" if call.after.ended else None
    if call.before.ended:
        return f"a {call.kind} takes back that the group has ended" if not call.after.ended else None
    if call.kind != "death":
        return f"a {call.kind} ends the group: {call.after.ended}" if call.after.ended else None
    if not call.after.ended:
        return f"rank {call.rank} died, and the front end goes on with the group"
    return _untold(call, {rank: "end" for rank in call.living if rank != call.rank})


def _held(front: Front) -> Front:
    return front._replace(held=front.held + 1) if front.holds else front


def _as_asked(call: FrontCall, front: Front) -> bool:
    """Whether the front end takes the group for what a control asks for."""
    match call.kind:
        case "pause":
            return front.paused == call.mode
        case "resume":
            return front.paused is None and not front.sleeping
        case "sleep":
            return front.sleeping and front.paused is not None
        case "rouse":
            return not front.sleeping
    return call.rank in front.leaving


def _not_as_asked(call: FrontCall) -> str | None:
    before, after = call.before, call.after
    if not _as_asked(call, after) and not (call.kind == "remove" and before.ended):
        return f"paused: {after.paused}, sleeping: {after.sleeping}, leaving: {after.leaving}"
    if call.kind in ("sleep", "rouse", "remove") and after.paused != before.paused:
        return f"paused: {after.paused}, not {before.paused}"
    if call.kind in ("pause", "remove") and after.sleeping != before.sleeping:
        return "awake" if before.sleeping else "asleep"
    # A resume hands in what was held, an abort drops it; of an ended group it stays until there are ranks again.
    dropped = (call.kind == "resume" and not before.ended) or (call.kind == "pause" and call.mode == "abort")
    if after.held != (0 if dropped and not _as_asked(call, before) else before.held):
        return f"holding {after.held} requests, of {before.held}"
    return None


def _restarted(call: FrontCall) -> Verdict:
    """Say what is wrong with a group that starts again: it is as was asked of it last, and its ranks are told so."""
    before, after = call.before, call.after
    held = 0 if before.paused is None else before.held
    asked = (before.members, before.paused, before.sleeping, held, ())
    if (after.members, after.paused, after.sleeping, after.held, after.leaving) != asked:
        return f"a group that starts again is {tuple(after)}, and was asked to be {asked}"
    due = [("pause", before.paused)] if before.paused is not None else []
    due += [("sleep", "keep")] if before.sleeping else []
    for rank in call.living:
        told = [(event.number, event.kind, event.mode) for to, event in call.sent if to == rank]
        if told != [(number, *each) for number, each in enumerate(due, 1)]:
            return f"a rank that starts again is told {told}, and the group is paused ({before.paused})"
    return f"the log of a group that starts again is at {after.last}" if after.last != len(due) else None


def _seen(call: FrontCall, rank: int) -> Seen:
    match call.kind:
        case "remove":
            return "leave" if rank == call.rank else "remove"
        case "pause" | "resume" | "sleep" | "rouse" as kind:
            return kind
    raise AssertionError(call.kind)


def _untold(call: FrontCall, due: Mapping[int, Seen]) -> Verdict:
    """Say who is not told what is due to it, under the next number."""
    told = dict(call.sent)
    for rank, kind in due.items():
        event = told.get(rank)
        if event is None:
            return f"rank {rank} is not told of a {call.kind}"
        if (event.number, event.kind) != (call.before.last + 1, kind) or (kind == "pause" and event.mode != call.mode):
            return f"rank {rank} is told {tuple(event)} of a {call.kind}, not {(call.before.last + 1, kind, call.mode)}"
    return None


# --- A rank ----------------------------------------------------------------------------------------------------------


@wake_not_lost.over("read")
def reading_wakes(read: EventRead) -> Verdict:
    """Who reads an event is busy until all agree to stop; one that brings or ends no request leaves the requests."""
    after = read.after
    if after.ended:
        return None
    if after.read != read.event.number or after.agreed != read.before.agreed:
        return f"a rank that reads #{read.event.number} takes it for {after.read}, and {after.agreed} as agreed"
    if read.event.kind == "pause" and read.event.mode == "abort":
        return None
    due = read.requests_before + (read.event.kind == "request")
    if read.requests_after != due:
        return f"a rank that reads {read.event.kind} has {read.requests_after} requests, not {due}"
    return None


@pause_agreed.over("read")
def control_is_followed(read: EventRead) -> Verdict:
    """A pause, of each mode, and what may follow it leave the rank as they say; an abort leaves no request."""
    before, after, kind = read.before, read.after, read.event.kind
    if after.ended:
        return None
    if kind == "pause" and read.event.mode == "abort" and read.requests_after:
        return f"a pause that aborts leaves {read.requests_after} requests"
    due = before._replace(read=after.read)
    match kind:
        case "pause":
            due = due._replace(paused=read.event.mode)
        case "resume":
            due = due._replace(paused=None, sleep=False, asleep=False)
        case "sleep":
            due = due._replace(sleep=True)
        case "rouse":
            due = due._replace(sleep=False, asleep=False)
        case "leave":
            due = due._replace(leaving=True)
        case "remove":
            due = due._replace(departing=before.departing + 1)
    # What else a rank knows is its turns', and other invariants look at that.
    seen = after._replace(agreed=due.agreed, left=due.left, phase=due.phase)
    return None if seen == due else f"a {kind} leaves a rank {tuple(seen)}, not {tuple(due)}"


@end_is_clear.over("read")
def end_is_followed(read: EventRead) -> Verdict:
    """Who reads of a death ends, and keeps no request. No other event ends a rank."""
    if read.event.kind != "end":
        return f"a rank ends that reads {read.event.kind}: {read.after.ended}" if read.after.ended else None
    if not read.after.ended:
        return "a rank reads that another died, and goes on"
    return f"a rank that ends keeps {read.requests_after} requests" if read.requests_after else None
