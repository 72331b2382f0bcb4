"""What `onbeat protocol` shows: theorems for groups of any size, small groups completely, and planted faults.

The theorems are those about the protocol and those about load balancing.
"""

import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter

from onbeat_proofs.protocol.explore import GroupExplored, explore
from onbeat_proofs.protocol.faults import FAULTS, Fault
from onbeat_proofs.protocol.state import GroupScope
from onbeat_proofs.protocol.theorems import balance, balance_faults, group
from onbeat_proofs.protocol.theorems.balance_faults import BalanceFault
from onbeat_proofs.prove.theorem import TheoremVerdict, decide_all
from onbeat_spec.protocol import GroupSettings

INTERVALS = (1, 2, 3, 4)
BASE = tuple(GroupScope(settings=(GroupSettings(2, sync),), controls=2) for sync in INTERVALS)
"""The same world with every interval of exchanges: what is seen at rest must be the same too."""
QUICK = (
    *BASE,
    *(GroupScope(settings=(GroupSettings(2, sync),), controls=2, prompt=True) for sync in (1, 4)),
    GroupScope(requests=2, controls=3, holds=True),
    GroupScope(requests=2, controls=3, removals=1, deaths=1),
    GroupScope(requests=2, deaths=1, restarts=1, controls=2, holds=True),
    GroupScope(requests=2, controls=2, aborts=1, orphans=True),
    GroupScope(ranks=2, coupled=False),
)
DEEP = (
    GroupScope(controls=3),
    *(GroupScope(ranks=3, controls=2, settings=(GroupSettings(2, sync),)) for sync in INTERVALS),
    GroupScope(ranks=3, requests=2, controls=2, prompt=True),
    GroupScope(ranks=3, requests=2, controls=3, removals=1),
    GroupScope(ranks=3, requests=2, controls=2, deaths=1),
    GroupScope(ranks=3, requests=2, controls=2, removals=1, deaths=1),
    GroupScope(ranks=3, requests=2, controls=3, holds=True),
    GroupScope(ranks=3, controls=3),
)
MOST = 8_000_000
"""States after which an exploration gives up: they take about 8 GiB."""


@dataclass
class GroupProof:
    """What was shown."""

    theorems: list[TheoremVerdict] = field(default_factory=list)
    explored: list[GroupExplored] = field(default_factory=list)
    planted: list[tuple[Fault, GroupExplored]] = field(default_factory=list)
    unbalanced: list[tuple[BalanceFault, TheoremVerdict]] = field(default_factory=list)
    """Faults of load balancing, and what became of the theorem that has to refute each."""
    seconds: float = 0.0
    mebibytes: int = 0
    """Most memory that this process has had."""

    def wrong(self) -> Iterator[tuple[str, str]]:
        """Yield everything that is not as it should be: `violated` or `undecided`, and what."""
        for verdict in self.theorems:
            if verdict.verdict != "proved":
                kind = "undecided" if verdict.verdict == "unknown" else "violated"
                yield kind, f"{verdict.id}: {verdict.verdict}: {verdict.message}"
        for explored in self.explored:
            if explored.invariant:
                kind = "undecided" if explored.invariant == "undecided" else "violated"
                yield kind, f"{explored.scope}: {explored.invariant}: {explored.message}"
        base = [explored for explored in self.explored if explored.scope in BASE and not explored.invariant]
        if any(explored.at_rest != base[0].at_rest for explored in base):
            yield "violated", "sync-interval-free: what the ranks come to rest with depends on sync"
        for fault, explored in self.planted:
            if explored.invariant != fault.finds:
                invariant = explored.invariant or "nothing"
                yield "violated", f"{fault.case or fault.says}: {invariant} found, not {fault.finds}"
        for wrong, verdict in self.unbalanced:
            if verdict.verdict != "refuted":
                kind = "undecided" if verdict.verdict == "unknown" else "violated"
                yield kind, f"{wrong.case}: {verdict.id} is {verdict.verdict} under it, not refuted"

    @property
    def exit_code(self) -> int:
        """0 all holds and every fault was found, 1 not, 2 something could not be decided."""
        kinds = {kind for kind, _ in self.wrong()}
        return 1 if "violated" in kinds else 2 if kinds else 0


def prove(deep: bool = False, progress: Callable[[str, int, int], None] | None = None) -> GroupProof:
    """Decide the theorems, visit every state of every scope, and look for every planted fault."""
    began, proof = perf_counter(), GroupProof()
    scopes = QUICK + (DEEP if deep else ())
    proof.theorems = decide_all([*group.THEOREMS, *balance.THEOREMS])
    for done, scope in enumerate(scopes):
        if progress is not None:
            progress(str(scope), done, len(scopes))
        proof.explored.append(explore(scope, most=MOST))
    proof.planted = [(fault, explore(fault.scope, fault.text)) for fault in FAULTS]
    proof.unbalanced = balance_faults.verdicts()
    proof.seconds = perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    proof.mebibytes = used >> (20 if sys.platform == "darwin" else 10)
    return proof
