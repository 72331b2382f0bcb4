"""The Z3 solver behind a symbolic run, and what a run counts."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_int64
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Any

import z3
from z3 import z3core

from onbeat_proofs.symbolic import terms
from onbeat_proofs.symbolic.terms import Assignment, Space
from onbeat_spec.errors import NotReproduced, Undecided

EFFORT = 2_000_000
"""Z3 resource units per query: some 2 seconds, but the same on every machine. After that a new solver tries ten times
as hard; after that the query counts as undecided."""


@dataclass(slots=True)
class Counters:
    """What an exploration has done so far."""

    paths: int = 0
    subpaths: int = 0
    """Paths of nested explorations."""
    pruned: int = 0
    """Runs that an assumption ended."""
    decisions: int = 0
    """Conditions and picks at which a path could have forked."""
    recalled: int = 0
    """Other sides refused for a reason known from before."""
    repaired: int = 0
    """Other sides whose model came from changing one variable."""
    queries: int = 0
    """Calls of the solver."""
    afresh: int = 0
    """Of these, asked again of a new solver."""
    seconds: float = 0.0


class Solver:
    """One incremental Z3 solver whose frames follow a path, one literal a frame. Calls Z3's C functions, since
    Z3's Python classes take several times as long as its answers."""

    def __init__(self, space: Space, counters: Counters, effort: int) -> None:
        self.space = space
        self.counters = counters
        self.context = z3.Context()
        self.ref = self.context.ref()
        self.solver, self.reasoner = (z3.SolverFor("QF_LIA", ctx=self.context) for _ in range(2))
        self.effort = effort
        self.solver.set("rlimit", effort)
        self.reasoner.set("rlimit", effort)
        self.depth = 0
        """Frames that still say what the path says."""
        self.reason: tuple[int, ...] = ()
        """After a refusal: literals that cannot all hold; empty if not known."""
        self._frames: list[tuple[int, ...]] = []
        """Variables whose facts each frame stated."""
        self._stated: set[int] = set()
        self._variables: dict[int, Any] = {}
        self._free: dict[int, Any] = {}
        """Declarations of the variables that are no quotients, to read models."""
        self._facts: dict[int, list[Any]] = {}
        self._literals: dict[int, tuple[Any, list[int]]] = {}
        self._tracked: dict[int, tuple[Any, Any]] = {}
        self._by_id: dict[int, int] = {}
        self._cell = c_int64()

    def example(self, path: Sequence[int], literal: int, model: Assignment) -> Assignment | None:
        """Return a model of a path and one literal more, or None if there is none; take the rest from `model`.

        Raises:
            Undecided: Z3 answered `unknown`.
        """
        surplus = len(self._frames) - min(self.depth, len(path))
        if surplus > 0:
            z3core.Z3_solver_pop(self.ref, self.solver.solver, surplus)
            self._stated.difference_update(*self._frames[-surplus:])
            del self._frames[-surplus:]
        for other in path[len(self._frames) :]:
            self.push(other)
        self.push(literal)
        self.depth = len(self._frames)
        self.counters.queries += 1
        solver = self.solver
        answer = z3core.Z3_solver_check(self.ref, solver.solver)
        if answer == z3.Z3_L_UNDEF:
            # What it has learnt on other paths can lead the incremental solver astray; a new one starts afresh.
            solver = self._afresh([*path, literal])
            answer = z3core.Z3_solver_check(self.ref, solver.solver)
        if answer == z3.Z3_L_FALSE:
            self.reason = self._reason([*path, literal])
            return None
        if answer != z3.Z3_L_TRUE:
            raise Undecided(
                f"Z3 answered unknown ({solver.reason_unknown()}) after {len(path)} conditions, on "
                f"{self.space.bools[literal]!r}; raise the effort or narrow the variables"
            )
        return self.model(model, (*path, literal), solver)

    def _afresh(self, literals: Sequence[int]) -> z3.Solver:
        """Return a new solver that states these literals, and may try ten times as hard."""
        solver = z3.SolverFor("QF_LIA", ctx=self.context)
        solver.set("rlimit", 10 * self.effort)
        stated = {v for literal in literals for v in self.literal(literal)[1]}
        solver.add(*[self.literal(literal)[0] for literal in literals], *[f for v in stated for f in self._facts[v]])
        self.counters.afresh += 1
        return solver

    def push(self, literal: int) -> None:
        """Add a frame that states a literal, and what its variables mean where no frame below does."""
        solver = self.solver.solver
        formula, variables = self.literal(literal)
        fresh = tuple([v for v in variables if v not in self._stated])
        z3core.Z3_solver_push(self.ref, solver)
        for fact in chain.from_iterable([self._facts[v] for v in fresh]):
            z3core.Z3_solver_assert(self.ref, solver, fact.as_ast())
        z3core.Z3_solver_assert(self.ref, solver, formula.as_ast())
        self._stated.update(fresh)
        self._frames.append(fresh)

    def model(self, rest: Assignment, literals: Sequence[int], solver: z3.Solver | None = None) -> Assignment:
        """Return Z3's present model, which must be one of these literals; take the rest from another.

        Raises:
            NotReproduced: a literal does not hold in it.
        """
        values = {}
        model = (solver or self.solver).model()
        for variable, declaration in self._free.items():
            value = z3core.Z3_model_get_const_interp(self.ref, model.model, declaration.ast)
            if value:
                small = z3core.Z3_get_numeral_int64(self.ref, value, byref(self._cell))
                values[variable] = self._cell.value if small else int(z3core.Z3_get_numeral_string(self.ref, value))
        assignment = rest.changed(values)
        for literal in literals:
            if not self.space.holds(literal, assignment):
                raise NotReproduced(f"Z3's model breaks {self.space.bools[literal]!r}: {values}; please report this")
        return assignment

    def _reason(self, literals: Sequence[int]) -> tuple[int, ...]:
        """Return some of these contradicting literals that contradict each other already."""
        solver = self.reasoner
        solver.push()
        for literal in literals:
            if literal not in self._tracked:
                mark = z3.Bool(f"literal {literal}", ctx=self.context)
                self._tracked[literal] = mark, z3.Implies(mark, self.literal(literal)[0])
                self._by_id[mark.get_id()] = literal
            z3core.Z3_solver_assert(self.ref, solver.solver, self._tracked[literal][1].as_ast())
        for variable in {v for literal in literals for v in self.literal(literal)[1]}:
            for fact in self._facts[variable]:
                z3core.Z3_solver_assert(self.ref, solver.solver, fact.as_ast())
        contradicts = solver.check(*[self._tracked[literal][0] for literal in literals]) == z3.unsat
        reason = tuple(self._by_id[mark.get_id()] for mark in solver.unsat_core()) if contradicts else ()
        solver.pop()
        return reason

    # Translation.

    def literal(self, literal: int) -> tuple[Any, list[int]]:
        """Return a literal as a Z3 formula, and all variables that it speaks of."""
        translated = self._literals.get(literal)
        if translated is None:
            parts, exact, value = self.space.conditions[literal >> 1]
            form = self._form(parts)
            if exact:
                formula = form != value if literal & 1 else form == value
            else:
                formula = form >= value + 1 if literal & 1 else form <= value
            variables = [v for v, _ in parts]
            for variable in variables:  # grows: quotients speak of what they divide
                inside = self.space.quotients.get(variable, ((), 0, 0))[0]
                variables += [v for v, _ in inside if v not in variables]
                self.facts(variable)
            translated = self._literals[literal] = formula, variables
        return translated

    def _form(self, parts: terms.Parts) -> Any:
        return z3.Sum([self.variable(v) if factor == 1 else factor * self.variable(v) for v, factor in parts])

    def variable(self, variable: int) -> Any:
        """Return the Z3 constant of a variable."""
        constant = self._variables.get(variable)
        if constant is None:
            constant = self._variables[variable] = z3.Int(f"variable {variable}", ctx=self.context)
            if variable not in self.space.quotients:
                self._free[variable] = constant.decl()
        return constant

    def facts(self, variable: int) -> list[Any]:
        """Return Z3 formulas of what is true of a variable on every path."""
        formulas = self._facts.get(variable)
        if formulas is None:
            constant = self.variable(variable)
            low, high = self.space.domains[variable]
            if variable in self.space.quotients:
                parts, const, divisor = self.space.quotients[variable]
                constant, low, high = self._form((*parts, (variable, -divisor))), -const, divisor - 1 - const
            formulas = [constant >= int(low)] if low > -inf else []
            formulas += [constant <= int(high)] if high < inf else []
            self._facts[variable] = formulas
        return formulas
