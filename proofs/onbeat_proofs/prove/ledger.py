"""The ledger: every theorem, and what is expected of it under each built-in policy.

A refutation that is expected is a result, like a proof: both are checked, and either one missing is an error.
"""

from onbeat_proofs.prove.sweep import WITNESSES
from onbeat_proofs.prove.theorem import Theorem
from onbeat_proofs.prove.theorems import causes, hold, states, turns

THEOREMS: tuple[Theorem, ...] = (*hold.THEOREMS, *turns.THEOREMS, *states.THEOREMS, *causes.THEOREMS)

SWEPT_AND_REFUTED: dict[str, frozenset[str]] = {
    "onbeat": frozenset(),
    "pr44558": frozenset(
        {"flag-means-backlog", "no-decode-no-hold", "no-empty-step", "one-token-passes", "resume-bypasses"}
    ),
    "local-work": frozenset(
        {"flag-means-backlog", "no-decode-no-hold", "no-empty-step", "one-token-passes", "resume-bypasses"}
    ),
}
"""Invariants that the real step violates under each policy, for some state of some shape."""


def expected_of_sweep(invariant: str, policy: str) -> str:
    """Return what is expected of an invariant over all shapes; `proved` for a policy that is not built in."""
    return "refuted" if invariant in SWEPT_AND_REFUTED.get(policy, ()) else "proved"


def proofs_of(invariant: str) -> dict[str, list[str]]:
    """Return the theorems about an invariant, by strength: `for all` and `symbolic`."""
    proofs: dict[str, list[str]] = {"for all": [], "symbolic": []}
    for theorem in THEOREMS:
        if theorem.invariant == invariant:
            proofs["for all" if theorem.for_all else "symbolic"].append(theorem.id)
    if invariant in WITNESSES:
        proofs["symbolic"].append(f"{invariant}/step")
    return proofs
