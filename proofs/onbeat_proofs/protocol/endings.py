"""How a group, or something of it, ends: deaths of ranks and of the front end, aborts; and how it starts again."""

from collections.abc import Iterator

from onbeat_proofs.protocol import outside, rules
from onbeat_proofs.protocol.state import ABORT, ORPHANED, GroupMember, Move, State
from onbeat_proofs.protocol.turns import TurnWorld
from onbeat_spec.protocol import Rank
from onbeat_spec.protocol.facts import FrontCall


def deaths(world: TurnWorld, state: State) -> Iterator[Move]:
    left = world.lefts.values[state[1]]
    if left.deaths:
        rest = world.lefts.number(left._replace(deaths=left.deaths - 1))
        for place in world.taking(state):
            rank = world.members.values[state[place]].rank
            dead = GroupMember(rank._replace(ended="died"), dead=True)
            yield Move(("die", place - 2), world.put((state[0], rest, *state[2:]), place, dead))
    if left.orphans:
        front = world.fronts.number(world.front_of(state)._replace(ended=ORPHANED))
        yield Move(("orphan", ""), (front, world.lefts.number(left._replace(orphans=False)), *state[2:]))


def orphans(world: TurnWorld, state: State) -> Iterator[Move]:
    """The front end is dead: each rank notices it by itself, whenever."""
    for place in world.taking(state):
        member = world.members.values[state[place]]
        if not member.rank.ended:
            rank, effect = world.text.lost(member.rank, "the front end is gone")
            yield Move(("gone", place - 2), world.put(state, place, GroupMember(rank)), rules.is_lost(rank, effect))


def restarts(world: TurnWorld, state: State) -> Iterator[Move]:
    """All ranks that are left of an ended group are killed, and others started in the place of all."""
    front, left = world.front_of(state), world.lefts.values[state[1]]
    for label, after, rest, sent, wrong in outside.restarts(world.text, front, left):
        fresh = world.members.number(GroupMember(Rank(members=world.scope.ranks)))
        started = (world.fronts.number(after), world.lefts.number(rest), *(fresh,) * world.scope.ranks)
        yield Move(label, world.send(started, sent), wrong)


def aborts(world: TurnWorld, state: State) -> Iterator[Move]:
    """A client gives a request up that a rank was sent."""
    left = world.lefts.values[state[1]]
    if left.aborts:
        rest = world.lefts.number(left._replace(aborts=left.aborts - 1))
        for place in world.taking(state):
            if world.final(state[place]).work:
                yield Move(("abort", place - 2), world.send((state[0], rest, *state[2:]), ((place - 2, ABORT),)))


def failures(world: TurnWorld, state: State) -> Iterator[Move]:
    """A rank is dead: the front end notices, and collectives with it fail."""
    before = world.fronts.values[state[0]]
    if not before.ended:
        place = next(place for place in world.taking(state) if world.members.values[state[place]].dead)
        front, sent = world.text.died(before, place - 2)
        wrong = rules.called(FrontCall("death", before, front, sent, world.living(state), place - 2))
        front = front._replace(ended="a rank died" if front.ended else "")  # which one makes no difference
        yield Move(("notice", place - 2), world.send((world.fronts.number(front), *state[1:]), sent), wrong)
    for place in world.taking(state):
        if world.members.values[state[place]].rank.ended:
            continue
        for begun in world.begins(state[place], place):
            rank, effect = world.text.lost(world.begun.values[begun].member.rank, "a collective failed")
            label = ("fail", place - 2, world.begun.values[begun])
            yield Move(label, world.put(state, place, GroupMember(rank)), rules.is_lost(rank, effect))
        final = world.final(state[place])
        if final.rank.ended:
            yield Move(("end", place - 2), world.put(state, place, GroupMember(final.rank)))
