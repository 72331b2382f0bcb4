"""Runs ordinary Python functions on symbolic ints and bools.

A function is run again and again, each time down another path: where a condition is tested that the path does not
settle, the run takes the side that its model (one example of the path) is on, and comes back for the other side
later. Depth first, so that one incremental Z3 solver follows along; a side that has no example is left out.

The solver is asked last. Before it come the reasons of earlier refusals (a few literals that cannot all hold) and the
attempt to repair the model by changing one variable. Without either, a path takes half as long again.
"""

from __future__ import annotations

import builtins
import linecache
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import inf
from time import perf_counter
from typing import Any, Generic, TypeVar

import z3

from onbeat_proofs import solver, terms
from onbeat_proofs.solver import EFFORT, Counters, Solver
from onbeat_proofs.terms import Bool, Int, Model, Space
from onbeat_spec.errors import NotSymbolic, Undecided

T = TypeVar("T")

Decisions = tuple[int, ...]
"""What a path answered, in order: a bool at each fork, the index of what was taken at each pick. Any process that
runs the same function understands it."""

FORGETFUL = "the function did something else when it was run again; it must not keep anything from one run to the next"
FOREIGN = "the prefix does not fit: it must come from the same function, with the same assumptions"


class _Pruned(BaseException):
    """The path cannot go on: an assumption does not hold. No `except Exception` of the code under test stops it."""


class _Cut(BaseException):
    """The path has as many decisions as were asked for."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Path(Generic[T]):
    """One feasible path through a function.

    Attributes:
        result: what the function returned on it.
        decisions: what it answered, for `explore(prefix=...)`.
    """

    result: T
    decisions: Decisions
    _space: Space
    _literals: tuple[int, ...]
    _model: Model
    _names: dict[str, Any]

    @property
    def conditions(self) -> tuple[Bool, ...]:
        """The conditions that together, within the variables' bounds, say which inputs take this path."""
        return tuple(self._space.bools[literal] for literal in self._literals)

    def value(self, thing: Any) -> Any:
        """Return what a symbolic int or bool is in `model()`; anything else as it is."""
        return self._space.value(thing, self._model)

    def model(self) -> dict[str, Any]:
        """Return one input of this path: an int or a bool for each variable made on it, and what each pick took."""
        return {name: self.value(thing) for name, thing in self._names.items()}


@dataclass(slots=True, eq=False)
class _Entry:
    """A point of the present path where something was settled."""

    subject: int | str
    """The condition's index, or the name of a pick."""
    literal: int | None
    """What holds from here on; None at a pick."""
    answer: int | None
    """The decision; None at an assumption."""
    others: int
    """How many answers have not been looked at."""
    depth: int
    """How many literals the path had before."""
    calls: int
    """How many nested explorations it had done."""
    model: Model
    """What the path took for an example then."""


class _Run:
    """The engine: the present path, and how to get to the next one."""

    def __init__(self, *, limit: float = inf, effort: int = EFFORT, counters: Counters | None = None) -> None:
        self.counters = Counters() if counters is None else counters
        self.cut = False
        """Whether the limit has ended any path."""
        self._space = Space(self._decide)
        self._solver = Solver(self._space, self.counters, effort)
        self._model = Model(self._space, {})
        self._stack: list[_Entry] = []
        self._path: list[int] = []
        """The literals of the stack: this path's condition."""
        self._forced: list[int] = []
        """What is left of the prefix, last decision first."""
        self._limit = limit
        self._pending: _Entry | None = None
        """The decision just turned round, until the run has come to it again. All before it is known."""
        self._reasons: dict[int, list[tuple[int, ...]]] = {}
        """For each literal, sets of others each of which rules it out."""
        self._made: dict[str, tuple[Int | Bool, tuple[float, float] | None]] = {}
        """Every variable of any path, with its bounds; None for a bool."""
        self._names: dict[str, Any] = {}
        """What this path has made and picked."""
        self._calls: list[Any] = []
        """Results of nested explorations on this path; a repeated run takes them from here."""
        self._call = 0

    # Forward.

    def _decide(self, literal: int) -> bool:
        """Settle a literal that the path does not know."""
        space = self._space
        if self._pending is not None:
            settled = self._turned(literal >> 1).literal
            assert settled is not None
            space.learn(settled)
            return settled == literal
        if self._forced:
            value: bool = self._force(bool)
            self._require(literal if value else literal ^ 1, value)
        else:
            self._count()
            value = space.holds(literal, self._model)
            self._enter(literal >> 1, literal if value else literal ^ 1, value, 1)
        return value

    def _choose(self, name: str, size: int) -> int:
        """Settle a pick that the path has not made yet."""
        answer: int | None = 0
        if self._pending is not None:
            answer = self._turned(name).answer
        elif self._forced:
            answer = self._force(int)
            self._enter(name, None, answer, 0)
        else:
            self._count()
            self._enter(name, None, 0, size - 1)
        assert answer is not None
        self._space.known[name] = answer
        return answer

    def _require(self, literal: int, answer: bool | None) -> None:
        """Let a literal hold on this path; prune the path if it cannot."""
        if not self._space.holds(literal, self._model):
            model = self._solver.example(self._path, literal, self._model)
            if model is None:
                raise _Pruned
            self._model = model
        self._enter(literal >> 1, literal, answer, 0)

    def _enter(self, subject: int | str, literal: int | None, answer: int | None, others: int) -> None:
        if self._pending is not None:
            raise NotSymbolic(FORGETFUL)
        depth, calls = len(self._path), len(self._calls)
        self._stack.append(_Entry(subject, literal, answer, others, depth, calls, self._model))
        if literal is not None:
            self._path.append(literal)
            self._space.learn(literal)

    def _count(self) -> None:
        if self._limit < inf and sum(entry.answer is not None for entry in self._stack) >= self._limit:
            raise _Cut
        self.counters.decisions += 1

    def _force(self, kind: type) -> Any:
        answer = self._forced.pop()
        if type(answer) is not kind:
            raise NotSymbolic(FOREIGN)
        return answer

    def _turned(self, subject: int | str) -> _Entry:
        """Return the pending entry, now that the run has come to it; it must be about this subject."""
        entry, self._pending = self._pending, None
        if entry is None or entry.subject != subject:
            raise NotSymbolic(FORGETFUL)
        return entry

    # Back.

    def _paths(self, function: Callable[[], T], base: int) -> Iterator[Path[T]]:
        """Run a function down each path that goes on from the first `base` entries of the stack."""
        names = self._names
        while True:
            self._names, self._call, result = names.copy(), 0, None
            try:
                result = function()
            except _Pruned:
                if self._pending is not None:
                    raise NotSymbolic(FORGETFUL) from None
                self.counters.pruned += 1
            except _Cut:
                self.cut = True
                yield self._ended(result)
            except Exception as error:
                if base == 0:
                    error.add_note(f"on the path of {self._ended(None).model()}")
                raise
            else:
                if self._pending is not None:
                    raise NotSymbolic(FORGETFUL)
                if self._forced:
                    raise NotSymbolic(FOREIGN)
                yield self._ended(result)
            if not self._backtrack(base):
                return

    def _ended(self, result: Any) -> Path[Any]:
        decisions = tuple([entry.answer for entry in self._stack if entry.answer is not None])
        return Path(result, decisions, self._space, tuple(self._path), self._model, self._names)

    def _backtrack(self, base: int) -> bool:
        """Turn the latest decision round that has another feasible answer; False: there is none."""
        while len(self._stack) > base:
            entry = self._pop()
            if not entry.others:
                continue
            assert entry.answer is not None
            if entry.literal is None:
                model: Model | None = entry.model
                entry.answer += 1
            else:
                entry.literal ^= 1
                entry.answer = not entry.answer
                model = self._other_side(entry.model, entry.literal)
                if model is None:
                    continue
                self._path.append(entry.literal)
            entry.others -= 1
            self._stack.append(entry)
            self._pending, self._model = entry, model  # type: ignore[assignment]
            return True
        return False

    def _pop(self) -> _Entry:
        """Take the latest entry back, and all that was known since."""
        entry = self._stack.pop()
        del self._path[entry.depth :]
        del self._calls[entry.calls :]
        self._solver.depth = min(self._solver.depth, entry.depth)
        if entry.literal is None:
            self._space.known.pop(entry.subject, None)
        else:
            self._space.forget(entry.literal)
        return entry

    def _other_side(self, model: Model, literal: int) -> Model | None:
        """Return a model of the path and a literal that is false in the path's own model; None: there is none."""
        known = self._space.known
        for others in self._reasons.get(literal, ()):
            for other in others:
                if not known.get(other):
                    break
            else:
                self.counters.recalled += 1
                return None
        found = self._repaired(model, literal)
        if found is not None:
            self.counters.repaired += 1
            return found
        found = self._solver.example(self._path, literal, model)
        if found is None:
            reason = self._solver.reason
            for each in reason:
                self._reasons.setdefault(each, []).append(tuple([other for other in reason if other != each]))
        return found

    def _repaired(self, model: Model, literal: int) -> Model | None:
        """Return the model with one variable changed so that a literal holds too, if that is enough."""
        space = self._space
        parts, exact, value = space.conditions[literal >> 1]
        now = sum([factor * model[v] for v, factor in parts])
        if exact and literal & 1:
            changes: tuple[int, ...] = (1, -1)
        else:
            changes = (value + (literal & 1) - now,)
        for (variable, factor), change in product(parts, changes):
            if variable in space.quotients or (exact and change % factor and not literal & 1):
                continue
            # Rounded so that the form changes by no less than asked for.
            step = change // factor if (change < 0) == (factor > 0) else -(-change // factor)
            low, high = space.domains[variable]
            if low <= model[variable] + step <= high:
                changed = model.changed({variable: model[variable] + step})
                for other in (literal, *reversed(self._path)):
                    if not space.holds(other, changed):
                        break
                else:
                    return changed
        return None

    def _nested(self, function: Callable[[], T], enough: Callable[[Path[T]], bool]) -> list[Path[T]]:
        """Explore a function from the present path on, until `enough`; leave everything as it was."""
        call, self._call = self._call, self._call + 1
        if call < len(self._calls):
            return self._calls[call]  # type: ignore[no-any-return]
        found: list[Path[T]] = []
        base, kept = len(self._stack), (self._model, self._names, self._calls, self._forced, self._limit)
        self._calls, self._forced, self._limit = [], [], inf
        for path in self._paths(function, base):
            self.counters.subpaths += 1
            found.append(path)
            if enough(path):
                break
        while len(self._stack) > base:
            self._pop()
        self._model, self._names, self._calls, self._forced, self._limit = kept
        self._call = call + 1
        self._calls.append(found)
        return found


class Context(_Run):
    """What a function under exploration is given. Its variables are known by name: the same on every path."""

    def assume(self, condition: Bool | builtins.bool) -> None:
        """End this path, without a result, unless the condition holds."""
        value = self._space.known.get(condition.literal) if isinstance(condition, Bool) else condition
        if value is None:
            self._require(condition.literal, None)  # type: ignore[union-attr]
        elif not value:
            raise _Pruned

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
        paths = self._nested(function, lambda path: path.result is not None)
        return paths[-1] if paths and paths[-1].result is not None else None

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
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = make(name), ends
        elif made[1] != ends:
            raise ValueError(f"variable {name!r} was made with bounds {made[1]} and now with {ends} (None: a bool)")
        self._names[name] = made[0]
        return made[0]


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
    for path in chain.from_iterable(_all_paths(context, function, assume, each) for each in prefixes):
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
    found = ("", 0, "")
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name not in (__file__, solver.__file__, terms.__file__):
            found = name, trace.tb_lineno, linecache.getline(name, trace.tb_lineno).strip()
        trace = trace.tb_next
    return found
