"""What may come to a group from outside: requests, pauses, resumes, sleeps, removals; and what is wrong with it."""

from collections.abc import Iterator
from typing import Any

from onbeat_proofs.protocol import rules
from onbeat_proofs.protocol.functions import Text
from onbeat_proofs.protocol.state import GroupScope, Left, Wrong
from onbeat_spec.protocol import Front, Sent
from onbeat_spec.protocol.facts import CallKind, FrontCall

Answer = tuple[tuple[Any, ...], Front, Left, Sent]
"""Label, front end afterwards, what may still come, messages."""
Outside = tuple[tuple[Any, ...], Front, Left, Sent, Wrong]
"""The same, and what is wrong with it."""


def restarts(text: Text, front: Front, left: Left) -> Iterator[Outside]:
    """Return the start of an ended group, if it may start again."""
    if left.restarts:
        after, sent = text.restart(front)
        wrong = rules.called(FrontCall("restart", front, after, sent, front.members))
        # What was held is handed in again: at once, or whenever.
        requests = left.requests + front.held - after.held
        yield ("restart", ""), after, left._replace(requests=requests, restarts=left.restarts - 1), sent, wrong


def moves(text: Text, scope: GroupScope, front: Front, left: Left, taking: list[int]) -> list[Outside]:
    """Return what may come next; `taking` are the ranks that are part of the group."""
    moves = [*_requests(text, front, left), *_controls(text, scope, front, left, taking)]
    return [(*move, _judged(front, move, taking)) for move in moves]


def _judged(before: Front, move: Answer, taking: list[int]) -> Wrong:
    label, after, _, sent = move
    if label[0] == "withdraw":
        return None
    kind: CallKind = label[0]
    rank = label[1] if kind in ("request", "remove") else None
    mode = label[1] if kind == "pause" else None
    return rules.called(FrontCall(kind, before, after, sent, tuple(taking), rank, mode))


def _requests(text: Text, front: Front, left: Left) -> Iterator[Answer]:
    if left.requests:
        for place in front.members:
            answer = text.admission(front, place)
            if answer == "accept" or (answer == "hold" and place == 0):
                after, sent = text.request(front, place)
                yield ("request", place, answer), after, left._replace(requests=left.requests - 1), sent
    if left.aborts and front.held:
        yield ("withdraw", ""), text.withdraw(front), left._replace(aborts=left.aborts - 1), ()


def _controls(text: Text, scope: GroupScope, old: Front, left: Left, taking: list[int]) -> Iterator[Answer]:
    if not left.controls:
        return
    modes = [mode for mode in scope.modes if not (old.sleeping and mode == "wait")]
    calls: list[tuple[tuple[Any, ...], tuple[Front, Sent]]]
    calls = [(("pause", mode), text.pause(old, mode, holds=scope.holds)) for mode in modes]
    calls.append((("resume", ""), text.resume(old)))
    if old.paused is not None:
        calls += [(("sleep", ""), text.sleep(old)), (("rouse", ""), text.rouse(old))]
    for label, (front, sent) in calls:
        if sent or (old.ended and front != old):
            # What was held is handed in again: at once, or whenever. What an abort drops is not.
            requests = left.requests + (old.held - front.held if label[0] == "resume" else 0)
            yield label, front, left._replace(requests=requests, controls=left.controls - 1), sent
    staying = [place for place in taking if place not in old.leaving]
    if left.removals and not old.ended and old.paused is not None and len(staying) > 1:
        for place in staying:
            front, sent = text.remove(old, place)
            rest = left._replace(controls=left.controls - 1, removals=left.removals - 1)
            yield ("remove", place), front, rest, sent
