"""Runs group scenarios, move by move."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from onbeat_proofs.protocol import rules
from onbeat_proofs.protocol.functions import TEXT, Text
from onbeat_proofs.protocol.scenario import GroupScenario
from onbeat_proofs.protocol.state import ABORT, ORPHANED, Begun, GroupMember, GroupScope, State
from onbeat_proofs.protocol.world import GroupWorld
from onbeat_spec.errors import ConfigError, ProtocolMisuse, ScenarioError
from onbeat_spec.protocol import Event, Front, PauseMode, Rank, Sent, Vote
from onbeat_spec.protocol.facts import CallKind, FrontCall

MOST_TURNS = 10_000
"""Turns after which a group that is to settle counts as never settling."""


@dataclass
class GroupReplay:
    """What a scenario led to."""

    scenario: GroupScenario
    violations: list[tuple[int, str, str]] = field(default_factory=list)
    """Step, from 0, invariant and message."""
    failures: list[tuple[int, str]] = field(default_factory=list)
    """Expectations that were not met."""

    @property
    def right(self) -> bool:
        """It went as the scenario says."""
        return not self.failures and {v for _, v, _ in self.violations} == set(self.scenario.violates)


@dataclass
class _Group:
    """One group of the deployment while a scenario runs."""

    world: GroupWorld
    state: State
    ranks: tuple[int, ...]

    @property
    def members(self) -> list[GroupMember]:
        return self.world.members_of(self.state)

    @property
    def front(self) -> Front:
        return self.world.front_of(self.state)

    def put(self, place: int, member: GroupMember) -> None:
        self.state = self.world.put(self.state, place + 2, member)

    def send(self, front: Front, sent: Sent) -> None:
        self.state = self.world.send((self.world.fronts.number(front), *self.state[1:]), sent)


class GroupRun:
    """Runs a scenario under a text of the protocol."""

    def __init__(self, scenario: GroupScenario, text: Text = TEXT) -> None:
        self.scenario, self.text, self.outcome = scenario, text, GroupReplay(scenario)
        self.counts: Counter[tuple[str, int]] = Counter()
        self.read: dict[int, list[Event]] = {rank: [] for rank in range(scenario.ranks)}
        self.groups, self.step = [], 0
        for ranks in text.groups(scenario.ranks, scenario.coupled):
            settings = scenario.settings if len(ranks) > 1 else (scenario.settings[ranks[0] % len(scenario.settings)],)
            scope = GroupScope(len(ranks), settings=settings, holds=scenario.holds, fixed=True)
            world = GroupWorld(scope, text)
            self.groups.append(_Group(world, world.start(), ranks))

    def run(self) -> GroupReplay:
        """Run all steps, or up to the first violation."""
        for number, step in enumerate(self.scenario.steps):
            self.step = number
            kind, body = next(iter(step.items()))
            getattr(self, f"_{kind}")(body)
            for group in self.groups if not self.outcome.violations else ():
                self._note(group.world.wrong(group.state))
            if self.outcome.violations or self.outcome.failures:
                break
        return self.outcome

    def _note(self, wrong: tuple[str, str] | None) -> None:
        if wrong is not None:
            self.outcome.violations.append((self.step, *wrong))

    def _fail(self, message: str) -> None:
        self.outcome.failures.append((self.step, message))

    def _at(self, rank: int) -> tuple[_Group, int]:
        group = next(group for group in self.groups if rank in group.ranks)
        return group, group.ranks.index(rank)

    def _call(
        self,
        group: _Group,
        kind: CallKind,
        answer: tuple[Front, Sent],
        place: int | None = None,
        mode: PauseMode | None = None,
    ) -> None:
        """Note what is wrong with what the front end makes of an event, and send what it sends."""
        self._note(rules.called(FrontCall(kind, group.front, *answer, group.world.living(group.state), place, mode)))
        group.send(*answer)

    # --- Steps: one method for each key of the schema ----------------------------------------------------------------

    def _request(self, body: dict[str, Any]) -> None:
        group, place = self._at(body["rank"])
        answer, wanted = self.text.admission(group.front, place), body.get("becomes", "accept")
        if answer != wanted:
            self._fail(f"a request for rank {body['rank']}: {answer}, not {wanted}")
        elif answer in ("accept", "hold"):
            self._call(group, "request", self.text.request(group.front, place), place)

    def _pause(self, mode: Any) -> None:
        for group in self.groups:
            self._call(group, "pause", self.text.pause(group.front, mode, holds=self.scenario.holds), mode=mode)

    def _resume(self, _: None) -> None:
        for group in self.groups:
            self._call(group, "resume", self.text.resume(group.front))

    def _sleep(self, _: None) -> None:
        for group in self.groups:
            self._call(group, "sleep", self.text.sleep(group.front))

    def _rouse(self, _: None) -> None:
        for group in self.groups:
            self._call(group, "rouse", self.text.rouse(group.front))

    def _remove(self, rank: int) -> None:
        group, place = self._at(rank)
        self._call(group, "remove", self.text.remove(group.front, place), place)

    def _die(self, rank: int) -> None:
        group, place = self._at(rank)
        group.put(place, GroupMember(group.members[place].rank._replace(ended="died"), dead=True))
        self._call(group, "death", self.text.died(group.front, place), place)

    def _restart(self, _: None) -> None:
        for group in self.groups:
            if group.front.ended:
                front, sent = self.text.restart(group.front)
                self._note(rules.called(FrontCall("restart", group.front, front, sent, group.front.members)))
                fresh = GroupMember(Rank(members=len(group.ranks)))
                for place in range(len(group.ranks)):
                    group.put(place, fresh)
                group.send(front, sent)

    def _abort(self, rank: int) -> None:
        group, place = self._at(rank)
        group.send(group.front, ((place, ABORT),))

    def _withdraw(self, _: None) -> None:
        group = next((group for group in self.groups if group.front.held), self.groups[0])
        group.send(self.text.withdraw(group.front), ())

    def _orphan(self, _: None) -> None:
        for group in self.groups:
            group.send(group.front._replace(ended=ORPHANED), ())

    def _gone(self, rank: int) -> None:
        group, place = self._at(rank)
        lost, effect = self.text.lost(group.members[place].rank, "the front end is gone")
        self._note(rules.is_lost(lost, effect))
        group.put(place, GroupMember(lost))

    def _deliver(self, body: dict[str, Any]) -> None:
        group, place = self._at(body["to"])
        member = group.members[place]
        if not member.channel:
            return self._fail(f"there is no message for rank {body['to']}")
        event = member.channel[0]
        if event.kind != body.get("message", event.kind):
            return self._fail(f"the next message for rank {body['to']} is {event.kind}, not {body['message']}")
        self.read[body["to"]].append(event)
        group.put(place, group.world.take(member, 1))
        return None

    def _copy(self, body: dict[str, Any]) -> None:
        group, place = self._at(body["to"])
        event = next((event for event in self.read[body["to"]] if event.number == body["number"]), None)
        if event is None:
            return self._fail(f"rank {body['to']} has not read message {body['number']}")
        member = group.members[place]
        again = group.world.take(member._replace(channel=(event, *member.channel)), 1)
        group.put(place, again)
        return None

    def _turn(self, body: dict[str, Any] | None) -> None:
        body = body or {}
        kinds = ["idle"] * self.scenario.ranks
        for group in self.groups:
            self._turn_of(group, body, kinds)
        if body.get("kinds", kinds) != kinds:
            self._fail(f"the ranks did {', '.join(kinds)}, not {', '.join(body['kinds'])}")
        elif set(kinds) == {"idle"} and "kinds" not in body and not self.outcome.violations:
            self._fail("no rank takes a turn")

    def _turn_of(self, group: _Group, body: dict[str, Any], kinds: list[str]) -> None:
        begun = self._begin(group, body, kinds)
        waiting = {place for place, beginning in begun.items() if beginning.calls}
        staying = {place for place, member in enumerate(group.members) if not member.gone}
        if group.world.broken(group.state):
            for place in waiting:
                rank, _ = self.text.lost(begun[place].member.rank, "a collective failed")
                group.put(place, GroupMember(rank))
        elif waiting and "only" in body:
            self._fail(f"rank {group.ranks[min(waiting)]} has a collective in its turn: it cannot take it alone")
        elif waiting and waiting != staying:
            ranks = group.ranks[min(waiting)], group.ranks[min(staying - waiting)]
            mismatch = f"rank {ranks[0]} waits in a collective that rank {ranks[1]} has not entered"
            self._note(("collectives-align", mismatch))
        else:
            parts = self._leave(group, begun, body)
            self._note(rules.together(parts) if waiting else None)

    def _begin(self, group: _Group, body: dict[str, Any], kinds: list[str]) -> dict[int, Begun]:
        begun = {}
        for place, member in enumerate(group.members):
            rank = group.ranks[place]
            if member.rank.ended or rank not in body.get("only", [rank]):
                continue
            turn = self.text.before_step(member.rank, member.work > 0, group.world.scope.of(place))
            if turn.kind != "idle":
                calls = self.text.collectives(turn, body.get("tokens", {}).get(str(rank), 1))
                begun[place] = Begun(member, turn, calls, 0)
                kinds[rank] = turn.kind
                self.counts[turn.kind, rank] += 1
        return begun

    def _leave(self, group: _Group, begun: dict[int, Begun], body: dict[str, Any]) -> list[rules.TurnRecord]:
        votes: list[Vote] = [beginning.turn.vote for beginning in begun.values() if beginning.turn.vote is not None]
        agreement = self.text.tally(votes) if votes else None
        parts = []
        for place, beginning in begun.items():
            after = group.world.after(beginning, place + 2, agreement)
            finish = body.get("finish", {}).get(str(group.ranks[place]), 0)
            if "all" in body and beginning.turn.kind == "step":
                finish = after.work
            if finish > after.work or (finish and beginning.turn.kind != "step"):
                self._fail(f"{finish} requests cannot end on rank {group.ranks[place]} in a {beginning.turn.kind}")
                continue
            group.put(place, after._replace(work=after.work - finish))
            parts.append(rules.part(beginning, after))
        return parts

    def _settle(self, _: None) -> None:
        for _turn in range(MOST_TURNS):
            for rank in range(self.scenario.ranks):
                group, place = self._at(rank)
                while group.members[place].channel:
                    self._deliver({"to": rank})
            before = [group.state for group in self.groups]
            for group in self.groups:
                self._turn_of(group, {"all": True}, ["idle"] * self.scenario.ranks)
            if self.outcome.violations or before == [group.state for group in self.groups]:
                return
        self._note(("wake-not-lost", f"the group does not settle within {MOST_TURNS} turns"))

    def _check(self, body: dict[str, Any]) -> None:
        for key, wanted in body.items():
            actual = self._seen(key, wanted)
            if actual != wanted:
                self._fail(f"{key} is {actual}, not {wanted}")

    def _seen(self, key: str, wanted: Any) -> Any:
        everyone = {rank: self._at(rank)[0].members[self._at(rank)[1]] for rank in range(self.scenario.ranks)}
        staying = {rank: member for rank, member in everyone.items() if not member.rank.ended}
        match key:
            case "busy":
                return [rank for rank, member in staying.items() if member.rank.read != member.rank.agreed]
            case "asleep":
                return [rank for rank, member in staying.items() if member.rank.asleep]
            case "ended":
                return [rank for rank, member in everyone.items() if member.rank.ended]
            case "phase" | "members":
                values = {getattr(member.rank, key) for member in staying.values()}
                return values.pop() if len(values) == 1 else sorted(values)
            case "complete":
                return all(group.world.complete(group.state) for group in self.groups)
            case "held":
                return sum(group.front.held for group in self.groups)
            case "work":
                return {rank: everyone[int(rank)].work for rank in wanted}
        kind = {"exchanges": "exchange", "steps": "step", "dummies": "dummy"}[key]
        return {rank: self.counts[kind, int(rank)] for rank in wanted}


def replay(scenario: GroupScenario, text: Text = TEXT) -> GroupReplay:
    """Run a scenario.

    Raises:
        ScenarioError: ranks of one group have different settings, or it asks the front end for what that refuses.
    """
    run = None
    try:
        run = GroupRun(scenario, text)
        return run.run()
    except (ConfigError, ProtocolMisuse) as error:
        where = f"{scenario.name}: step {run.step}" if run is not None else scenario.name
        raise ScenarioError(f"{where}: {error}") from error
