"""The same world without reductions, to compare with: every rank reads, begins and waits by itself. For tiny worlds."""

from typing import NamedTuple

from onbeat_proofs.protocol.functions import TEXT
from onbeat_proofs.protocol.state import ABORT, Begun, GroupMember, GroupScope, Left
from onbeat_spec.protocol import Agreement, Front, Rank, Sent, Vote


class Plain(NamedTuple):
    """A state: of each rank also the turn that it has begun, if it waits in one."""

    front: Front
    left: Left
    members: tuple[GroupMember, ...]
    waiting: tuple[Begun | None, ...]


def at_rest(scope: GroupScope) -> tuple[set[tuple[object, ...]], int]:
    """Visit every state, move by small move; return what can be seen when nothing happens, and how many states.

    Raises:
        AssertionError: some rank waits for ever, or ranks meet in different collectives.
    """
    member = GroupMember(Rank(members=scope.ranks))
    front = Front(tuple(range(scope.ranks)), holds=scope.holds)
    start = Plain(
        front,
        Left(scope.requests, scope.controls, 0, 0, 0, scope.aborts),
        (member,) * scope.ranks,
        (None,) * scope.ranks,
    )
    seen, stack = {start}, [start]
    rest: set[tuple[object, ...]] = set()
    while stack:
        state = stack.pop()
        inner = _inner(scope, state)
        if not inner:
            assert not any(state.waiting), state
            assert not any(each.channel for each in state.members), state
            ranks = sorted((m.rank.read, m.work, m.rank.ended, m.rank.asleep) for m in state.members)
            rest.add((state.front, tuple(ranks)))
        for child in [*inner, *_outer(scope, state)]:
            if child not in seen:
                seen.add(child)
                stack.append(child)
    return rest, len(seen)


def _put(state: Plain, place: int, member: GroupMember, begun: Begun | None) -> Plain:
    members, waiting = list(state.members), list(state.waiting)
    members[place], waiting[place] = member, begun
    return state._replace(members=tuple(members), waiting=tuple(waiting))


def _inner(scope: GroupScope, state: Plain) -> list[Plain]:
    found = []
    for place, (member, waits) in enumerate(zip(state.members, state.waiting, strict=True)):
        if waits is not None:
            continue
        if member.channel:
            event = member.channel[0]
            rank, effect = (member.rank, "gone") if event == ABORT else TEXT.read(member.rank, event)
            gone = {"accept": -1, "abort": member.work, "gone": min(1, member.work), "none": 0}[effect]
            work = member.work - gone
            found.append(_put(state, place, member._replace(rank=rank, work=work, channel=member.channel[1:]), None))
        turn = TEXT.before_step(member.rank, member.work > 0, scope.of(place))
        if turn.kind != "idle":
            found.append(_put(state, place, member, Begun(member, turn, TEXT.collectives(turn, 1), 0)))
    begun = [each for each in state.waiting if each is not None]
    if len(begun) == scope.ranks:
        assert len({each.calls for each in begun}) == 1, state
        votes: list[Vote] = [each.turn.vote for each in begun if each.turn.vote is not None]
        found += _completed(scope, state, begun, TEXT.tally(votes) if votes else None)
    return found


def _completed(scope: GroupScope, state: Plain, begun: list[Begun], agreement: Agreement | None) -> list[Plain]:
    states = [state]
    for place, each in enumerate(begun):
        member = state.members[place]
        member = member._replace(rank=TEXT.after_step(member.rank, scope.of(place), agreement))
        rests = range(member.work + 1) if each.turn.kind == "step" else (member.work,)
        states = [_put(one, place, member._replace(work=work), None) for one in states for work in rests]
    return states


def _outer(scope: GroupScope, state: Plain) -> list[Plain]:
    front, left, found = state.front, state.left, []
    if left.requests:
        for place in front.members:
            if TEXT.admission(front, place) != "refuse" and (front.paused is None or place == 0):
                found.append((TEXT.request(front, place), left._replace(requests=left.requests - 1)))
    if left.aborts:
        fewer = left._replace(aborts=left.aborts - 1)
        if front.held:
            found.append(((TEXT.withdraw(front), ()), fewer))
        for place, member in enumerate(state.members):
            if _will_have(member):
                found.append(((front, ((place, ABORT),)), fewer))
    if left.controls:
        fewer = left._replace(controls=left.controls - 1)
        modes = [mode for mode in scope.modes if not (front.sleeping and mode == "wait")]
        calls = [TEXT.pause(front, mode, holds=scope.holds) for mode in modes]
        if front.paused is not None:
            calls += [TEXT.sleep(front), TEXT.rouse(front)]
        found += [(call, fewer) for call in calls if call[1]]
        after, sent = TEXT.resume(front)
        if sent:
            found.append(((after, sent), fewer._replace(requests=left.requests + front.held)))
    return [_sent(state, after, sent, rest) for (after, sent), rest in found]


def _will_have(member: GroupMember) -> int:
    """Return the requests that a rank has once it has read all, if none ends before."""
    work = member.work
    for event in member.channel:
        aborts = event.kind == "pause" and event.mode == "abort"
        work = max(0, work - 1) if event == ABORT else 0 if aborts else work + (event.kind == "request")
    return work


def _sent(state: Plain, front: Front, sent: Sent, left: Left) -> Plain:
    members = list(state.members)
    for to, event in sent:
        members[to] = members[to]._replace(channel=(*members[to].channel, event))
    return Plain(front, left, tuple(members), state.waiting)
