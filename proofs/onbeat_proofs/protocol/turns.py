"""The turns of a group: what its ranks read, begin and leave while nothing comes from outside and nobody dies."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from onbeat_proofs.protocol import rules
from onbeat_proofs.protocol.functions import TEXT, Text
from onbeat_proofs.protocol.state import (
    ABORT,
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


class TurnWorld:
    """A group of some size under some text of the protocol, and the turns that its ranks take."""

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
        self._misread: dict[int, Wrong] = {}
        self._sent: dict[tuple[int, Event], int] = {}

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

    def broken(self, state: State) -> bool:
        """Whether a rank is missing that others take turns with."""
        members = (self.members.values[number] for number in state[2:])
        return any(member.dead or (member.rank.ended and not member.gone) for member in members)

    # --- A turn ------------------------------------------------------------------------------------------------------

    def turns(self, state: State) -> Iterator[Move]:
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

    # --- States ------------------------------------------------------------------------------------------------------

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
