"""The engine of `symbolic`: the present path through a function, and how to get to the next one.

The solver is asked last. Before it come the reasons of earlier refusals (a few literals that cannot all hold) and the
attempt to repair the model by changing one variable. Without either, a path takes half as long again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Any, Generic, TypeVar

from onbeat_proofs.symbolic.solver import EFFORT, Counters, Solver
from onbeat_proofs.symbolic.terms import Assignment, Bool, Int, Space
from onbeat_spec.errors import NotSymbolic

T = TypeVar("T")

Decisions = tuple[int, ...]
"""What a path answered, in order: a bool at each fork, the index of what was taken at each pick. Any process that
runs the same function understands it."""

FORGETFUL = "the function did something else when it was run again; it must not keep anything from one run to the next"
FOREIGN = "the prefix does not fit: it must come from the same function, with the same assumptions"


class Pruned(BaseException):
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
    _model: Assignment
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
    model: Assignment
    """What the path took for an example then."""


class Run:
    """The engine: the present path, and how to get to the next one."""

    def __init__(self, *, limit: float = inf, effort: int = EFFORT, counters: Counters | None = None) -> None:
        self.counters = Counters() if counters is None else counters
        self.cut = False
        """Whether the limit has ended any path."""
        self._space = Space(self._decide)
        self._solver = Solver(self._space, self.counters, effort)
        self._model = Assignment(self._space, {})
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
        self._variables: dict[str, tuple[Int | Bool, tuple[float, float] | None]] = {}
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
                raise Pruned
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
            except Pruned:
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
                model: Assignment | None = entry.model
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

    def _other_side(self, model: Assignment, literal: int) -> Assignment | None:
        """Return a model of the path and a literal that is false in the path's own model; None: there is none."""
        known = self._space.known
        for others in self._reasons.get(literal, ()):
            for other in others:
                if not known.get(other):
                    break
            else:
                self.counters.recalled += 1
                return None
        example = self._repaired(model, literal)
        if example is not None:
            self.counters.repaired += 1
            return example
        example = self._solver.example(self._path, literal, model)
        if example is None:
            reason = self._solver.reason
            for condition in reason:
                self._reasons.setdefault(condition, []).append(tuple([other for other in reason if other != condition]))
        return example

    def _repaired(self, model: Assignment, literal: int) -> Assignment | None:
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
        paths: list[Path[T]] = []
        base, kept = len(self._stack), (self._model, self._names, self._calls, self._forced, self._limit)
        self._calls, self._forced, self._limit = [], [], inf
        for path in self._paths(function, base):
            self.counters.subpaths += 1
            paths.append(path)
            if enough(path):
                break
        while len(self._stack) > base:
            self._pop()
        self._model, self._names, self._calls, self._forced, self._limit = kept
        self._call = call + 1
        self._calls.append(paths)
        return paths
