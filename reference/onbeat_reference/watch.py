"""The monitor on a live scheduler, cheap enough to leave on.

It shows the monitor partial states (parts.py). Every `audit_every` steps, and at rest, the whole state is looked at.
"""

from onbeat_reference.lifecycle import Lifecycle, Outputs
from onbeat_reference.observe import observe
from onbeat_reference.parts import Parts
from onbeat_spec.monitor import Monitor
from onbeat_spec.records import Facts, Step, Violation


class Watch:
    """Watches one scheduler: call `step` after every `schedule()`, `delivered` after every `update()`.

    Args:
        scheduler: the scheduler, before its first step.
        audit_every: steps between two looks at the whole state.
        any_flag: the caller passes any throttle flag it likes; otherwise a clock with the configured interval does.
    """

    def __init__(self, scheduler: Lifecycle, *, audit_every: int = 256, any_flag: bool = False) -> None:
        self.scheduler = scheduler
        self.monitor = Monitor(scheduler.config)
        if any_flag:
            self.monitor.interval = 0
        self.audit_every = audit_every
        self.latest: Facts | None = None
        """The latest step, with the states around it."""
        self._parts = Parts(scheduler)

    @property
    def violations(self) -> list[Violation]:
        """What did not hold, in the order seen."""
        return self.monitor.violations

    def step(self, step: Step) -> None:
        """A step was scheduled."""
        before, after = self._parts.around(step)
        self.latest = Facts(self.scheduler.config, before, step, after)
        self.monitor.step(self.latest)
        whole = step.index % self.audit_every == 0 or not self.scheduler.requests
        self.monitor.state(observe(self.scheduler) if whole else after, step.index)

    def delivered(self, outputs: Outputs) -> None:
        """Outputs were delivered."""
        for request in outputs.finished:
            assert request.finish_reason is not None
            self.monitor.finished(request.id, request.finish_reason.value, self.scheduler.num_steps)
