"""What a class only inherits: runs that violate an invariant, and on the class that it derives from violate it too."""

from collections import Counter
from time import process_time

from onbeat_proofs.audit.findings import Key, Smallest
from onbeat_proofs.foreign.families import Factory
from onbeat_proofs.play.keeps_text import RULES
from onbeat_proofs.scenarios.operations import Scenario

ENOUGH, EVERY = 40, 16
"""Runs of one kind that are all tried on the base; and of those after them, one in how many."""


class Inherited:
    """Sets apart the runs that violate the same invariant on the base.

    Args:
        base: makes a scheduler of the base; None: nothing is set apart.
        smallest: of the class that is audited.
        seconds: CPU time for runs on the base, all together.

    Attributes:
        same: for each invariant, runs that violate it on the base too.
        untried: for each invariant, runs that were not tried on the base.
    """

    def __init__(self, base: Factory | None, smallest: Smallest, seconds: float) -> None:
        self.base = base
        self.smallest = smallest
        self.seconds = seconds
        self.same: Counter[str] = Counter()
        self.untried: Counter[str] = Counter()
        self._seen: Counter[Key] = Counter()

    def sets_apart(self, key: Key, scenario: Scenario) -> bool:
        """Whether a run is no finding: the base violates the invariant in it as well, or it was not tried.

        A policy text is that of the class, so a violation of it is the class's own.
        """
        invariant, _ = key
        if self.base is None or invariant in RULES:
            return False
        self._seen[key] += 1
        if (self._seen[key] > ENOUGH and self._seen[key] % EVERY) or self.seconds <= 0:
            self.untried[invariant] += 1
            return True
        began = process_time()
        same = self.smallest.violates(scenario, invariant, self.base)
        self.seconds -= process_time() - began
        self.same[invariant] += same
        return same
