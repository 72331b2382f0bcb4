"""The ledger: every theorem, and what is expected of it under each built-in policy.

A refutation that is expected is a result, like a proof: both are checked, and either one missing is an error.
"""

from collections.abc import Iterable
from dataclasses import replace

from onbeat_proofs.prove.sweep import RESTRICTIONS, WITNESSES
from onbeat_proofs.prove.theorem import About, Theorem
from onbeat_proofs.prove.theorems import causes, hold, states, turns


def _about(theorems: Iterable[Theorem], about: About, restrictions: tuple[str, ...] = ()) -> Iterable[Theorem]:
    """Say what the theorems of a module are about, and what they leave out, unless they say so themselves."""
    for theorem in theorems:
        own = theorem.about if theorem.about != "step" else about
        yield replace(theorem, about=own, restrictions=theorem.restrictions or restrictions)


THEOREMS: tuple[Theorem, ...] = (
    *_about(hold.THEOREMS, "decision"),
    *_about(turns.THEOREMS, "turn", turns.RESTRICTIONS),
    *_about(states.THEOREMS, "operation", states.RESTRICTIONS),
    *_about(causes.THEOREMS, "step", RESTRICTIONS),
)
START = frozenset({*(theorem.id for theorem in states.THEOREMS), "slots/turn", "never-fits-refused/submit"})
"""Theorems that every start state rests on: what `states.build` assumes, kept by every operation and every admission.

They are one induction: where one of them is not proved, nothing that begins in a start state is.
"""

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
