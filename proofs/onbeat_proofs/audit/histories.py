"""Long random histories over random configurations, all features at once.

A history is a configuration and a walk: at every turn a number chooses what happens in the state that it meets. It
ends with the rank being drained: everybody finishes, every block is back, every token was delivered once. A violation
does not end it, so that other invariants are put to the test too; a crash does. What fails is written down as a
scenario; `scenarios/shrink.py` makes it small. `stateful.py` has the same machine for Hypothesis.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from time import perf_counter
from typing import TypeVar

from onbeat_proofs.foreign.families import Factory
from onbeat_proofs.play.drain import AT_REST
from onbeat_proofs.play.letters import (
    abort,
    abort_late,
    add,
    again,
    deliver,
    failed,
    ineligible,
    landed,
    landed_late,
    pause,
    reset,
    resume,
    schedule,
    stop,
)
from onbeat_proofs.play.tally import Tally
from onbeat_proofs.play.two_runs import Runs
from onbeat_proofs.scenarios.operations import Add, Op, Scenario, Schedule
from onbeat_spec.config import Config
from onbeat_spec.policy import Policy
from onbeat_spec.records import Violation

Pick = Callable[[int], int]
"""Returns a number from 0 to below its argument."""
Report = Callable[[Violation, Scenario], object]
T = TypeVar("T")
LEAST_OPERATIONS, MOST_OPERATIONS = 30, 120
LIVE = 6
"""Most requests at a time."""


@dataclass(slots=True)
class Machine:
    """What the random histories did."""

    histories: int = 0
    operations: int = 0
    steps: int = 0
    """Steps scheduled, those of the comparisons included."""
    seconds: float = 0.0


def random_histories(
    factory: Factory,
    policy: Policy,
    report: Report,
    *,
    histories: int,
    random_seed: int = 0,
    tally: Tally | None = None,
    adapt: Callable[[Config], Config] = lambda config: config,
    enough: Callable[[int], bool] = lambda done: False,
) -> Machine:
    """Drive a scheduler through random histories.

    Args:
        factory: makes the scheduler.
        policy: what decides.
        report: called with the first violation of each invariant in each history, and the history up to there.
        histories: how many.
        random_seed: the same seed gives the same histories, on every Python version.
        tally: counts the premises met.
        adapt: leaves out of a configuration what the scheduler does not have.
        enough: asked after every history, with their number; True ends the run.
    """
    machine = Machine()
    tally = tally if tally is not None else Tally()
    began, steps = perf_counter(), tally.steps + 3 * tally.pairs
    # Of all that the random module draws, only the sequence of random() is promised to stay across versions.
    draw = Random(random_seed).random

    def pick(count: int) -> int:
        return int(draw() * count)

    while machine.histories < histories and not enough(machine.histories):
        config = adapt(random_config(pick))
        driver = Runs(config, factory, policy=policy, tally=tally)
        ops: list[Op] = []
        shown: set[str] = set()
        for op in _walk(driver, pick):
            ops.append(op)
            seen = len(driver.violations)
            driver.apply(op)
            for violation in driver.violations[seen:]:
                if violation.invariant not in shown:
                    shown.add(violation.invariant)
                    report(violation, history(violation.invariant, config, ops))
        machine.histories += 1
        machine.operations += len(ops)
    machine.steps = tally.steps + 3 * tally.pairs - steps
    machine.seconds = perf_counter() - began
    return machine


def history(invariant: str, config: Config, ops: Sequence[Op]) -> Scenario:
    """Return a history that violates an invariant as a scenario."""
    name = f"{invariant}, found by a random history"
    return Scenario(name=name, invariants=(invariant,), config=config, steps=tuple(ops))


def _walk(driver: Runs, pick: Pick) -> Iterator[Op]:
    """Yield operations, each for the state that the ones before it have led to, and the draining."""
    by_clock = pick(2) == 0
    kinds = [pick(len(KINDS)) for _ in range(5)] if pick(3) == 0 else []
    for _ in range(LEAST_OPERATIONS + pick(MOST_OPERATIONS - LEAST_OPERATIONS)):
        # Some histories have a few favourites: what a fault needs is often the same thing several times.
        kind = kinds[pick(len(kinds))] if kinds and pick(2) else pick(len(KINDS))
        op = random_operation(driver, pick, kind, by_clock=by_clock)
        if op is not None and driver.can(op):
            yield op
        if driver.ended:
            return
    yield AT_REST


def random_config(pick: Pick) -> Config:
    """Return a small configuration, any feature on or off."""

    def one_of(*choices: T) -> T:
        return choices[pick(len(choices))]

    return Config(
        scheduling=one_of("fcfs", "priority"),
        block_size=one_of(2, 1, 4, 3),
        num_blocks=3 + pick(14),
        max_num_batched_tokens=2 + pick(11),
        max_num_seqs=one_of(4, 3, 2, 5, 1),
        max_model_len=one_of(40, 12, 20),
        enable_prefix_caching=one_of(False, True),
        long_prefill_token_threshold=one_of(0, 0, 3),
        num_draft_tokens=one_of(0, 0, 1, 3),
        async_depth=one_of(1, 1, 2),
        prefill_schedule_interval=one_of(1, 2, 3, 4),
        data_parallel_size=one_of(1, 2),
        remote_load_timeout=one_of(0, 3, 6),
        max_hold_steps=one_of(64, 3, 5),
    )


def random_operation(driver: Runs, pick: Pick, kind: int, *, by_clock: bool = False) -> Op | None:
    """Return an operation for the state that a driver is in.

    Args:
        driver: who is there decides whom an operation names.
        pick: chooses.
        kind: an index of `KINDS`.
        by_clock: the clock chooses the flag of every step.

    Returns:
        None if the kind means nothing in this state.
    """
    op = KINDS[kind](driver, pick)
    if op is None and driver.in_flight:
        op = deliver(driver)
    return replace(op, throttle=None) if isinstance(op, Schedule) and by_clock else op


def _add(driver: Runs, pick: Pick) -> Op | None:
    longest = min(driver.config.max_model_len, driver.config.capacity + 2)
    prompt = 1 + pick(longest if pick(4) == 0 else max(1, longest // 3))
    shared = pick(2)
    template = Add(
        "",
        prompt,
        2 + pick(9),
        priority=pick(3),
        prefix=("xy"[pick(2)], min(prompt, 1 + pick(12))) if shared else None,
        remote_tokens=1 + pick(prompt) if pick(5) == 4 else 0,
        remote_mode="sync" if pick(2) else "async",
    )
    return add(template, LIVE)(driver)


def _step(driver: Runs, pick: Pick) -> Op | None:
    return schedule(pick(3) > 0, pick(3) if driver.config.num_draft_tokens else 0)(driver)


def _narrow(driver: Runs, pick: Pick) -> Op | None:
    op = schedule(pick(2) > 0)(driver)
    return replace(op, budget=1 + pick(4)) if isinstance(op, Schedule) else None


KINDS: list[Callable[[Runs, Pick], Op | None]] = [
    *[_step] * 20,
    *[_add] * 7,
    _narrow,
    lambda driver, pick: again(driver),
    lambda driver, pick: abort(pick(4))(driver),
    lambda driver, pick: abort_late(driver),
    lambda driver, pick: stop(driver),
    *[lambda driver, pick: landed(-pick(2))(driver)] * 3,
    lambda driver, pick: failed(pick(3))(driver),
    lambda driver, pick: landed_late(driver),
    lambda driver, pick: pause("all" if pick(2) else "new")(driver),
    *[lambda driver, pick: resume(driver)] * 4,
    lambda driver, pick: reset(driver),
    lambda driver, pick: ineligible(pick(3), 1 + pick(3))(driver),
    *[lambda driver, pick: deliver(driver)] * 3,
]
"""What may happen, as often as it is worth."""
