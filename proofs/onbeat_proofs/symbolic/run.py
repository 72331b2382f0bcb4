"""Runs ordinary Python functions on symbolic ints and bools.

A function is run again and again, each time down another path: where a condition is tested that the path does not
settle, the run takes the side that its model (one example of the path) is on, and comes back for the other side
later. Depth first, so that one incremental Z3 solver follows along; a side that has no example is left out. The
engine is `paths`; here is what is called from outside.
"""

from __future__ import annotations

import builtins
import linecache
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from time import perf_counter
from typing import Any, TypeVar

import z3

from onbeat_proofs.symbolic import paths, solver, terms
from onbeat_proofs.symbolic.paths import Decisions, Path, Pruned, Run
from onbeat_proofs.symbolic.solver import EFFORT, Counters, Solver
from onbeat_proofs.symbolic.terms import Bool, Int
from onbeat_spec.errors import Undecided

T = TypeVar("T")


class Context(Run):
    """What a function under exploration is given. Its variables are known by name: the same on every path."""

    def assume(self, condition: Bool | builtins.bool) -> None:
        """End this path, without a result, unless the condition holds."""
        value = self._space.known.get(condition.literal) if isinstance(condition, Bool) else condition
        if value is None:
            self._require(condition.literal, None)  # type: ignore[union-attr]
        elif not value:
            raise Pruned

    def pick(self, name: str, options: Sequence[T]) -> T:
        """Return each of the options, which are ordinary values, on paths of its own."""
        index = self._space.known.get(name)
        option = options[self._choose(name, len(options)) if index is None else index]
        self._names[name] = option
        return option

    def every(self, function: Callable[[], T]) -> list[Path[T]]:
        """Explore a function from the present path on, without forking this path; return all of its paths.

        It must not change anything: it is run once for each path.
        """
        return list(self._nested(function, lambda path: False))

    def first(self, function: Callable[[], T]) -> Path[T] | None:
        """Like `every`, but stop at the first path whose result is not None, and return that one (or None)."""
        nested = self._nested(function, lambda path: path.result is not None)
        return nested[-1] if nested and nested[-1].result is not None else None

    def bool(self, name: str) -> Any:
        """Return the boolean variable of this name, a `Bool`."""
        return self._variable(name, None, self._space.flag)

    def int(self, name: str, low: builtins.int | None = None, high: builtins.int | None = None) -> Any:
        """Return the integer variable of this name, an `Int`, from `low` to `high` (both inclusive, None: no end).

        Raises:
            ValueError: low > high, or the name was made before as something else.
        """
        ends = -inf if low is None else low, inf if high is None else high
        if ends[0] > ends[1]:
            raise ValueError(f"variable {name!r} has no value: low {low} > high {high}")
        return self._variable(name, ends, lambda name: self._space.variable(name, *ends))

    def _variable(self, name: str, ends: tuple[float, float] | None, make: Callable[[str], Int | Bool]) -> Any:
        variable = self._variables.get(name)
        if variable is None:
            variable = self._variables[name] = make(name), ends
        elif variable[1] != ends:
            raise ValueError(f"variable {name!r} was made with bounds {variable[1]} and now with {ends} (None: a bool)")
        self._names[name] = variable[0]
        return variable[0]


Assume = Callable[[Context], Iterable[Bool | bool]]


def _all_paths(
    context: Context, function: Callable[[Context], T], assume: Assume | None, prefix: Decisions = ()
) -> Iterator[Path[T]]:
    def whole() -> T:
        for condition in () if assume is None else assume(context):
            context.assume(condition)
        return function(context)

    context._names, context._forced = {}, list(reversed(prefix))
    return context._paths(whole, 0)


def explore(
    function: Callable[[Context], T],
    *,
    assume: Assume | None = None,
    prefix: Decisions | list[Decisions] = (),
    max_paths: int | None = None,
    progress: Callable[[Counters], None] | None = None,
    counters: Counters | None = None,
    effort: int = EFFORT,
) -> Iterator[Path[T]]:
    """Explore all feasible paths of a function, depth first; every input of its variables is on exactly one.

    Args:
        function: is given a `Context`; must do the same whenever it gets the same answers.
        assume: makes conditions that hold on every path, before the function runs.
        prefix: decisions that all paths begin with; see `frontier`. A list of prefixes is explored one after another,
            faster than in so many calls.
        max_paths: how many paths there may be.
        progress: called about twice a second, between two paths.
        counters: counts while the exploration goes on.
        effort: Z3 resource units per query.

    Raises:
        NotSymbolic: the function used a value in a way that cannot be run symbolically (`where` tells where), or did
            something else when it was run again, or the prefix is not its own.
        Undecided: Z3 answered `unknown`, or there are more than `max_paths` paths.
        NotReproduced: Z3's model does not satisfy the path, which is an error of this module.
    """
    context = Context(effort=effort, counters=counters)
    counters, started, due = context.counters, perf_counter(), 0.5
    prefixes = prefix if isinstance(prefix, list) else [prefix]
    for path in chain.from_iterable(_all_paths(context, function, assume, decisions) for decisions in prefixes):
        counters.paths += 1
        counters.seconds = perf_counter() - started
        if max_paths is not None and counters.paths > max_paths:
            raise Undecided(f"there are more than {max_paths} paths; allow more or narrow the variables")
        if progress is not None and counters.seconds >= due:
            due = counters.seconds + 0.5
            progress(counters)
        yield path
    counters.seconds = perf_counter() - started


def frontier(
    function: Callable[[Context], Any],
    at_least: int,
    *,
    assume: Assume | None = None,
    effort: int = EFFORT,
) -> list[Decisions]:
    """Return prefixes for `explore` that share out all paths of a function: each path begins with exactly one.

    Fewer than `at_least` only if there are fewer paths. Raises what `explore` raises.
    """
    depth, cut = 0, True
    prefixes: list[Decisions] = []
    while cut and len(prefixes) < at_least:
        depth += 1
        context = Context(limit=depth, effort=effort)
        prefixes = [path.decisions for path in _all_paths(context, function, assume)]
        cut = context.cut
    return prefixes


def smallest(path: Path[Any], names: Iterable[str] | None = None, *, queries: int = 100) -> dict[str, Any]:
    """Return an input of a path like `Path.model`, with a small sum of magnitudes.

    Args:
        path: from `explore`, `every` or `first`.
        names: integer variables to sum over; all of the path by default.
        queries: most solver calls to spend; the best found so far counts.
    """
    space, literals = path._space, path._literals
    solver = Solver(space, Counters(), EFFORT // 2)
    for literal in literals:
        solver.push(literal)
    wanted = [path._names[name] for name in (path._names if names is None else names)]
    variables = [thing.parts[0][0] for thing in wanted if isinstance(thing, Int)]
    sizes = []
    for variable in variables:
        constant, size = solver.variable(variable), z3.Int(f"size {variable}", ctx=solver.context)
        solver.solver.add(size >= constant, size >= -constant, *solver.facts(variable))
        sizes.append(size)
    model, low = path._model, 0
    while variables and queries > 0:
        high = sum(abs(model[v]) for v in variables) - 1
        if low > high:
            break
        middle = (low + high) // 2
        solver.solver.push()
        solver.solver.add(z3.Sum(sizes) <= middle)
        answer = solver.solver.check()
        if answer == z3.sat:
            model = solver.model(model, literals)
        elif answer == z3.unsat:
            low = middle + 1
        else:
            break
        solver.solver.pop()
        queries -= 1
    return {name: space.value(thing, model) for name, thing in path._names.items()}


def where(error: BaseException) -> tuple[str, int, str]:
    """Return file name, line number and source line of the code under test that raised an error.

    That is the innermost frame outside this package's symbolic values; ("", 0, "") if there is none.
    """
    place = ("", 0, "")
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name not in (__file__, paths.__file__, solver.__file__, terms.__file__):
            place = name, trace.tb_lineno, linecache.getline(name, trace.tb_lineno).strip()
        trace = trace.tb_next
    return place
