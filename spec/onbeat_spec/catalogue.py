"""The catalogue: what an invariant is, and how its predicates are registered.

A predicate returns None where the invariant holds, else one sentence that says what is wrong. The same function
object is proved, tested, and evaluated on serving engines.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from onbeat_spec.config import Config
from onbeat_spec.records import Facts, GroupStep, State

Scope = Literal["state", "step", "runs", "history", "group"]
Verdict = str | None
StatePredicate = Callable[[Config, State], Verdict]
StepPredicate = Callable[[Facts], Verdict]
RunsPredicate = Callable[[Facts, Facts], Verdict]
"""Takes the step as it was, and the step that the same state would have seen without the throttle."""
GroupPredicate = Callable[[GroupStep], Verdict]
F = TypeVar("F", bound=Callable[..., object])


@dataclass(slots=True)
class Invariant:
    """One entry. `id` is stable: people put it in bug reports."""

    id: str
    statement: str
    cases: tuple[str, ...] = ()
    """Public reports behind it, by case id or vLLM PR."""
    by_proof: bool = True
    """The design asks for a proof, beside tests."""
    state: StatePredicate | None = None
    step: StepPredicate | None = None
    runs: RunsPredicate | None = None
    history: Callable[..., object] | None = None
    """The monitor's method that watches it over time."""
    group: GroupPredicate | None = None
    """Reads one lock step of all ranks."""
    scopes: list[Scope] = field(default_factory=list)


CATALOGUE: dict[str, Invariant] = {}
"""The invariants of one rank."""
GROUP_CATALOGUE: dict[str, Invariant] = {}
"""The invariants of a lock-step group."""


def declare(id: str, statement: str, *cases: str, by_proof: bool = True) -> None:
    """Add an entry to the catalogue."""
    assert id not in CATALOGUE, id
    CATALOGUE[id] = Invariant(id, statement, cases, by_proof)


def declare_group(id: str, statement: str, *cases: str) -> None:
    """Add an entry about a lock-step group."""
    assert id not in GROUP_CATALOGUE, id
    GROUP_CATALOGUE[id] = Invariant(id, statement, cases)


def predicate(id: str, scope: Scope) -> Callable[[F], F]:
    """Register a function as the predicate of an entry, in one scope."""

    def register(function: F) -> F:
        entry = GROUP_CATALOGUE[id] if scope == "group" else CATALOGUE[id]
        assert getattr(entry, scope) is None, (id, scope)
        setattr(entry, scope, function)
        entry.scopes.append(scope)
        return function

    return register
