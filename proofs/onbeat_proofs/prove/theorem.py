"""What a theorem is, and how it is decided.

A theorem is a Python function that builds a situation from free numbers, runs the real code in it, and evaluates an
invariant. It is decided by exploring all paths through that function. Run on numbers from a model it is an ordinary
Python run: so every refutation, and every witness that the premises can be met at all, is run again without Z3.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from onbeat_proofs.prove.states import Built, Fixed, Numbers, Shape
from onbeat_proofs.symbolic import explore, smallest
from onbeat_proofs.symbolic.solver import Counters
from onbeat_spec.errors import NotReproduced, Undecided
from onbeat_spec.policy import Policy

FOR_ALL = "for all sizes"
About = Literal["decision", "turn", "operation", "step", "steps"]
"""What a theorem is about: one decision of the policy, one turn of a step's loop, one operation between two steps, a
whole step, or several. Only the last two are about what a user sees; an argument on paper leads there from the others.
"""


class PathVerdict(NamedTuple):
    """What one path, or one plain run, of a theorem showed."""

    verdict: str | None
    """What is wrong; None: the claim holds here."""
    met: bool
    """The premises of the claim were met, so that the path says something."""


Run = Callable[[Numbers, Policy], PathVerdict]


@dataclass(frozen=True, slots=True)
class Theorem:
    """A claim about every policy of the family.

    Attributes:
        id: invariant and, behind a slash, which part of it.
        statement: the claim, in one sentence.
        strength: `for all sizes`, or for all values up to so many requests.
        refuted_under: names of the built-in policies that it is known to be false for.
        shape: the shape of the state, where the claim is about whole steps from one state; a refutation can then be
            written as a scenario.
        about: what it is about.
    """

    id: str
    statement: str
    run: Run
    strength: str = FOR_ALL
    refuted_under: frozenset[str] = frozenset()
    shape: Shape | None = None
    about: About = "step"
    restrictions: tuple[str, ...] = ()
    """What is left out, beside what `strength` says."""

    @property
    def invariant(self) -> str:
        """The id of the invariant that this is about."""
        return self.id.split("/")[0]

    @property
    def for_all(self) -> bool:
        """Whether the claim is for all sizes and numbers of requests."""
        return self.strength == FOR_ALL

    def expected(self, policy: str) -> str:
        """The verdict that the ledger states for a built-in policy; `proved` for any other."""
        return "refuted" if policy in self.refuted_under else "proved"


@dataclass(slots=True)
class TheoremVerdict:
    """What became of a theorem under one policy. `unknown` counts as a failure, whatever was expected."""

    id: str
    policy: str
    strength: str
    expected: str
    verdict: str
    statement: str = ""
    seconds: float = 0.0
    paths: int = 0
    queries: int = 0
    message: str = ""
    """What is wrong, or why it is unknown."""
    model: dict[str, Any] = field(default_factory=dict)
    """Numbers of the refutation; of the witness, if it is proved."""
    loaded_from: str = ""
    """The policy as the caller named it."""
    scenario: str = ""
    """A refutation as a scenario file, where there is one."""
    table: str = ""
    """Who got what in that scenario's steps."""
    about: About = "step"
    restrictions: tuple[str, ...] = ()
    from_start_state: bool = False
    """It begins in a state of `states.build`, and so rests on what is assumed there."""

    @property
    def as_expected(self) -> bool:
        """Whether the ledger's statement holds."""
        return self.verdict == self.expected


def decide_all(theorems: Iterable[Theorem]) -> list[TheoremVerdict]:
    """Decide theorems under Onbeat's policy; `unknown` is a failure. Raises what `decide` raises."""
    return [decide(theorem, Policy()) for theorem in theorems]


def decide(theorem: Theorem, policy: Policy) -> TheoremVerdict:
    """Explore every path of a theorem, up to its first refutation.

    Raises:
        NotSymbolic: the policy uses a value in a way that cannot be run symbolically.
        NotReproduced: a model does not do in plain Python what it did symbolically.
    """
    verdict = TheoremVerdict(theorem.id, policy.name, theorem.strength, theorem.expected(policy.name), "proved")
    verdict.statement, verdict.about, verdict.restrictions = theorem.statement, theorem.about, theorem.restrictions
    counters, witnessed, built = Counters(), False, Built.count
    try:
        for path in explore(lambda numbers: theorem.run(numbers, policy), counters=counters):
            if path.result.verdict is not None:
                verdict.verdict = "refuted"
                verdict.model = smallest(path)
                verdict.message = rerun(theorem, policy, verdict.model)
                break
            if path.result.met and not witnessed:
                witnessed, verdict.model = True, path.model()
                rerun(theorem, policy, verdict.model, witness=True)
        else:
            if not witnessed:
                verdict.verdict, verdict.message = "unknown", "no path meets the premises: the claim says nothing"
    except Undecided as error:
        verdict.verdict, verdict.message = "unknown", str(error)
    verdict.seconds, verdict.paths, verdict.queries = counters.seconds, counters.paths, counters.queries
    verdict.from_start_state = Built.count > built
    return verdict


def rerun(theorem: Theorem, policy: Policy, model: dict[str, Any], *, witness: bool = False) -> str:
    """Run a theorem in plain Python on the numbers of a model; return what is wrong.

    Raises:
        NotReproduced: a witness does not meet the premises, or a refutation does not happen.
    """
    verdict, met = theorem.run(Fixed(model), policy)
    if witness and (verdict is not None or not met):
        raise NotReproduced(f"{theorem.id}: the witness {model} does not meet the premises in plain Python ({verdict})")
    if not witness and verdict is None:
        raise NotReproduced(f"{theorem.id}: the refutation {model} does not happen in plain Python")
    return verdict or ""
