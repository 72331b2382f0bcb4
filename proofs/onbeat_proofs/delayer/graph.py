"""All states that a decision can reach, breadth first, and what its passes do there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf
from time import perf_counter

from onbeat_proofs.delayer.decision import DECISION_S, Decision, Misstep, PassResult, State
from onbeat_proofs.delayer.rows import IDLE, Row
from onbeat_proofs.foreign.watchdog import Hang, limited
from onbeat_spec.errors import NotADelayer

Rows = tuple[Row, ...]
Kind = tuple[str, int]
"""What an edge is, and for which rank: `refused`, `gap` (decodes run, and nobody has a prefill), `instead` (a prefill
ran in the place of the rank's decode)."""

SAMPLE = 50
"""Passes of each state that are taken twice."""

Judge = Callable[[Rows, tuple[bool, ...]], str | None]
"""Says what is wrong with one pass, if anything is."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass: the state it began in (by index), the rows, and what was wrong with it."""

    start: int
    rows: Rows
    message: str


@dataclass(slots=True)
class Graph:
    """What was explored.

    Attributes:
        states: in the order found; the first is the initial one.
        parents: the pass each was first reached by: (index of the state before, rows).
        depths: passes from the initial state.
        edges: by kind, state and next state, the rows of the smallest such pass.
        closed: every pass from every reachable state was taken.
        decisions: passes taken.
        bad: the first pass that each judge objected to.
        misstep: the first pass that the code failed in; exploration ends there.
        limit: what ended it early.
    """

    decision: Decision
    states: list[State] = field(default_factory=list)
    index: dict[State, int] = field(default_factory=dict)
    parents: list[tuple[int, Rows] | None] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    edges: dict[Kind, dict[int, dict[int, Rows]]] = field(default_factory=dict)
    closed: bool = True
    decisions: int = 0
    seconds: float = 0.0
    bad: dict[str, Pass] = field(default_factory=dict)
    misstep: Pass | None = None
    limit: str = ""

    def path(self, state: int) -> list[Rows]:
        """Return the rows of the shortest run from the initial state to one."""
        path: list[Rows] = []
        parent = self.parents[state]
        while parent is not None:
            state, rows = parent
            path.append(rows)
            parent = self.parents[state]
        return path[::-1]

    def of(self, kind: str, rank: int) -> dict[int, dict[int, Rows]]:
        """Return the edges of a kind."""
        return self.edges.get((kind, rank), {})

    def any(self, kind: str) -> bool:
        """Whether any rank has an edge of a kind."""
        return any(edges for (name, _), edges in self.edges.items() if name == kind)


Before = Callable[[Graph, int, Rows], object]


def passes(letters: Sequence[Row], ranks: int) -> list[Rows]:
    """Return all passes of a group: every combination of rows, small ones first."""
    return sorted(product(letters, repeat=ranks), key=lambda rows: (sum(map(sum, rows)), rows[::-1]))


def explore(
    decision: Decision,
    judges: dict[str, Judge],
    *,
    depth: int,
    seconds: float = inf,
    before: Before | None = None,
) -> Graph:
    """Take every pass from every state that can be reached.

    Args:
        decision: what decides.
        judges: look at every pass.
        depth: passes from the initial state beyond which a new state is not followed any more.
        seconds: end after so long.
        before: told every pass before it is taken: the graph so far, the state by index, the rows.

    Raises:
        NotADelayer: the same state and rows had two outcomes.
    """
    graph = Graph(decision)
    started = perf_counter()
    first = decision.initial()
    _enter(graph, first, None, 0)
    every = passes(decision.rows(), len(first))
    takes = [(rows, _kinds(rows)) for rows in every]
    current = 0
    while current < len(graph.states):
        if graph.depths[current] >= depth:
            graph.closed, graph.limit = False, f"cut off {depth} passes deep"
        elif perf_counter() - started > seconds:
            graph.closed, graph.limit = False, f"cut off after {seconds:g} s"
            break
        elif not _expand(graph, current, takes, judges, before):
            break
        current += 1
    if graph.misstep is None:
        _ask_again(graph, every)
    graph.seconds = perf_counter() - started
    return graph


def step(decision: Decision, state: State, rows: Rows) -> PassResult:
    """Take one pass. Raises Misstep, also if it takes too long."""
    try:
        with limited(DECISION_S, patience=1):
            return decision.step(state, rows)
    except Hang:
        raise Misstep(f"no answer within {DECISION_S:g} s") from None


def _enter(graph: Graph, state: State, parent: tuple[int, Rows] | None, depth: int) -> int:
    number = graph.index.get(state)
    if number is None:
        number = graph.index[state] = len(graph.states)
        graph.states.append(state)
        graph.parents.append(parent)
        graph.depths.append(depth)
    return number


def _expand(
    graph: Graph,
    current: int,
    takes: list[tuple[Rows, list[tuple[Kind, bool | None]]]],
    judges: dict[str, Judge],
    before: Before | None,
) -> bool:
    """Take every pass from one state; False: the code failed."""
    state, depth = graph.states[current], graph.depths[current] + 1
    for rows, possible in takes:
        if before is not None:
            before(graph, current, rows)
        try:
            outcome = step(graph.decision, state, rows)
        except Misstep as error:
            graph.misstep, graph.closed = Pass(current, rows, str(error)), False
            graph.limit = "ended where the code failed"
            return False
        graph.decisions += 1
        following = _enter(graph, outcome.state, (current, rows), depth)
        for (name, rank), allowed in possible:
            if allowed is None or outcome.allow[rank] == allowed:
                graph.edges.setdefault((name, rank), {}).setdefault(current, {}).setdefault(following, rows)
        for check, judge in judges.items():
            if check not in graph.bad and (message := judge(rows, outcome.allow)) is not None:
                graph.bad[check] = Pass(current, rows, message)
    return True


def _kinds(rows: Rows) -> list[tuple[Kind, bool | None]]:
    """Return what a pass is, and for which answer to the rank; None: whatever the answer."""
    if not any(row.prefillable for row in rows):
        return [(("gap", rank), None) for rank in range(len(rows))] if any(row.running for row in rows) else []
    wanted = [rank for rank, row in enumerate(rows) if row.prefillable]
    kinds: list[tuple[Kind, bool | None]] = [(("refused", rank), False) for rank in wanted]
    return kinds + [(("instead", rank), True) for rank in wanted if rows[rank].running]


def _ask_again(graph: Graph, every: list[Rows]) -> None:
    """Take some passes of each state a second time: a decision must be a function of its arguments."""
    some = every[:: max(1, len(every) // SAMPLE)]
    for state in graph.states:
        for rows in (*some, every[-1]):
            try:
                once, twice = step(graph.decision, state, rows), step(graph.decision, state, rows)
            except Misstep as error:
                raise NotADelayer(f"{graph.decision.name} failed in a pass that went well before: {error}") from error
            if once != twice or (graph.closed and once.state not in graph.index):
                raise NotADelayer(
                    f"{graph.decision.name} gave two answers to one state and rows, {once} and {twice}; "
                    "all that it remembers must be in the state"
                )


def idle(ranks: int) -> Rows:
    """Return the pass in which nobody has anything to do."""
    return (IDLE,) * ranks
