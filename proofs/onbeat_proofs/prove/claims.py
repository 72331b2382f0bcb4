"""How strong a claim is, in words: every table and page that says it takes the words from here.

A claim is made by theorems. Each says what it is about (one decision, one turn of a loop, one operation, a whole step,
several), whether for all sizes or for all values of bounded shapes, and what it leaves out.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from onbeat_proofs.prove.coverage import Coverage
from onbeat_proofs.prove.ledger import SWEPT_AND_REFUTED, THEOREMS
from onbeat_proofs.prove.sweep import MOST_REQUESTS, RESTRICTIONS, WITNESSES
from onbeat_proofs.prove.theorem import FOR_ALL, About

WORDS: dict[About, str] = {
    "decision": "one decision",
    "turn": "one turn of a loop",
    "operation": "one operation",
    "step": "whole steps",
    "steps": "several steps",
}


class Part(Protocol):
    """What the words are made from: a theorem, or what became of one."""

    @property
    def strength(self) -> str: ...
    @property
    def about(self) -> About: ...


def strength_of(part: Part) -> str:
    """Return what a theorem is about and how strong it is, as in `one turn of a loop, all sizes`."""
    return f"{WORDS[part.about]}, {'all sizes' if part.strength == FOR_ALL else 'all values'}"


def proved_for(parts: Iterable[Part]) -> str:
    """Return what all theorems about an invariant show together, short enough for a table: `steps, parts*`.

    *steps*: whole steps. *parts*: decisions, turns of a loop, operations. With a star: for all sizes, else all values.
    """
    words = set()
    for part in parts:
        about = "steps" if part.about in ("step", "steps") else "parts"
        words.add(about + ("*" if part.strength == FOR_ALL else ""))
    return ", ".join(sorted(words - {"parts"} if "parts*" in words else words, reverse=True)) or "(tested)"


class Claim(NamedTuple):
    """One claim; the fields are those of the theorem, or of the sweeps that are one."""

    id: str
    strength: str
    about: About
    refuted_under: frozenset[str]
    restrictions: tuple[str, ...]


def claims_of(invariant: str) -> Iterator[Claim]:
    """Yield what is claimed of an invariant: by its theorems, then by the sweeps."""
    for each in THEOREMS:
        if each.invariant == invariant:
            yield Claim(each.id, each.strength, each.about, each.refuted_under, each.restrictions)
    if invariant in WITNESSES:
        under = frozenset(policy for policy, refuted in SWEPT_AND_REFUTED.items() if invariant in refuted)
        strength = f"for all values, up to {MOST_REQUESTS} requests"
        yield Claim(f"{invariant}/step", strength, "step", under, RESTRICTIONS)


def markdown(rows: Iterable[Coverage]) -> Iterator[str]:
    """Yield the page of all claims, line by line."""
    left_out: dict[tuple[str, ...], int] = {}
    yield "| invariant | theorem | proved for | except under | leaves out | beside proofs, noticed by |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        noticed = ", ".join(kind for kind in ("exhaustive", "random", "scenario", "monitor") if row.checks[kind])
        claims = list(claims_of(row.invariant.id))
        for claim in claims:
            note = left_out.setdefault(claim.restrictions, len(left_out) + 1) if claim.restrictions else ""
            under = ", ".join(sorted(claim.refuted_under))
            part = claim.id.partition("/")[2]
            strength = strength_of(claim) + claim.strength.removeprefix(FOR_ALL).removeprefix("for all values")
            yield f"| {row.invariant.id} | {part} | {strength} | {under} | {note} | {noticed} |"
        if not claims:
            yield f"| {row.invariant.id} | - | not proved | | | {noticed} |"
    yield ""
    for restrictions, number in left_out.items():
        yield f"{number}. {'; '.join(restrictions)}."
