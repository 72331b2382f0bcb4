"""What the checks of an audit come upon: for each way in which an invariant is violated, the shortest run."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from onbeat_proofs.audit.findings import Key, kind_of
from onbeat_proofs.audit.inherited import Inherited
from onbeat_proofs.foreign.watchdog import Hang
from onbeat_proofs.scenarios.operations import Scenario
from onbeat_spec.records import Violation

KINDS = 6
"""Ways in which one invariant is violated that are shown at most."""
Found = Callable[[Key, Violation, Scenario, str], object]
"""Called with a kind, and with what shows it: a violation, its run, and the check that came upon it."""


class Violations:
    """Collects violations.

    Args:
        inherited: sets apart what a base violates as well.
        found: told each run that is kept.
        policy: that the class is given, by its name in configurations; None: it decides by itself.

    Attributes:
        by_kind: for each invariant and each way in which it is violated, the shortest run.
        counts: for each invariant, the runs that violated it.
        first_s: wall seconds until the first violation; None: there was none.
        hangs: calls that did not return.
    """

    def __init__(self, inherited: Inherited, found: Found, policy: str | None) -> None:
        self.inherited = inherited
        self.found = found
        self.policy = policy
        self.by_kind: dict[Key, tuple[Violation, Scenario, str]] = {}
        self.counts: Counter[str] = Counter()
        self.first_s: float | None = None
        self.hangs = 0
        self._began = perf_counter()

    def of(self, check: str) -> Callable[[Violation, Scenario], None]:
        """Return what takes the violations that a check reports."""

        def take(violation: Violation, scenario: Scenario) -> None:
            id = violation.invariant
            self.counts[id] += 1
            self.hangs += violation.message.startswith(Hang.__name__)
            if self.first_s is None:
                self.first_s = perf_counter() - self._began
            key = id, kind_of(violation.message, scenario)
            if key not in self.by_kind and sum(invariant == id for invariant, _ in self.by_kind) == KINDS:
                return
            if key in self.by_kind and len(scenario.steps) >= len(self.by_kind[key][1].steps):
                return
            if self.inherited.sets_apart(key, scenario):
                return
            if self.policy is not None:
                scenario = replace(scenario, config=replace(scenario.config, policy=self.policy))
            self.by_kind[key] = violation, scenario, check
            self.found(key, *self.by_kind[key])

        return take

    def violates(self, id: str) -> bool:
        """Whether a run is known that violates an invariant, and is not set apart."""
        return any(invariant == id for invariant, _ in self.by_kind)
