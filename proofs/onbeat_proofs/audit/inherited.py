"""What a class only inherits: violations that its base shows too."""

from collections import Counter
from collections.abc import Callable
from functools import cached_property

from onbeat_proofs.audit.findings import Key, Smallest
from onbeat_proofs.audit.results import Finding
from onbeat_proofs.foreign.families import Factory
from onbeat_proofs.play.keeps_text import RULES
from onbeat_proofs.scenarios.operations import Scenario
from onbeat_spec.catalogue import CATALOGUE

ENOUGH = 40
"""Runs of one kind that are tried on the base before its other runs are taken to be inherited too."""


class Inherited:
    """Sets apart what a base violates as well.

    Args:
        base: makes a scheduler of the base; None: nothing is set apart.
        smallest: of the class that is audited.
        look: returns what the base violates, in which ways, as far as a quick look shows; called once at most.

    Attributes:
        kinds: how many violations of each kind were set apart.
    """

    def __init__(self, base: Factory | None, smallest: Smallest, look: Callable[[], frozenset[Key]]) -> None:
        self.base = base
        self.smallest = smallest
        self.look = look
        self.kinds: Counter[Key] = Counter()

    def in_the_same_run(self, key: Key, scenario: Scenario) -> bool:
        """Whether the base violates the same in the same run; after many such runs that is assumed."""
        if self.base is None or key[0] in RULES:
            return False
        if self.kinds[key] < ENOUGH and self.smallest.shows(scenario, key, self.base) is None:
            return False
        self.kinds[key] += 1
        return True

    def in_another_run(self, key: Key, finding: Finding) -> bool:
        """Whether a violation in a step that held nobody is of a kind that the base shows in other runs.

        A run in which the class holds otherwise than its base soon is another run. What then goes wrong in a step
        without a hold, and is not about holds, the base does as well, from a state that it gets to in its own way.
        """
        if self.base is None or key[0] in RULES or CATALOGUE[key[0]].about_holds:
            return False
        held = any(record["hold"] for record in finding.timeline if record["step"] == finding.step)
        if held or key not in self._of_the_base:
            return False
        self.kinds[key] += 1
        return True

    @cached_property
    def _of_the_base(self) -> frozenset[Key]:
        return self.look()
