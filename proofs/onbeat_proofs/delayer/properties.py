"""The checks over everything that a decision can reach."""

from collections import deque
from collections.abc import Iterator

from onbeat_proofs.delayer.decision import Decision, Misstep, State
from onbeat_proofs.delayer.graph import Graph, Judge, Rows, idle, passes, step
from onbeat_proofs.delayer.results import HOLDS, UNDECIDED, VACUOUS, VIOLATED, DelayerResult, DelayerRun, rerun

EXHAUSTIVE = "exhaustive"
RESTING = 1000
"""Idle passes after which a state must have come to rest."""

Edges = dict[int, dict[int, Rows]]


def no_empty_step(rows: Rows, allow: tuple[bool, ...]) -> str | None:
    """Somebody may run something, if somebody has anything to run."""
    wanted = [rank for rank, row in enumerate(rows) if row.prefillable]
    if wanted and not any(allow[rank] for rank in wanted) and not any(row.running for row in rows):
        return f"{_ranks(wanted)} may not prefill, and no rank has a decode to run: the pass is empty"
    return None


def phase_agrees(rows: Rows, allow: tuple[bool, ...]) -> str | None:
    """All ranks answer alike."""
    if len(set(allow)) > 1:
        yes, no = ([rank for rank, one in enumerate(allow) if one is answer] for answer in (True, False))
        return f"{_ranks(yes)} may prefill and {_ranks(no)} may not, from the same rows"
    return None


JUDGES: dict[str, Judge] = {"no-empty-step": no_empty_step, "phase-agrees": phase_agrees}
"""Checks that look at single passes."""


def judge(graph: Graph, bound: int, extra: bool) -> Iterator[DelayerResult]:
    """Yield the verdict of every check.

    Args:
        graph: all that was explored, with `JUDGES` looking on.
        bound: the stated bound, in passes.
        extra: also those that not every policy promises.

    Raises:
        Misstep: a run that went well during the exploration failed when it was run again.
    """
    yield _held_at_most(graph, bound)
    for check in JUDGES:
        yield _single(graph, check)
    yield _no_latched_state(graph)
    yield _bounded_delay(graph)
    if extra:
        yield _gap_keeps_wait(graph)
        yield _decode_gets_pass(graph)
    yield _no_crash(graph)


def _result(graph: Graph, check: str, verdict: str, detail: str, run: DelayerRun | None = None) -> DelayerResult:
    if verdict in (HOLDS, VACUOUS) and not graph.closed:
        verdict, detail = UNDECIDED, f"{detail}, {graph.limit}"
    return DelayerResult(check, len(graph.states[0]), verdict, EXHAUSTIVE, detail, run)


def _single(graph: Graph, check: str) -> DelayerResult:
    bad = graph.bad.get(check)
    if bad is not None:
        run = rerun(graph.decision, [*graph.path(bad.start), bad.rows])
        return _result(graph, check, VIOLATED, bad.message, run)
    if not graph.any("refused"):
        return _result(graph, check, VACUOUS, "nobody is ever refused")
    return _result(graph, check, HOLDS, f"in {graph.decisions:,} passes from {_count(graph)}")


def _no_crash(graph: Graph) -> DelayerResult:
    misstep = graph.misstep
    if misstep is None:
        return _result(graph, "no-crash", HOLDS, f"{graph.decisions:,} passes were answered")
    run = rerun(graph.decision, graph.path(misstep.start), failed=misstep.rows)
    return _result(graph, "no-crash", VIOLATED, misstep.message, run)


# --- Waits -----------------------------------------------------------------------------------------------------------


def _held_at_most(graph: Graph, bound: int) -> DelayerResult:
    """Look for a path of bound + 1 refusals, and for the longest there is."""
    check = "held-at-most"
    if not graph.any("refused"):
        return _result(graph, check, VACUOUS, "nobody is ever refused")
    best: tuple[int, int, list[dict[int, int]]] | None = None
    longest = 0
    for rank in range(len(graph.states[0])):
        edges = graph.of("refused", rank)
        steps: list[dict[int, int]] = [{}]
        alive = set(edges) | {following for targets in edges.values() for following in targets}
        while len(steps) <= bound + 1:
            nexts = {s: t for s in edges for t in edges[s] if t in alive}
            if not nexts:
                break
            steps.append(nexts)
            alive = set(nexts)
        longest = max(longest, len(steps) - 1)
        if len(steps) == bound + 2:
            start = min(steps[-1], key=lambda state: graph.depths[state])
            if best is None or graph.depths[start] < graph.depths[best[1]]:
                best = rank, start, steps
    if best is None:
        return _result(graph, check, HOLDS, f"at most {longest} in a row, the stated bound is {bound}")
    rank, state, steps = best
    rows = graph.path(state)
    for level in range(bound + 1, 0, -1):
        following = steps[level][state]
        rows.append(graph.of("refused", rank)[state][following])
        state = following
    return _result(
        graph, check, VIOLATED, f"rank {rank} is refused {bound + 1} times in a row", rerun(graph.decision, rows)
    )


def _bounded_delay(graph: Graph) -> DelayerResult:
    check = "bounded-delay"
    if not graph.any("refused"):
        return _result(graph, check, VACUOUS, "nobody is ever refused")
    lasso = _lasso(graph, "refused", ())
    if lasso is not None:
        rank, run = lasso
        return _result(graph, check, VIOLATED, f"rank {rank} can be refused for ever", run)
    longest = max(_longest(graph.of("refused", rank)) for rank in range(len(graph.states[0])))
    return _result(graph, check, HOLDS, f"after at most {longest} refusals, from each of {_count(graph)}")


def _gap_keeps_wait(graph: Graph) -> DelayerResult:
    check = "gap-keeps-wait"
    if not graph.any("refused"):
        return _result(graph, check, VACUOUS, "nobody is ever refused")
    lasso = _lasso(graph, "refused", ("gap",))
    if lasso is None:
        return _result(graph, check, HOLDS, "refusals come to an end, gaps or not")
    rank, run = lasso
    return _result(graph, check, VIOLATED, f"rank {rank} is refused whenever it can prefill, for ever", run)


def _decode_gets_pass(graph: Graph) -> DelayerResult:
    check = "decode-gets-pass"
    if not graph.decision.prefill_excludes_decode:
        return _result(graph, check, HOLDS, "decodes run beside prefills here")
    lasso = _lasso(graph, "instead", ())
    if lasso is None:
        return _result(graph, check, HOLDS, "prefill passes in a row come to an end")
    rank, run = lasso
    return _result(graph, check, VIOLATED, f"rank {rank}'s decodes can wait for prefills for ever", run)


def _longest(edges: Edges) -> int:
    """Return the longest path of a graph without cycles."""
    lengths: dict[int, int] = {}
    for root in edges:
        stack = [root]
        while stack:
            state = stack[-1]
            open_ = [following for following in edges.get(state, ()) if following not in lengths]
            if open_:
                stack += open_
            else:
                lengths[state] = max((lengths[t] + 1 for t in edges.get(state, ())), default=0)
                stack.pop()
    return max(lengths.values(), default=0)


def _lasso(graph: Graph, kind: str, also: tuple[str, ...]) -> tuple[int, DelayerRun] | None:
    """Return the rank and the smallest run that ends in a loop of a kind of passes, with others `also` allowed."""
    best: tuple[int, int, int, list[Rows]] | None = None
    for rank in range(len(graph.states[0])):
        edges: Edges = {}
        for name in (*also, kind):  # where both lead the same way, the pass of the kind itself is shown
            for state, targets in graph.of(name, rank).items():
                edges.setdefault(state, {}).update(targets)
        for state, targets in graph.of(kind, rank).items():
            for following, rows in targets.items():
                size = graph.depths[state] + 1
                if best is not None and size >= best[0]:
                    continue
                back = _way(edges, following, state)
                if back is not None and (best is None or size + len(back) < best[0]):
                    best = size + len(back), rank, state, [rows, *back]
    if best is None:
        return None
    _, rank, state, loop = best
    path = graph.path(state)
    return rank, rerun(graph.decision, [*path, *loop], loop=len(path))


def _way(edges: Edges, start: int, goal: int) -> list[Rows] | None:
    """Return the rows of a shortest path between two states."""
    if start == goal:
        return []
    came: dict[int, tuple[int, Rows]] = {}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for following, rows in edges.get(state, {}).items():
            if following not in came and following != start:
                came[following] = state, rows
                queue.append(following)
        if goal in came:
            way: list[Rows] = []
            while goal != start:
                goal, rows = came[goal]
                way.append(rows)
            return way[::-1]
    return None


# --- Latches ---------------------------------------------------------------------------------------------------------


def _no_latched_state(graph: Graph) -> DelayerResult:
    """Let every state come to rest, and compare with the initial one at rest."""
    check, decision = "no-latched-state", graph.decision
    if len(graph.states) == 1:
        return _result(graph, check, HOLDS, "it remembers nothing")
    try:
        home = _rest(decision, graph.states[0])
        alike: dict[State, bool] = dict.fromkeys(home[1], True)
        for number, state in enumerate(graph.states):
            tail, cycle = _rest(decision, state)
            if not any(alike.get(following) for following in cycle):
                apart = _apart(decision, cycle[0], home[1])
                if apart is not None:
                    return _latched(graph, number, tail, apart)
                alike.update(dict.fromkeys(cycle, True))
    except OverflowError:
        return DelayerResult(
            check, len(graph.states[0]), UNDECIDED, EXHAUSTIVE, f"no rest or no verdict within {RESTING} passes"
        )
    except Misstep as error:
        return DelayerResult(check, len(graph.states[0]), UNDECIDED, EXHAUSTIVE, f"the code failed: {error}")
    return _result(graph, check, HOLDS, f"each of {_count(graph)} comes to rest as the initial one does")


def _latched(graph: Graph, number: int, tail: int, apart: list[Rows]) -> DelayerResult:
    decision, ranks = graph.decision, len(graph.states[0])
    rows = [*graph.path(number), *[idle(ranks)] * max(tail, 1), *apart]
    run = rerun(decision, rows)
    resting = [idle(ranks)] * max(tail, 1)
    fresh = rerun(decision, [*resting, *apart]).turns[-1].allow
    rank = next(r for r in range(ranks) if fresh[r] != run.turns[-1].allow[r])
    words = ("may not", "may") if fresh[rank] else ("may", "may not")
    detail = f"after all work was gone rank {rank} {words[0]} prefill where, at the start, it {words[1]}"
    return _result(graph, "no-latched-state", VIOLATED, detail, run)


def _rest(decision: Decision, state: State) -> tuple[int, list[State]]:
    """Return how many idle passes lead to states that repeat, and those."""
    positions: dict[State, int] = {}
    rows = idle(len(state))
    while state not in positions:
        if len(positions) > RESTING:
            raise OverflowError
        positions[state] = len(positions)
        state = step(decision, state, rows).state
    return positions[state], list(positions)[positions[state] :]


def _apart(decision: Decision, state: State, others: list[State]) -> list[Rows] | None:
    """Return the shortest passes that a state answers differently from the first of others; None: alike to one."""
    shortest: list[Rows] | None = None
    every = passes(decision.rows(), len(state))
    for other in others:
        difference = _differ(decision, state, other, every)
        if difference is None:
            return None
        shortest = difference if shortest is None else shortest
    return shortest


def _differ(decision: Decision, one: State, other: State, every: list[Rows]) -> list[Rows] | None:
    came: dict[tuple[State, State], tuple[tuple[State, State], Rows] | None] = {(one, other): None}
    queue = deque([(one, other)])
    while queue:
        pair = queue.popleft()
        for rows in every:
            left, right = step(decision, pair[0], rows), step(decision, pair[1], rows)
            if left.allow != right.allow:
                way, at = [rows], came[pair]
                while at is not None:
                    way.append(at[1])
                    at = came[at[0]]
                return way[::-1]
            following = left.state, right.state
            if left.state != right.state and following not in came:
                if len(came) > RESTING:
                    raise OverflowError
                came[following] = pair, rows
                queue.append(following)
    return None


def _ranks(ranks: list[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def _count(graph: Graph) -> str:
    return f"{len(graph.states):,} state{'s' if len(graph.states) > 1 else ''}"
