"""A group as one frozen state between two turns, and every way it can go on.

What is left out, and why nothing is lost by it:

- *When* a rank reads. What it has read shows only in its next turn. So a move of the group is: every rank reads as much
  of its channel as has arrived (any part: messages are late as it pleases them), begins its turn, and the turn ends.
- *Reads that commute with a forward*: if the real functions give the same rank whether it reads a message before or
  after a forward, and the forward is the same, it reads it after. Checked on the values, not taken for granted.
- *Reports* under way. That a rank stopped at a number stays true, so the front end's view is taken as late as possible
  and in every order where that can matter; a report that was lost, late or sent twice leaves it with an older view.
- *Who is who*. Ranks differ only in their states, so states are kept sorted.

A rank that begins a turn while another, having read all there is, begins none, hangs: that is the deadlock.
"""

from collections.abc import Iterator
from itertools import permutations
from typing import Any

from onbeat_proofs.protocol import endings, outside, rules
from onbeat_proofs.protocol.functions import TEXT, Text
from onbeat_proofs.protocol.state import (
    ABORT,
    ORPHANED,
    GroupScope,
    Move,
    State,
    Wrong,
)
from onbeat_proofs.protocol.turns import TurnWorld
from onbeat_spec.protocol import Sent


class GroupWorld(TurnWorld):
    """The moves of a group of some size, under some text of the protocol, and what must hold in every state."""

    def __init__(self, scope: GroupScope, text: Text = TEXT) -> None:
        super().__init__(scope, text)
        self._outside: dict[tuple[int, int, tuple[int, ...]], list[tuple[tuple[Any, ...], int, int, Sent, Wrong]]] = {}
        self._complete: dict[tuple[int, ...], bool] = {}
        self._repeats: dict[int, Wrong] = {}

    def moves(self, state: State) -> Iterator[Move]:
        """Yield every way to go on."""
        front, left = self.front_of(state), self.lefts.values[state[1]]
        broken = self.broken(state)
        yield from endings.failures(self, state) if broken else self.turns(state)
        if front.ended == ORPHANED:
            yield from endings.orphans(self, state)
        elif not broken or (front.ended and left.restarts):
            for label, after, rest, sent, wrong in self._from_outside(state):
                yield Move(label, self.send((after, rest, *state[2:]), sent), wrong)
        if front.ended and front.ended != ORPHANED:
            yield from endings.restarts(self, state)
        elif not broken and not front.ended:
            yield from endings.deaths(self, state)
            yield from endings.aborts(self, state)

    def _from_outside(self, state: State) -> list[tuple[tuple[Any, ...], int, int, Sent, Wrong]]:
        """Return requests and controls: label, front end, what may still happen, messages, what is wrong with them."""
        key = state[0], state[1], tuple(self.taking(state))
        moves = self._outside.get(key)
        if moves is None:
            front, left = self.fronts.values[state[0]], self.lefts.values[state[1]]
            calls = outside.moves(self.text, self.scope, front, left, [place - 2 for place in key[2]])
            moves = self._outside[key] = [
                (label, self.fronts.number(after), self.lefts.number(rest), sent, wrong)
                for label, after, rest, sent, wrong in calls
            ]
        return moves

    # --- What must hold in every state -------------------------------------------------------------------------------

    def wrong(self, state: State) -> Wrong:
        """Return what is wrong with a state if nothing more comes from outside, or None."""
        if state[0] not in self._repeats:
            self._repeats[state[0]] = rules.repeats(self.text, self.front_of(state))
        if self._repeats[state[0]] is not None:
            return self._repeats[state[0]]
        taking = self.taking(state)
        for place in taking:
            if (wrong := self.misread(state[place])) is not None:
                return wrong
        if self.front_of(state).ended or self.broken(state):
            return self._not_over(state, taking)
        finals = [self.final(state[place]) for place in taking]
        idle = [
            self.text.before_step(final.rank, final.work > 0, self.scope.of(place - 2)).kind == "idle"
            for place, final in zip(taking, finals, strict=True)
        ]
        if any(idle):
            for place in taking:
                if any(self.begun.values[number].calls for number in self.begins(state[place], place)):
                    other = taking[idle.index(True)] - 2
                    return "collectives-align", f"rank {place - 2} waits in a collective that rank {other} never enters"
        if self.complete(state):
            for place in taking:
                member = self.members.values[state[place]]
                if any(event != ABORT for event in member.channel) or member.rank.read != member.rank.agreed:
                    return "pause-agreed", f"the front end takes the group for stopped, and rank {place - 2} is not"
        if all(idle):
            violation = rules.at_rest(self.front_of(state), finals)
            if violation is None and not all(self.complete(state, order) for order in _orders(len(state) - 2)):
                return "pause-agreed", "all ranks have stopped, and the front end never learns it"
            return violation
        return None

    def complete(self, state: State, order: tuple[int, ...] = ()) -> bool:
        """Whether the front end takes the group for stopped, once the latest reports have come, in this order."""
        view = tuple(self.members.values[number].rank.agreed for number in state[2:])
        key = state[0], *view, *order
        done = self._complete.get(key)
        if done is None:
            front = self.fronts.values[state[0]]
            for rank in order or range(len(view)):
                front = self.text.report(front, rank, view[rank])
                front = self.text.report(front, rank, 0)  # an old one that comes late
            done = self._complete[key] = self.text.complete(front)
        return done

    def _not_over(self, state: State, taking: list[int]) -> Wrong:
        """Check that whoever is left learns that a rank died."""
        if self.front_of(state).ended not in ("", ORPHANED):
            for place in taking:
                if not self.final(state[place]).rank.ended and not self.begins(state[place], place):
                    return "end-is-clear", f"a rank died, and rank {place - 2} never learns it"
        return None


def _orders(ranks: int) -> Iterator[tuple[int, ...]]:
    """Yield the orders in which reports may come; of large groups, as in scenarios, only two."""
    forth = tuple(range(ranks))
    return permutations(forth) if ranks <= 4 else iter((forth, forth[::-1]))
