"""The real `schedule()`, on every state of a shape: every invariant at once, for all values.

From one free state three steps are run: throttled, unthrottled, and under the same policy without the power to hold.
On every path each predicate of the catalogue is evaluated; its own questions do not multiply the paths.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from onbeat_proofs.foreign.policies import without_hold
from onbeat_proofs.prove.states import Fixed, Numbers, Shape, build, take_step
from onbeat_proofs.symbolic import Context, explore, smallest
from onbeat_proofs.symbolic.solver import Counters
from onbeat_spec.catalogue import CATALOGUE, RunsPredicate, StatePredicate, StepPredicate, Verdict, Witness
from onbeat_spec.errors import NotReproduced
from onbeat_spec.invariants import RUNS_PREDICATES, STATE_PREDICATES, STEP_PREDICATES
from onbeat_spec.policy import Policy
from onbeat_spec.records import Facts

Trio = tuple[Facts, Facts, Facts]
"""From one state: the throttled step, the unthrottled one, and the one without the feature."""
Check = tuple[str, str, Callable[[Trio], Verdict]]
"""Invariant, which of its predicates, and the predicate on a trio."""

BOTH = "fresh|resume"
QUICK = (
    Shape(2, (BOTH,)),
    Shape(1, (BOTH, BOTH)),
    Shape(3, late=False),
    Shape(1, (BOTH,), scheduling="priority"),
    Shape(1, ("fresh", "resume"), scheduling="priority", late=False),
    Shape(1, (BOTH,), older=1),
    Shape(1, ("fresh|resume|offer",), loading=1, late=False),
    Shape(1, (BOTH,), cap=True, late=False),
    Shape(2, (BOTH,), late=False, spare=True),
    Shape(2, ("fresh",), late=False, shared=True),
    Shape(1, ("fresh",), late=False, drafts=2, spare=True, loaded=True),
    Shape(1, ("fresh",), async_depth=2),
    Shape(2, ("resume",), late=False, block_size=1, loaded=True),
)
DEEP = (
    Shape(2, (BOTH, BOTH)),
    Shape(3, (BOTH,)),
    Shape(2, (BOTH,), scheduling="priority", older=1),
    Shape(1, ("fresh|resume|offer", "fresh|resume|offer"), loading=1, late=False),
    Shape(3, late=False, shared=True),
    Shape(2, (BOTH,), late=False, shared=True),
    Shape(3, late=False, drafts=2),
    Shape(2, ("fresh",), late=False, async_depth=2),
    Shape(2, (BOTH,), late=False, cap=True),
)
MOST_REQUESTS = max(shape.running + len(shape.waiting) + shape.loading for shape in QUICK)
"""Most requests of a shape that is always swept."""
RESTRICTIONS = (
    "one call of schedule(): no output is delivered, no load lands",
    "counts of blocks without ids, block size 16 where no other is named",
    "each feature (priority, cap, drafts, a step in flight, a shared prefix, blocks and promises other than those of "
    "an undisturbed prefill) only in the shapes that name it",
    "with a step in flight: one, and nobody of it preempted or loading within it",
    "not paused, no load at its deadline, no ended request whose load is still in flight",
)
"""What no shape has, or not every one."""


def _runs(predicate: RunsPredicate, one: int, other: int) -> Callable[[Trio], Verdict]:
    return lambda trio: predicate(trio[one], trio[other])


def _step(predicate: StepPredicate, which: int) -> Callable[[Trio], Verdict]:
    return lambda trio: predicate(trio[which])


def _state(predicate: StatePredicate, which: int) -> Callable[[Trio], Verdict]:
    return lambda trio: predicate(trio[which].config, trio[which].after)


def checks() -> Iterator[Check]:
    """Yield every predicate of the catalogue that speaks about states, steps, or two runs."""
    for entry, runs in RUNS_PREDICATES:
        if entry.pair == "feature":
            yield entry.id, "off", _runs(runs, 1, 2)
        elif entry.pair != "beat":  # a beat is an unthrottled step: see the theorem on phase 0
            yield entry.id, "runs", _runs(runs, 0, 1)
    for which in (0, 1):
        for entry, step in STEP_PREDICATES:
            yield entry.id, f"step {which}", _step(step, which)
        for entry, state in STATE_PREDICATES:
            yield entry.id, f"state {which}", _state(state, which)


CHECKS = tuple(checks())


WITNESSES: dict[str, Witness] = {id: entry.witness for id, entry in CATALOGUE.items() if entry.witness is not None}
"""For each invariant, whether a throttled step and the unthrottled one make a run in which it says something.

Without one the proof would be vacuous. What tests count, on plain numbers, are the premises.
"""


@dataclass(slots=True)
class Refutation:
    """Numbers with which an invariant does not hold, and what is wrong then."""

    message: str
    model: dict[str, Any]

    @property
    def size(self) -> int:
        """Sum of magnitudes: the smaller, the easier to read."""
        return sum(abs(value) for value in self.model.values() if type(value) is int)


@dataclass(slots=True)
class Sweep:
    """What exploring one shape under one policy showed."""

    shape: Shape
    counters: Counters = field(default_factory=Counters)
    refuted: dict[str, Refutation] = field(default_factory=dict)
    witnessed: dict[str, dict[str, Any]] = field(default_factory=dict)


def _met(premise: Callable[[Facts, Facts], bool], trio: Trio) -> bool | None:
    return premise(trio[0], trio[1]) or None


def run_trio(numbers: Numbers, shape: Shape, policy: Policy) -> Trio:
    """Run the three steps from one state."""
    return (
        take_step(build(numbers, shape, policy), True),
        take_step(build(numbers, shape, policy), False),
        take_step(build(numbers, shape, without_hold(policy)), False),
    )


def sweep(shape: Shape, policy: Policy) -> Sweep:
    """Explore every path; keep the first refutation of each invariant.

    Raises:
        Undecided: Z3 answered `unknown`.
        NotSymbolic: the policy uses a value in a way that cannot be run symbolically.
        NotReproduced: a model does not do in plain Python what it did symbolically.
    """
    result = Sweep(shape)

    def one_path(context: Context) -> None:
        trio = run_trio(context, shape, policy)
        for invariant, which, check in CHECKS:
            key = f"{invariant}: {which}"
            if key in result.refuted:
                continue
            violation = context.first(partial(check, trio))
            if violation is not None:
                result.refuted[key] = Refutation(str(violation.result), smallest(violation))
        for invariant, premise in WITNESSES.items():
            if invariant not in result.witnessed:
                met = context.first(partial(_met, premise, trio))
                if met is not None:
                    result.witnessed[invariant] = met.model()

    for _ in explore(one_path, counters=result.counters):
        pass
    _rerun(result, policy)
    return result


def _rerun(result: Sweep, policy: Policy) -> None:
    """Run every model in plain Python; keep what is wrong there, per invariant, smallest first.

    Raises:
        NotReproduced: a model does not do there what it did symbolically.
    """
    refuted: dict[str, Refutation] = {}
    predicates = {f"{invariant}: {which}": (invariant, check) for invariant, which, check in CHECKS}
    for key, refutation in result.refuted.items():
        invariant, check = predicates[key]
        verdict = check(run_trio(Fixed(refutation.model), result.shape, policy))
        if verdict is None:
            raise NotReproduced(f"{key} ({result.shape}): {refutation.model} does not violate it in plain Python")
        if invariant not in refuted or refutation.size < refuted[invariant].size:
            refuted[invariant] = Refutation(verdict, refutation.model)
    for invariant, model in result.witnessed.items():
        throttled, unthrottled, _ = run_trio(Fixed(model), result.shape, policy)
        if not WITNESSES[invariant](throttled, unthrottled):
            raise NotReproduced(f"{invariant} ({result.shape}): the witness {model} does not meet its premise")
    result.refuted = refuted
