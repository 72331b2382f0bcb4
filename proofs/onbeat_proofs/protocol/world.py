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
from dataclasses import replace
from itertools import permutations, product
from typing import Any

from onbeat_proofs.protocol import endings, outside, rules
from onbeat_proofs.protocol.functions import TEXT, Text
from onbeat_proofs.protocol.state import (
    ABORT,
    ORPHANED,
    Begun,
    GroupMember,
    GroupScope,
    Left,
    Move,
    State,
    Table,
    Wrong,
)
from onbeat_spec.protocol import Agreement, Event, Front, Rank, Sent, Vote
from onbeat_spec.protocol.facts import EventRead


class GroupWorld:
    """The moves of a group of some size, under some text of the protocol."""

    def __init__(self, scope: GroupScope, text: Text = TEXT) -> None:
        self.text = text
        self.scope = scope if scope.fixed else replace(scope, ranks=len(text.groups(scope.ranks, scope.coupled)[0]))
        self.fronts, self.lefts = Table[Front](), Table[Left]()
        self.members, self.begun = Table[GroupMember](), Table[Begun]()
        self._begins: dict[tuple[int, int], list[int]] = {}
        self._finals: dict[int, GroupMember] = {}
        self.parts = Table[rules.TurnRecord]()
        self._votes: dict[int, Vote | None] = {}
        self._agreed: dict[tuple[Vote | None, ...], Agreement] = {}
        self._left: dict[tuple[int, int, Agreement | None], tuple[list[int], int]] = {}
        self._judged: dict[tuple[int, ...], Wrong] = {}
        self._outside: dict[tuple[int, int, tuple[int, ...]], list[tuple[tuple[Any, ...], int, int, Sent, Wrong]]] = {}
        self._misread: dict[int, Wrong] = {}
        self._sent: dict[tuple[int, Event], int] = {}
        self._complete: dict[tuple[int, ...], bool] = {}
        self._repeats: dict[int, Wrong] = {}

    def start(self) -> State:
        """Return the state in which nothing has happened.

        Raises:
            ConfigError: the ranks were started with different settings.
        """
        scope = self.scope
        self.text.common([scope.of(rank) for rank in range(scope.ranks)])
        front = Front(tuple(range(scope.ranks)), holds=scope.holds)
        left = Left(
            scope.requests,
            scope.controls,
            scope.removals,
            scope.deaths,
            scope.restarts,
            scope.aborts,
            scope.orphans,
        )
        member = self.members.number(GroupMember(Rank(members=scope.ranks)))
        return (self.fronts.number(front), self.lefts.number(left), *(member,) * scope.ranks)

    def front_of(self, state: State) -> Front:
        """Return the front end of a state."""
        return self.fronts.values[state[0]]

    def members_of(self, state: State) -> list[GroupMember]:
        """Return the ranks of a state."""
        return [self.members.values[number] for number in state[2:]]

    def canonical(self, state: State) -> State:
        """Return the state that stands for all that differ from this one in who is who."""
        if not self.scope.symmetric:
            return state
        front = self.fronts.values[state[0]]
        if front.leaving:
            order = sorted(range(len(state) - 2), key=lambda place: state[place + 2])
            leaving = tuple(order.index(rank) for rank in front.leaving)
            state = (self.fronts.number(front._replace(leaving=leaving)), *state[1:])
        return (*state[:2], *sorted(state[2:]))

    def moves(self, state: State) -> Iterator[Move]:
        """Yield every way to go on."""
        front, left = self.front_of(state), self.lefts.values[state[1]]
        broken = self.broken(state)
        yield from endings.failures(self, state) if broken else self._inner(state)
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

    def broken(self, state: State) -> bool:
        """Whether a rank is missing that others take turns with."""
        members = (self.members.values[number] for number in state[2:])
        return any(member.dead or (member.rank.ended and not member.gone) for member in members)

    # --- A turn ------------------------------------------------------------------------------------------------------

    def _inner(self, state: State) -> Iterator[Move]:
        """Yield what happens without anybody outside and without deaths."""
        taking = self.taking(state)
        options = []
        for place in taking:
            joining = []
            for number in self.begins(state[place], place):
                begun = self.begun.values[number]
                if begun.calls:
                    joining.append(number)
                else:
                    yield self._alone(state, place, begun)
            options.append(joining)
        for chosen in product(*options):
            outcomes, wrong = self._turn(chosen, taking)
            for after in outcomes:
                if len(taking) == len(after) == len(state) - 2:
                    yield Move(("turn", chosen, after), (state[0], state[1], *after), wrong)
                else:
                    members = dict(zip(taking, after, strict=True))
                    following = (members.get(place, state[place]) for place in range(2, len(state)))
                    yield Move(("turn", chosen, after), (state[0], state[1], *following), wrong)

    def taking(self, state: State) -> list[int]:
        """Return the places, in the state, of the ranks that are part of the group."""
        return [place for place in range(2, len(state)) if not self.members.values[state[place]].gone]

    def living(self, state: State) -> tuple[int, ...]:
        """Return the ranks that run."""
        return tuple(place - 2 for place in self.taking(state) if not self.members.values[state[place]].rank.ended)

    def take(self, member: GroupMember, reads: int) -> GroupMember:
        """Let a rank read so many messages."""
        rank, work, age = member.rank, member.work, member.age
        for event in member.channel[:reads]:
            rank, work = self._read(rank, work, event)
            age = 0 if event.kind == "pause" else age
        due = max(0, member.due - reads)
        return member._replace(rank=rank, work=work, channel=member.channel[reads:], due=due, age=age)

    def _read(self, rank: Rank, work: int, event: Event) -> tuple[Rank, int]:
        if event == ABORT:
            return rank, max(0, work - 1)
        rank, effect = self.text.read(rank, event)
        return rank, work + 1 if effect == "accept" else 0 if effect == "abort" else work

    def misread(self, number: int) -> Wrong:
        """Return what is wrong with what a rank makes of the messages on its channel, of the first where that is so."""
        if number not in self._misread:
            member = self.members.values[number]
            self._misread[number] = next(filter(None, self._reads(member)), None)
        return self._misread[number]

    def _reads(self, member: GroupMember) -> Iterator[Wrong]:
        rank, work = member.rank, member.work
        for event in member.channel:
            before, had = rank, work
            rank, work = self._read(rank, work, event)
            if not before.ended and event.number == before.read + 1:
                yield rules.has_read(EventRead(event, before, rank, had, work))

    def final(self, number: int) -> GroupMember:
        """Return a rank after it has read all there is."""
        if number not in self._finals:
            member = self.members.values[number]
            self._finals[number] = self.take(member, len(member.channel))
        return self._finals[number]

    def begins(self, number: int, place: int) -> list[int]:
        """Return the numbers of the turns that a rank can begin, by how much of its channel has arrived."""
        key = number, 0 if self.scope.symmetric else place
        numbers = self._begins.get(key)
        if numbers is None:
            begun = self._all_begins(self.members.values[number], place)
            if not self.scope.prompt:
                begun = [turn for turn in begun if not any(self._commutes(fewer, turn, place) for fewer in begun)]
            numbers = self._begins[key] = [self.begun.number(turn) for turn in begun]
            self._votes |= {number: self.begun.values[number].turn.vote for number in numbers}
        return numbers

    def _all_begins(self, member: GroupMember, place: int) -> list[Begun]:
        beginnings = []
        for reads in range(member.due, len(member.channel) + 1):
            ready = self.take(member, reads)
            turn = self.text.before_step(ready.rank, ready.work > 0, self.scope.of(place - 2))
            if turn.kind != "idle" and not member.dead:
                calls = {self.text.collectives(turn, tokens) for tokens in ((0, 1) if turn.kind == "step" else (0,))}
                beginnings += [Begun(ready, turn, collectives, reads) for collectives in sorted(calls)]
        return beginnings

    def _commutes(self, fewer: Begun, more: Begun, place: int) -> bool:
        """Whether what is read more may as well be read after this turn."""
        if fewer.reads >= more.reads or fewer.turn.vote is not None or fewer[1:3] != more[1:3]:
            return False
        if fewer.member.work != more.member.work:
            return False
        settings = self.scope.of(place - 2)
        late = fewer.member._replace(rank=self.text.after_step(fewer.member.rank, settings, None), work=1)
        early = more.member._replace(rank=self.text.after_step(more.member.rank, settings, None), work=1)
        return self.take(late, more.reads - fewer.reads) == early

    def _turn(self, chosen: tuple[int, ...], taking: list[int]) -> tuple[list[tuple[int, ...]], Wrong]:
        """Return what a turn of all leaves, for every choice of requests that end in it, and what is wrong with it."""
        votes = tuple(self._votes[number] for number in chosen)
        agreement = self._agreed.get(votes)
        if agreement is None and any(votes):
            agreement = self._agreed[votes] = self.text.tally([vote for vote in votes if vote is not None])
        left = [self._leave(number, place, agreement) for number, place in zip(chosen, taking, strict=True)]
        parts = tuple(part for _, part in left)
        if parts not in self._judged:
            self._judged[parts] = rules.together([self.parts.values[number] for number in parts])
        return list(product(*[members for members, _ in left])), self._judged[parts]

    def _leave(self, number: int, place: int, agreement: Agreement | None) -> tuple[list[int], int]:
        """Return what a turn leaves of one rank, for each choice of requests that end, and what others see of it."""
        key = number, 0 if self.scope.symmetric else place, agreement
        leaving = self._left.get(key)
        if leaving is None:
            begun = self.begun.values[number]
            after = self.after(begun, place, agreement)
            rest = range(after.work + 1) if begun.turn.kind == "step" else (after.work,)
            numbers = [self.members.number(after._replace(work=work)) for work in rest]
            leaving = self._left[key] = numbers, self.parts.number(rules.part(begun, after))
        return leaving

    def after(self, begun: Begun, place: int, agreement: Agreement | None) -> GroupMember:
        """Return a rank after a turn in which no request of it ends; `place` is its place in the state."""
        agreement = None if begun.turn.vote is None else agreement
        rank = self.text.after_step(begun.member.rank, self.scope.of(place - 2), agreement)
        after = begun.member._replace(rank=rank, begun=rank.read != rank.agreed)
        if after.gone:
            return GroupMember(rank)
        if not self.scope.prompt:
            return after
        requests = after.work or any(event.kind == "request" for event in after.channel)
        paused = after.rank.paused not in (None, "wait") or any(event.kind == "pause" for event in after.channel)
        waits = requests and not paused and begun.turn.kind != "step"
        return after._replace(due=len(after.channel), age=after.age + 1 if waits else 0)

    def _alone(self, state: State, place: int, begun: Begun) -> Move:
        """A turn without a collective: nobody waits for anybody."""
        rank = self.text.after_step(begun.member.rank, self.scope.of(place - 2), None)
        return Move(("alone", place - 2, begun), self.put(state, place, begun.member._replace(rank=rank)))

    # --- From outside ------------------------------------------------------------------------------------------------

    def put(self, state: State, place: int, member: GroupMember) -> State:
        """Return a state with another member at a place."""
        return (*state[:place], self.members.number(member), *state[place + 1 :])

    def send(self, state: State, sent: Sent) -> State:
        """Return a state with messages put on their channels."""
        members = list(state)
        for to, event in sent:
            key = members[to + 2], event
            if key not in self._sent:
                member = self.members.values[key[0]]
                if not (member.gone or member.dead):
                    member = member._replace(channel=(*member.channel, event))
                self._sent[key] = self.members.number(member)
            members[to + 2] = self._sent[key]
        return tuple(members)

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
