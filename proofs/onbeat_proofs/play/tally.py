"""How often each invariant was really put to the test.

An invariant holds trivially where its premise is never met: nobody was ever held, nobody ever evicted. So every check
counts, beside what it ran, the situations that could have broken each invariant (`Invariant.premise`); where there was
none the verdict is `vacuous`, never a pass.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any

from onbeat_proofs.play import keeps_text
from onbeat_spec.catalogue import CATALOGUE, Premise, TwoRuns
from onbeat_spec.errors import OnbeatError
from onbeat_spec.invariants.words import decodes
from onbeat_spec.records import Facts

EVENTS = tuple(field.name for field in fields(Premise) if field.name != "words")
Counts = Callable[..., int]


def by_event(premises: Mapping[str, Premise]) -> dict[str, list[tuple[str, Counts]]]:
    """Return for each event the invariants that it may put to the test, and how often it does."""
    return {
        event: [(id, counts) for id, premise in premises.items() if (counts := getattr(premise, event)) is not None]
        for event in EVENTS
    }


_LIVE = by_event({id: entry.premise for id, entry in CATALOGUE.items()})


def require_known(allowed: Collection[str], ids: Iterable[str]) -> Collection[str]:
    """Return what is allowed to be vacuous, if all of it is known.

    Args:
        allowed: ids of invariants, as they are asked for.
        ids: those that there are.

    Raises:
        OnbeatError: an id is unknown.
    """
    unknown = sorted(set(allowed) - {*ids})
    if unknown:
        raise OnbeatError(f"--allow-vacuous: there is no invariant {', '.join(unknown)}; `onbeat spec` lists them all")
    return allowed


def never_seen(invariant: str, alone: bool = False) -> str:
    """Say what an invariant would have needed to be put to the test, and did not get; `alone`: in one scenario."""
    entry = CATALOGUE.get(invariant)
    if entry is None:
        return f"never seen: {keeps_text.RULES[invariant].premise}"
    if entry.about_holds and not alone:
        return f"never seen together: an effect of the throttle, and: {entry.premise.words}"
    return f"never seen: {entry.premise.words}"


class Tally:
    """Counts, over any number of runs of one class.

    Attributes:
        met: how often each invariant's premise was met.
        steps: steps scheduled.
        pairs: states from which throttled and unthrottled steps were compared.
        effects: pairs that differed: the throttle did something.
    """

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()
        self.steps = 0
        self.pairs = 0
        self.effects = 0

    def __iadd__(self, other: "Tally") -> "Tally":
        self.met += other.met
        self.steps += other.steps
        self.pairs += other.pairs
        self.effects += other.effects
        return self

    def counted(self) -> dict[str, int]:
        """Return for each invariant how often it was put to the test."""
        return {id: 0 if entry.about_holds and self.effects == 0 else self.met[id] for id, entry in CATALOGUE.items()}

    def count(self, event: str, *evidence: Any) -> None:
        """An event happened: the name of a field of `Premise`, and what its functions take."""
        for id, counts in _LIVE[event]:
            times = counts(*evidence)
            if times:
                self.met[id] += times

    def step(self, facts: Facts) -> None:
        """A step was scheduled."""
        self.steps += 1
        self.count("step", facts)

    def runs(self, throttled: Facts, unthrottled: Facts) -> bool:
        """Two steps from one state were compared; return whether the throttle mattered."""
        self.pairs += 1
        matters = bool(throttled.step.held) or throttled.step.scheduled != unthrottled.step.scheduled
        self.effects += matters
        decode = any(True for _ in decodes(throttled.before, throttled.step.index))
        self.count("runs", TwoRuns(throttled, unthrottled, matters, decode))
        return matters
