"""Long random histories over random configurations, all features at once.

Hypothesis draws them: a configuration and a list of numbers, each of which becomes an operation in the state that it
meets. A history ends with the rank being drained: everybody finishes, every block is back, every token was delivered
once. What fails is written down as a scenario; making it small is `shrink`'s job.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from time import perf_counter

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from onbeat_proofs.clients import Factory
from onbeat_proofs.drain import AT_REST
from onbeat_proofs.letters import (
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
from onbeat_proofs.operations import Add, Op, Scenario, Schedule
from onbeat_proofs.premises import Tally
from onbeat_proofs.runs import Runs
from onbeat_spec.config import Config
from onbeat_spec.policy import Policy
from onbeat_spec.records import Violation

Report = Callable[[Violation, Scenario], object]
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


class _Enough(Exception):
    """The caller wants no more histories."""


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Draw a small configuration, any feature on or off."""
    block_size = draw(st.sampled_from((2, 1, 4, 3)))
    interval = draw(st.sampled_from((1, 2, 3, 4)))
    return Config(
        scheduling=draw(st.sampled_from(("fcfs", "priority"))),
        block_size=block_size,
        num_blocks=draw(st.integers(3, 16)),
        max_num_batched_tokens=draw(st.integers(2, 12)),
        max_num_seqs=draw(st.sampled_from((4, 3, 2, 5, 1))),
        max_model_len=draw(st.sampled_from((40, 12, 20))),
        enable_prefix_caching=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from((0, 0, 3))),
        num_draft_tokens=draw(st.sampled_from((0, 0, 1, 3))),
        async_depth=draw(st.sampled_from((1, 1, 2))),
        prefill_schedule_interval=interval,
        data_parallel_size=draw(st.sampled_from((1, 2))),
        remote_load_timeout=draw(st.sampled_from((0, 3, 6))),
        max_hold_steps=draw(st.sampled_from((64, 3, 5))),
    )


LARGEST = 2**24 - 1


def _uniform(number: int) -> list[int]:
    draw = Random(number)
    return [draw.randrange(LARGEST) for _ in range(draw.randint(LEAST_OPERATIONS, MOST_OPERATIONS))]


numbers = st.one_of(
    # Hypothesis likes small numbers, and the same again: one letter repeated, the plainest requests.
    st.lists(st.integers(0, LARGEST), min_size=LEAST_OPERATIONS, max_size=MOST_OPERATIONS),
    st.integers(0, 2**32).map(_uniform),
    st.integers(0, 2**32).map(_uniform),
)


def random_histories(
    factory: Factory,
    policy: Policy,
    report: Report,
    *,
    histories: int,
    random_seed: int = 0,
    tally: Tally | None = None,
    enough: Callable[[int], bool] = lambda done: False,
) -> Machine:
    """Drive a scheduler through random histories.

    Args:
        factory: makes the scheduler.
        policy: what decides.
        report: called with the first violation of each invariant in each history, and the history.
        histories: how many.
        random_seed: the same seed gives the same histories with the same version of Hypothesis.
        tally: counts the premises met.
        enough: asked after every history, with their number; True ends the run.
    """
    machine = Machine()
    tally = tally if tally is not None else Tally()
    began, steps = perf_counter(), tally.steps + 3 * tally.pairs

    @seed(random_seed)
    @settings(
        max_examples=histories,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(configs(), st.booleans(), numbers)
    def history(config: Config, by_clock: bool, choices: list[int]) -> None:
        if enough(machine.histories):
            raise _Enough
        driver = Runs(config, factory, policy=policy, tally=tally)
        ops: list[Op] = []
        for op in _walk(driver, choices, by_clock):
            ops.append(op)
            driver.apply(op)
        if not driver.ended and not driver.violations:
            ops.append(AT_REST)
            driver.apply(AT_REST)
        machine.histories += 1
        machine.operations += len(ops)
        shown: set[str] = set()
        for violation in driver.violations:
            if violation.invariant not in shown:
                shown.add(violation.invariant)
                report(violation, _scenario(violation, config, ops))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(_Enough):
            history()
    machine.steps = tally.steps + 3 * tally.pairs - steps
    machine.seconds = perf_counter() - began
    return machine


def _scenario(violation: Violation, config: Config, ops: list[Op]) -> Scenario:
    return Scenario(
        name=f"{violation.invariant}, found by a random history",
        invariants=(violation.invariant,),
        config=config,
        steps=tuple(ops),
    )


# --- From numbers to operations --------------------------------------------------------------------------------------


def _walk(driver: Runs, choices: list[int], by_clock: bool) -> Iterator[Op]:
    """Yield the operations that numbers stand for, each in the state that the ones before it have led to."""
    for choice in choices:
        kind, rest = choice % len(_KINDS), choice // len(_KINDS)
        op = _KINDS[kind](driver, rest)
        if isinstance(op, Schedule) and by_clock:
            op = Schedule(None, accept=op.accept)
        if op is None and driver.in_flight:
            op = deliver(driver)
        if op is not None:
            yield op
        if driver.ended or driver.violations:
            return


def _add(driver: Runs, x: int) -> Op | None:
    config = driver.config
    longest = min(config.max_model_len, config.capacity + 2)
    prompt = 1 + x // 4 % (longest if x % 4 == 0 else max(1, longest // 3))
    x //= 256
    template = Add(
        "",
        prompt,
        2 + x % 9,
        priority=x // 9 % 3,
        prefix=("xy"[x % 2], min(prompt, 1 + x // 16 % 12)) if x // 8 % 2 else None,
        remote_tokens=(1 + x // 32 % prompt) if x // 4 % 5 == 4 else 0,
        remote_mode="sync" if x // 2 % 2 else "async",
    )
    return add(template, LIVE)(driver)


def _step(driver: Runs, x: int) -> Op | None:
    return schedule(x % 3 > 0, x // 3 % 3 if driver.config.num_draft_tokens else 0)(driver)


def _narrow(driver: Runs, x: int) -> Op | None:
    op = schedule(x % 2 > 0)(driver)
    return op and Schedule(x % 2 > 0, budget=x // 2 % 4)


_KINDS: list[Callable[[Runs, int], Op | None]] = [
    *[_step] * 20,
    *[_add] * 7,
    lambda driver, x: again(driver),
    _narrow,
    lambda driver, x: abort(x % 4)(driver),
    lambda driver, x: abort_late(driver),
    lambda driver, x: stop(driver),
    *[lambda driver, x: landed(-(x % 2))(driver)] * 3,
    lambda driver, x: failed(x % 3)(driver),
    lambda driver, x: landed_late(driver),
    lambda driver, x: pause("all" if x % 2 else "new")(driver),
    *[lambda driver, x: resume(driver)] * 4,
    lambda driver, x: reset(driver),
    lambda driver, x: ineligible(x % 3, 1 + x // 3 % 3)(driver),
    *[lambda driver, x: deliver(driver)] * 3,
]
