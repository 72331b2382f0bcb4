"""The random histories as a state machine of Hypothesis, for the test suite of whoever writes a scheduler.

from onbeat_proofs.audit.stateful import machine_for
from mine import MyScheduler

TestMyScheduler = machine_for(MyScheduler).TestCase
"""

from dataclasses import replace

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from onbeat_proofs.audit.histories import KINDS, history, random_config, random_operation
from onbeat_proofs.foreign.families import Factory
from onbeat_proofs.foreign.policies import policy_of
from onbeat_proofs.play.drain import AT_REST
from onbeat_proofs.play.two_runs import Runs, violation_in
from onbeat_proofs.scenarios.files import dump
from onbeat_proofs.scenarios.operations import Op
from onbeat_proofs.scenarios.shrink import shrink
from onbeat_spec.records import Violation

SHRINK_S = 3.0


def machine_for(factory: Factory, policy: str = "onbeat") -> type[RuleBasedStateMachine]:
    """Return a state machine that drives a scheduler and fails with a scenario for `onbeat replay`.

    Args:
        factory: makes the scheduler: a class with the interface of `onbeat_reference.Scheduler`.
        policy: name of the policy that it is given.

    Raises:
        PolicyError: there is no such policy.
    """
    rules = policy_of(policy)

    class SchedulerMachine(RuleBasedStateMachine):
        driver: Runs
        ops: list[Op]

        @initialize(data=st.data(), by_clock=st.booleans())
        def start(self, data: st.DataObject, by_clock: bool) -> None:
            config = random_config(lambda count: data.draw(st.integers(0, count - 1)))
            self.driver = Runs(config, factory, policy=rules())
            self.ops = []
            self.by_clock = by_clock

        @rule(kind=st.integers(0, len(KINDS) - 1), data=st.data())
        def operation(self, kind: int, data: st.DataObject) -> None:
            def pick(count: int) -> int:
                return data.draw(st.integers(0, count - 1))

            self.check(random_operation(self.driver, pick, kind, by_clock=self.by_clock))

        def teardown(self) -> None:
            if hasattr(self, "driver") and not self.driver.violations:
                self.check(AT_REST)

        def check(self, op: Op | None) -> None:
            if op is None:
                return
            self.ops.append(op)
            self.driver.apply(op)
            for violation in self.driver.violations:
                raise AssertionError(self.told(violation))

        def told(self, violation: Violation) -> str:
            id = violation.invariant
            full = history(id, self.driver.config, self.ops)
            full = replace(full, config=replace(full.config, policy=policy))
            small = shrink(full, lambda scenario: violation_in(scenario, id, factory, rules()) is not None, SHRINK_S)
            return f"{id}: {violation.message}; the scenario, made small:\n\n{dump(small)}"

    # What Hypothesis would do to make it small is done already, and done faster.
    SchedulerMachine.TestCase.settings = settings(
        stateful_step_count=60,
        deadline=None,
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
    )
    name = getattr(factory, "__name__", "Scheduler")
    SchedulerMachine.__name__ = SchedulerMachine.__qualname__ = f"{name}Machine"
    return SchedulerMachine
