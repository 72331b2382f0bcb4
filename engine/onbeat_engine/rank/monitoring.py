"""The invariants, watched in the step loop of one rank."""

import logging
from collections import Counter
from collections.abc import Iterable

from onbeat_engine.wire.config import MOST_LOGGED, OnViolation
from onbeat_reference.lifecycle import Lifecycle, Outputs
from onbeat_reference.request import Request
from onbeat_reference.watch import Watch
from onbeat_spec.errors import InvariantViolated
from onbeat_spec.records import Step
from onbeat_spec.trace import StepRecord
from onbeat_spec.trace_write import line

log = logging.getLogger("onbeat.monitor")


class RankMonitor:
    """Watches one rank's scheduler.

    Args:
        scheduler: before its first step.
        rank: its number, for the log.
        on_violation: `log` it and go on, or `stop`.

    Attributes:
        counts: violations so far, by invariant.
    """

    def __init__(self, scheduler: Lifecycle, rank: int, on_violation: OnViolation) -> None:
        self.scheduler = scheduler
        self.rank = rank
        self.on_violation = on_violation
        self.counts: Counter[str] = Counter()
        self._watch = Watch(scheduler)

    def step(self, step: Step) -> None:
        """A step was scheduled.

        Raises:
            InvariantViolated: something does not hold, and `on_violation` is `stop`.
        """
        self._watch.step(step)
        self._judge()

    def took_part(self, *, may_run: bool) -> None:
        """The rank took part in a forward of its group without a step; `may_run`: though it had work that might."""
        self._watch.monitor.took_part(may_run=may_run)

    def delivered(self, outputs: Outputs) -> None:
        """Outputs were delivered."""
        self._watch.delivered(outputs)

    def aborted(self, id: str) -> None:
        """A request was aborted."""
        self._watch.monitor.finished(id, "abort", self.scheduler.num_steps)

    def released(self, requests: Iterable[Request]) -> None:
        """These requests lose their KV outside of a step."""
        for request in requests:
            self._watch.monitor.released(request.id)

    def _judge(self) -> None:
        violations = self._watch.violations
        if not violations:
            return
        record = self._record()
        for violation in violations:
            self.counts[violation.invariant] += 1
            if self.counts[violation.invariant] <= MOST_LOGGED:
                log.error(
                    "rank %d, step %d violates %s: %s; the step: %s",
                    self.rank,
                    violation.step,
                    violation.invariant,
                    violation.message,
                    record,
                )
        first = violations[0]
        violations.clear()
        if self.on_violation == "stop":
            raise InvariantViolated(f"step {first.step} violates {first.invariant}: {first.message}")

    def _record(self) -> str:
        facts = self._watch.latest
        if facts is None:
            return "none"
        record = StepRecord(facts.step, facts.before, facts.after, None, self.scheduler.paused)
        return line(record, facts.config.max_num_batched_tokens).strip()
