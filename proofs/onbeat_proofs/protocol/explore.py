"""All states of a small group, breadth first: the first violation is one of the shortest."""

from collections import Counter
from dataclasses import dataclass, field
from time import perf_counter

from onbeat_proofs.protocol.functions import TEXT, Text
from onbeat_proofs.protocol.state import GroupScope, Move, State
from onbeat_proofs.protocol.world import GroupWorld


@dataclass
class GroupExplored:
    """What an exploration saw."""

    scope: GroupScope
    world: GroupWorld
    states: int = 0
    moves: int = 0
    depth: int = 0
    seconds: float = 0.0
    at_rest: set[tuple[object, ...]] = field(default_factory=set)
    """What can be seen of the group when nothing happens any more, whatever the interval of exchanges."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How often which kind of move was made: nothing is proved about moves that were never made."""
    invariant: str = ""
    message: str = ""
    path: list[Move] = field(default_factory=list)
    """The moves to the violation, from the start."""


def explore(scope: GroupScope, text: Text = TEXT, most: int | None = None) -> GroupExplored:
    """Visit every state of a scope, or all up to a violation.

    Args:
        most: give up, with the invariant `undecided`, after so many states.
    """
    began, world = perf_counter(), GroupWorld(scope, text)
    explored = GroupExplored(world.scope, world)
    start = world.canonical(world.start())
    parents: dict[State, State | None] = {start: None}
    level = [start]
    while level and not explored.invariant:
        following: list[State] = []
        for state in level:
            wrong, move = _expand(world, state, parents, following, explored)
            if wrong is not None:
                explored.invariant, explored.message = wrong
                explored.path = retrace(world, _trail(parents, state), move)
                break
        level = following
        explored.depth += 1
        if most is not None and len(parents) > most and not explored.invariant:
            explored.invariant, explored.message = "undecided", f"more than {most:,} states"
    explored.states, explored.seconds = len(parents), perf_counter() - began
    return explored


def _expand(
    world: GroupWorld, state: State, parents: dict[State, State | None], following: list[State], explored: GroupExplored
) -> tuple[tuple[str, str] | None, Move | None]:
    wrong = world.wrong(state)
    if wrong is not None:
        return wrong, None
    still = True
    for move in world.moves(state):
        explored.moves += 1
        kind = str(move.label[0])
        explored.kinds[kind] += 1
        if move.wrong is not None:
            return move.wrong, move
        still = still and kind != "turn"
        child = world.canonical(move.state)
        if child not in parents:
            parents[child] = state
            following.append(child)
    if still:
        ends = tuple((m.rank.read, m.work, m.rank.ended, m.rank.asleep) for m in world.members_of(state))
        explored.at_rest.add((world.front_of(state), tuple(sorted(ends))))
    return None, None


def _trail(parents: dict[State, State | None], state: State) -> list[State]:
    trail: list[State] = []
    at: State | None = state
    while at is not None:
        trail.append(at)
        at = parents[at]
    return trail[::-1]


def retrace(world: GroupWorld, trail: list[State], last: Move | None) -> list[Move]:
    """Return the moves along states that stand for others, of ranks that keep their names."""
    state, moves = world.start(), []
    for wanted in trail[1:]:
        move = next(move for move in world.moves(state) if world.canonical(move.state) == wanted)
        moves.append(move)
        state = move.state
    if last is not None and last.wrong is not None:
        moves.append(next(move for move in world.moves(state) if (move.wrong or [""])[0] == last.wrong[0]))
    return moves
