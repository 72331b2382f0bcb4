"""All sequences of operations, up to a depth, in worlds small enough for it.

The search goes breadth first and cuts off states it has seen (see `fingerprint`). So what it reports holds for all
sequences up to the depth stated, and the first counterexample of an invariant is a shortest one of its scope.
"""

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from onbeat_proofs.audit.fingerprint import fingerprint_for
from onbeat_proofs.audit.worlds import SmallWorld
from onbeat_proofs.foreign.families import Factory
from onbeat_proofs.foreign.watchdog import Trail, operations
from onbeat_proofs.play.drain import AT_REST
from onbeat_proofs.play.tally import Tally
from onbeat_proofs.play.two_runs import Runs
from onbeat_proofs.scenarios.operations import Scenario, Schedule
from onbeat_spec.policy import Policy
from onbeat_spec.records import Violation

Report = Callable[[Violation, Scenario], object]


@dataclass(slots=True)
class Explored:
    """What was explored of one scope."""

    scope: str
    depth: int = 0
    """All sequences of up to so many operations."""
    states: int = 0
    """Distinct states in which operations were tried."""
    sequences: int = 0
    """Sequences of exactly `depth` operations."""
    operations: int = 0
    """Operations executed; duplicates cut off, so far fewer than the sequences have."""
    steps: int = 0
    """Steps scheduled, those of the comparisons included."""
    drained: int = 0
    seconds: float = 0.0
    complete: bool = True
    """No limit was met before the depth asked for."""
    closed: bool = False
    """The last operation led to no new state, so all sequences of any length are covered."""


class Exploration:
    """Explores one scope, one level at a time.

    Args:
        scope: the configuration and the alphabet.
        factory: makes the scheduler.
        policy: what decides.
        report: called with every new violation and the scenario that shows it, once for each invariant and operation.
        tally: counts the premises met.
        most: operations; the level that would take more is left incomplete, and does not count.
        drains: states of the last level, evenly spread, that are brought to rest; a tenth as many of the others.
        enough: asked in every state; True ends the search as `most` does.
    """

    def __init__(
        self,
        scope: SmallWorld,
        factory: Factory,
        policy: Policy,
        report: Report,
        *,
        tally: Tally | None = None,
        most: int = 1_000_000,
        drains: int = 200,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self.scope = scope
        self.report = report
        self.most = most
        self.drains = drains
        self.enough = enough
        self.explored = Explored(scope.name)
        self.tally = tally if tally is not None else Tally()
        root = Runs(scope.config, factory, policy=policy, tally=self.tally, compares=False)
        opened: Trail = ()
        for op in scope.opening:
            root.apply(op)
            opened = (op, opened)
        self._by_clock = scope.config.prefill_schedule_interval > 1
        self._frontier: list[tuple[int, Runs, Trail]] = [(0, root, opened)]
        self._fingerprint = fingerprint_for(root, scope.late)
        self._indices: dict[bytes, int] = {self._fingerprint(root): 0}
        self._children: list[array[int]] = []
        self._weights: Counter[int] = Counter({0: 1})

    def level(self, last: bool = False) -> None:
        """Explore sequences longer by one operation; states of the `last` level are checked but not kept."""
        if not self._frontier:
            # Also after a search that was cut short: then nothing is left to go on from, and `complete` says so.
            self.explored.closed = self.explored.complete and self.explored.depth > 0
            return
        began, steps = perf_counter(), self.tally.steps + 3 * self.tally.pairs
        frontier, self._frontier = self._frontier, []
        for number, (index, driver, path) in enumerate(frontier):
            if self.explored.operations >= self.most or self.enough():
                self.explored.complete = False
                self._frontier.clear()
                break
            self._expand(index, driver, path, last)
            frontier[number] = (index, driver, path) if last else _DONE  # let go of it
        else:
            self._drain(frontier if last else self._frontier, self.drains if last else self.drains // 10)
            self._count()
            self.explored.depth += 1
        self.explored.steps += self.tally.steps + 3 * self.tally.pairs - steps
        self.explored.seconds += perf_counter() - began

    def _expand(self, index: int, driver: Runs, path: Trail, last: bool) -> None:
        """Try every letter in one state."""
        before = len(driver.violations)
        if driver.in_flight < driver.config.async_depth:
            driver.compare(self._by_clock)
            self._show(driver, before, (Schedule(None if self._by_clock else True), path))
        children = array("q")
        for letter in self.scope.letters:
            op = None if driver.ended else letter(driver)
            if op is None or not driver.can(op):
                continue
            child = driver.fork()
            start = len(child.violations)
            child.apply(op)
            self.explored.operations += 1
            self._show(child, start, (op, path))
            children.append(-1 if last else self._keep(child, (op, path)))
        assert index == len(self._children)
        self._children.append(children)
        self.explored.states += 1

    def _keep(self, child: Runs, path: Trail) -> int:
        """Put a state on the next level unless it was seen before; return its number."""
        key = self._fingerprint(child)
        index = self._indices.get(key)
        if index is None:
            index = self._indices[key] = len(self._indices)
            self._frontier.append((index, child, path))
        return index

    def _show(self, driver: Runs, start: int, path: Trail) -> None:
        for violation in driver.violations[start:]:
            self.report(violation, scenario(self.scope, path, violation))

    def _count(self) -> None:
        """Count the sequences, those cut off as duplicates included."""
        weights: Counter[int] = Counter()
        for index, weight in self._weights.items():
            for child in self._children[index]:
                weights[child] += weight
        self._weights = weights
        self.explored.sequences = weights.total()

    def _drain(self, states: list[tuple[int, Runs, Trail]], most: int) -> None:
        """Bring some states to rest; who cannot finish is stuck."""
        for _, state, path in states[:: max(1, -(-len(states) // most))] if most else ():
            if state.ended or self.enough():
                continue
            driver = state.fork()
            start = len(driver.violations)
            driver.apply(AT_REST)
            self.explored.drained += 1
            self._show(driver, start, (AT_REST, path))


_DONE: Any = None


def scenario(scope: SmallWorld, path: Trail, violation: Violation) -> Scenario:
    """Return a path of the search as a scenario."""
    return Scenario(
        name=f"{violation.invariant}, found in the scope {scope.name}",
        invariants=(violation.invariant,),
        config=scope.config,
        steps=tuple(operations(path)),
    )
