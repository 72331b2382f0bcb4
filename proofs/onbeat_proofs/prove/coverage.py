"""What checks which invariant, at which strength."""

from dataclasses import dataclass

from onbeat_proofs.play.suite import suite_path
from onbeat_proofs.prove.ledger import proofs_of
from onbeat_proofs.scenarios.files import load_path
from onbeat_proofs.scenarios.operations import Scenario
from onbeat_spec.catalogue import CATALOGUE, Invariant

KINDS = ("for all", "symbolic", "exhaustive", "random", "scenario", "monitor")

SEARCH = "onbeat audit: every sequence of operations to a stated depth"
RANDOM = "onbeat audit: long random histories"
NEVER_MET: dict[str, frozenset[str]] = {"search": frozenset(), "random": frozenset()}
"""Invariants whose premises a quick audit of the reference never meets, by check: there it tells nothing about them.

Both checks evaluate every predicate there is, so this is all that a claim hangs on.
"""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The checks of one invariant, by kind; each a line that says what and how strong."""

    invariant: Invariant
    checks: dict[str, list[str]]

    @property
    def kinds(self) -> int:
        """Kinds of check that it has."""
        return sum(bool(self.checks[kind]) for kind in KINDS)

    @property
    def proved(self) -> bool:
        """Whether a proof is among them."""
        return bool(self.checks["for all"] or self.checks["symbolic"])

    @property
    def enough(self) -> bool:
        """At least two kinds of check, one of them a proof where the design asks for one."""
        return self.kinds >= 2 and (self.proved or not self.invariant.by_proof)


def suite() -> list[Scenario]:
    """Return the conformance suite."""
    return load_path(suite_path())


def matrix() -> list[Coverage]:
    """Return the checks of every invariant, in the catalogue's order."""
    scenarios = suite()
    return [_coverage(entry, scenarios) for entry in CATALOGUE.values()]


def _meets(check: str, entry: Invariant) -> bool:
    """Whether a check of the audit puts an invariant to the test: its premise is met."""
    return bool(entry.scopes) and entry.id not in NEVER_MET[check]


def _coverage(entry: Invariant, scenarios: list[Scenario]) -> Coverage:
    proofs = proofs_of(entry.id)
    watched = [scope for scope in entry.scopes if scope != "runs"]
    return Coverage(
        entry,
        {
            "for all": [f"{id}: for all sizes" for id in proofs["for all"]],
            "symbolic": [f"{id}: for all values of bounded shapes" for id in proofs["symbolic"]],
            "exhaustive": [SEARCH] if _meets("search", entry) else [],
            "random": [RANDOM] if _meets("random", entry) else [],
            "scenario": [f"{scenario.name}" for scenario in scenarios if entry.id in scenario.invariants],
            "monitor": [f"live, and in every test: over one {', one '.join(watched)}"] if watched else [],
        },
    )
