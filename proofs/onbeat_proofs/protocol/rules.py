"""What must hold in a turn and at an event, told apart by invariant.

Those over one lock step, one call of the front end and one event that is read are the catalogue's own predicates.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from onbeat_proofs.protocol.functions import Text
from onbeat_proofs.protocol.state import MODES, Begun, GroupMember, Wrong
from onbeat_spec import records
from onbeat_spec.invariants import CALL_PREDICATES, GROUP_PREDICATES, READ_PREDICATES
from onbeat_spec.protocol import Effect, Front, Rank, Sent, Turn
from onbeat_spec.protocol.facts import EventRead, FrontCall
from onbeat_spec.records import GroupStep, LockStep

LATEST = 3
"""Turns within which a request is in a batch, counted from its arrival, the turn then under way included."""


def may_run(member: GroupMember) -> bool:
    """Whether a rank has requests that nothing keeps from running.

    Not asked of `protocol.may_run`, which is what is checked: its mutants would be judged by themselves.
    """
    return member.work > 0 and member.rank.paused not in ("keep", "abort")


class TurnRecord(NamedTuple):
    """What one rank did in a turn, as far as it is compared with the others; `wrong`: what is wrong with it alone."""

    record: records.Member
    throttle: bool | None
    expects: int
    """Ranks that it thinks take part."""
    wrong: Wrong


def part(begun: Begun, after: GroupMember) -> TurnRecord:
    """Check what one rank does in a turn."""
    turn, member = begun.turn, begun.member
    last = after.rank.read == after.rank.agreed
    phase = turn.phase if turn.vote is None else None
    lock = LockStep(0, phase, begun.calls, last)
    record = records.Member(lock, 0, may_run(member), member.work, dummy=turn.kind == "dummy")
    return TurnRecord(record, turn.throttle, member.rank.members, _begun(member, turn) or _after(after, last))


def together(parts: Sequence[TurnRecord]) -> Wrong:
    """Check a whole turn."""
    for part in parts:
        if part.wrong is not None:
            return part.wrong
    if {part.expects for part in parts} != {len(parts)}:
        return "collectives-align", f"{len(parts)} ranks take part; they expect {[part.expects for part in parts]}"
    step = GroupStep(0, {number: part.record for number, part in enumerate(parts)})
    for entry, check in GROUP_PREDICATES:
        if message := check(step):
            return entry.id, message
    if len({part.throttle for part in parts}) > 1:
        return "phase-agrees", "some ranks hold prefills back, and others do not"
    return None


def called(call: FrontCall) -> Wrong:
    """Check what the front end makes of an event, and whom it tells."""
    return next(((entry.id, message) for entry, check in CALL_PREDICATES if (message := check(call))), None)


def has_read(read: EventRead) -> Wrong:
    """Check what an event leaves at a rank that reads it."""
    return next(((entry.id, message) for entry, check in READ_PREDICATES if (message := check(read))), None)


def is_lost(rank: Rank, effect: Effect) -> Wrong:
    """Check that a rank ends that has lost its group, or its front end, and that what it has ends with it."""
    if not rank.ended or effect != "abort":
        return "end-is-clear", "a rank that has lost its group, or its front end, goes on, or keeps its requests"
    return None


def _begun(member: GroupMember, turn: Turn) -> Wrong:
    forward = turn.vote is None
    if forward and not member.begun:
        return "sync-interval-free", "a busy period begins with a forward: an idle pause costs an interval of them"
    if forward and member.rank.asleep:
        return "pause-agreed", "a rank that has given its memory up runs a forward"
    if turn.kind == "step" and not may_run(member):
        return "pause-agreed", "a rank runs requests that it has not, or that are paused"
    return None


def _after(after: GroupMember, last: bool) -> Wrong:
    if last and after.rank.phase:
        return "phase-agrees", f"a rank is idle in phase {after.rank.phase}"
    if last and after.rank.left:
        return "sync-interval-free", f"an idle rank is {after.rank.left} forwards from its next exchange"
    if after.age >= LATEST:
        return "wake-not-lost", f"a request was in no batch for {after.age} turns"
    return None


def at_rest(front: Front, members: Sequence[GroupMember]) -> Wrong:
    """Check the ranks of a group in which nothing happens any more; all have read what there is."""
    for number, member in enumerate(members):
        if may_run(member):
            return "wake-not-lost", f"all ranks are idle, and rank {number} has {member.work} requests"
        if member.rank.ended:
            return "end-is-clear", f"rank {number} has ended ({member.rank.ended}), and nobody died"
        if member.rank.paused != front.paused:
            return "pause-agreed", f"rank {number} is paused ({member.rank.paused}), and the group is ({front.paused})"
        if member.rank.asleep != front.sleeping:
            return "pause-agreed", f"rank {number} was told to {'' if front.sleeping else 'not '}sleep"
    return None


def repeats(text: Text, front: Front) -> Wrong:
    """Check that what has been asked for already changes nothing, and that nothing follows an end."""
    over = bool(front.ended)
    if over and (wrong := next(filter(None, map(called, _asked_of_ended(text, front))), None)) is not None:
        return wrong
    mode = front.paused or "abort"
    again: list[tuple[str, bool, Callable[[], tuple[Front, Sent]]]] = [
        (
            "pause",
            front.paused is not None,
            lambda: text.pause(front, mode, holds=front.holds),
        ),
        ("resume", front.paused is None, lambda: text.resume(front)),
        ("sleep", front.sleeping, lambda: text.sleep(front)),
        ("rouse", not front.sleeping, lambda: text.rouse(front)),
        ("remove", bool(front.leaving) and front.paused is not None, lambda: text.remove(front, front.leaving[0])),
        ("death", over, lambda: text.died(front, 0)),
    ]
    for operation, settled, call in again:
        if settled and call() != (front, ()):
            return "pause-agreed", f"a {operation} that changes nothing is sent to the ranks"
    return None


def _asked_of_ended(text: Text, front: Front) -> Iterator[FrontCall]:
    """Yield every control of a group that has ended: none is told, and each counts once the group starts again."""
    for mode in MODES:
        if not (front.sleeping and mode == "wait"):
            yield FrontCall("pause", front, *text.pause(front, mode, holds=front.holds), (), mode=mode)
    yield FrontCall("resume", front, *text.resume(front), ())
    yield FrontCall("rouse", front, *text.rouse(front), ())
    if front.paused is not None:
        yield FrontCall("sleep", front, *text.sleep(front), ())
