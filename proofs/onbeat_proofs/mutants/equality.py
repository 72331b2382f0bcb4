"""Proves that a mutant changes nothing: original and mutant run from the same free numbers, and all they leave agrees.

For all values, on the clocks and on whole steps from states of a few shapes. What a scheduler leaves behind is its
step's record, and the state after it.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from onbeat_proofs.mutants.plant import Mutant, function_of
from onbeat_proofs.prove.states import Numbers, Shape, build, take_step
from onbeat_proofs.symbolic import Context, explore
from onbeat_spec.cadence import LocalClock, next_hold
from onbeat_spec.policy import Policy
from onbeat_spec.records import Step

SHAPES = (
    Shape(1, ("fresh|resume|offer",), late=False),
    Shape(2, late=False),
    Shape(2, late=False, shared=True),
    Shape(1, late=False, drafts=2),
    Shape(1, ("fresh",), late=False, async_depth=2),
)
"""Small, and together with every feature of the step."""

Observation = Callable[[Numbers], Any]


def clocks(numbers: Numbers) -> Any:
    """What a rank's own clock says, in any state that it can be in, and what comes of it."""
    clock = LocalClock(numbers.int("interval", 1))
    clock.left = numbers.int("left", 0)
    numbers.assume(clock.left <= clock.interval - 1)
    held, prefill = bool(numbers.bool("held")), bool(numbers.bool("prefill"))
    left = next_hold(clock.left, clock.interval, numbers.int("tokens", 0), prefill, held)
    return bool(clock.throttle()), left


def step(numbers: Numbers, shape: Shape) -> Any:
    """What one step from a state of this shape leaves behind."""
    facts = take_step(build(numbers, shape, Policy()), numbers.pick("throttle", (True, False)))
    return [getattr(facts.step, f.name) for f in fields(Step)], facts.after


OBSERVATIONS: tuple[Observation, ...] = (clocks, *(partial(step, shape=shape) for shape in SHAPES))


def difference(mutant: Mutant) -> str | None:
    """Return an input on which a mutant and the original differ; None: there is none."""
    function = function_of(mutant.module, mutant.function)
    original = function.__code__, function.__defaults__, function.__kwdefaults__

    def one_path(context: Context, observe: Observation) -> str | None:
        one = observe(context)
        mutant.install()
        try:
            other = observe(context)
        finally:
            function.__code__, function.__defaults__, function.__kwdefaults__ = original
        difference = context.first(lambda: None if one == other else "differs")
        return None if difference is None else f"they differ on {difference.model()}"

    for observe in OBSERVATIONS:
        for path in explore(partial(one_path, observe=observe)):
            if path.result is not None:
                return path.result
    return None
