"""The bounds on the loads, on random runs with late, repeated and reordered reports."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from onbeat_spec.balance import (
    WAITING_WEIGHT,
    LoadReport,
    choose,
    counted,
    fleet_of,
    joined,
    paused,
    place,
    removed,
    reported,
    score,
)
from tests.spec.honest_rank import Rank

EVENTS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 3), st.integers(1, 50)),
    st.tuples(st.sampled_from(("read", "admit", "publish")), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("deliver"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(
        st.sampled_from(("preempt", "end", "read", "admit", "pause", "resume", "die", "join")),
        st.integers(0, 3),
        st.just(0),
    ),
)
"""What happens, at which engine, and: tokens of the prompt, or how many reports ago the one that comes was written."""


@dataclass
class World:
    """A fleet, the engines that it is about, and what the bound is made of."""

    count: int
    by_tokens: bool
    ranks: list[Rank] = field(default_factory=list)
    asleep: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    newest: dict[int, LoadReport] = field(default_factory=dict)
    """The newest report that has come from each engine."""
    peak: int = 0
    largest: int = 0
    calm: bool = True
    """Nothing but sends has come to the fleet."""

    def __post_init__(self) -> None:
        self.fleet = fleet_of(self.count, by_tokens=self.by_tokens)
        self.ranks = [Rank() for _ in range(self.count)]

    def loads(self) -> list[int]:
        return [score(engine, self.by_tokens) for engine in self.fleet.engines]

    def happen(self, what: str, index: int, number: int) -> None:
        rank = self.ranks[index]
        self.calm = self.calm and what not in ("deliver", "pause", "die", "join")
        match what:
            case "send":
                self.send(number)
            case "deliver":
                if number < len(rank.written):
                    self.deliver(index, rank.written[-1 - number][0])
            case "pause" | "resume":
                self.fleet = paused(self.fleet, index, what == "pause")
                (self.asleep.add if what == "pause" else self.asleep.discard)(index)
            case "die":
                self.fleet = removed(self.fleet, index)
                self.lost.add(index)
            case "join":
                self.ranks[index] = Rank(rank.epoch + 1)
                self.fleet = joined(self.fleet, index, rank.epoch + 1)
                self.asleep.discard(index)
                self.lost.discard(index)
                self.newest.pop(index, None)
            case _:
                getattr(rank, what)()

    def deliver(self, index: int, report: LoadReport) -> None:
        before = self.newest.get(index)
        if index not in self.lost and (before is None or report.number > before.number):
            self.newest[index] = report
        self.fleet = reported(self.fleet, index, report)

    def send(self, tokens: int) -> None:
        loads = {i: load for i, load in enumerate(self.loads()) if i not in self.lost | self.asleep}
        if not loads:
            assert choose(self.fleet) is None
            return
        index, after = place(self.fleet, tokens)
        assert loads[index] == min(loads.values())
        self.ranks[index].inbox.append(tokens)
        self.peak, self.largest = max(self.peak, loads[index]), max(self.largest, tokens)
        self.fleet = after

    def check(self) -> None:
        """No load is more than one send, and what is preempted there, above the peak."""
        loads = self.loads()
        most = self.largest if self.by_tokens else WAITING_WEIGHT
        assert not self.calm or max(loads) - min(loads) <= most
        for index, (engine, rank, load) in enumerate(zip(self.fleet.engines, self.ranks, loads, strict=True)):
            assert engine.report == self.newest.get(index, LoadReport(rank.epoch))
            preempted = dict(rank.written).get(engine.report, 0)
            assert load <= self.peak + most + (0 if self.by_tokens else (WAITING_WEIGHT - 1) * preempted)

    def settle(self) -> None:
        """Once everything has come, what is counted is what is there."""
        for index, rank in enumerate(self.ranks):
            while rank.inbox:
                rank.read()
            self.deliver(index, rank.publish())
            if index not in self.lost:
                held = [*rank.waiting, *rank.preempted, *rank.running]
                assert counted(self.fleet.engines[index]) == len(held)
                weighed = WAITING_WEIGHT * (len(held) - len(rank.running)) + len(rank.running)
                assert score(self.fleet.engines[index], False) == weighed
                assert score(self.fleet.engines[index], True) == sum(held)


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 3), by_tokens=st.booleans(), events=st.lists(EVENTS, min_size=30, max_size=80))
def test_no_load_is_more_than_one_send_above_the_peak(
    count: int, by_tokens: bool, events: list[tuple[str, int, int]]
) -> None:
    """Reports come late, twice, or out of order; engines preempt, pause, die and join."""
    world = World(count, by_tokens)
    for what, index, number in events:
        world.happen(what, index % count, number)
        world.check()
    world.settle()
