"""The invariants of a lock-step group, watched at the front end, where what its ranks did comes together."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from onbeat_engine.wire.config import MOST_LOGGED, OnViolation
from onbeat_spec.group_monitor import GroupMonitor, judge
from onbeat_spec.records import GroupStep, Member

log = logging.getLogger("onbeat.monitor")


class GroupWatch:
    """Watches one group.

    Args:
        ranks: its members.
        on_violation: `log` a violation and go on, or `stop` the group.
        counts: of the same group before it was started again.

    Attributes:
        counts: violations so far, by invariant.
        lock_steps: turns in which ranks were compared.
    """

    def __init__(
        self, ranks: Iterable[int], on_violation: OnViolation, counts: Mapping[str, int] | None = None
    ) -> None:
        self.on_violation = on_violation
        self.counts: Counter[str] = Counter(counts)
        self.lock_steps = 0
        self._monitor = GroupMonitor(ranks)
        self._gone: set[int] = set()

    def observe(self, rank: int, members: Iterable[Member]) -> str:
        """Take what a rank did; return why the group is to stop, or nothing."""
        if rank in self._gone:
            return ""
        return self._judge(step for member in members for step in self._monitor.observe(rank, member))

    def gone(self, rank: int) -> str:
        """A rank tells no more; return as `observe` does."""
        if rank in self._gone:
            return ""
        self._gone.add(rank)
        return self._judge(self._monitor.gone(rank))

    def _judge(self, steps: Iterable[GroupStep]) -> str:
        first = ""
        for step in steps:
            self.lock_steps += 1
            for violation in judge(step):
                self.counts[violation.invariant] += 1
                if self.counts[violation.invariant] <= MOST_LOGGED:
                    log.error(
                        "turn %d of the group violates %s: %s; the turn: %s",
                        violation.lock_step,
                        violation.invariant,
                        violation.message,
                        dict(step.members),
                    )
                first = first or f"turn {violation.lock_step} violates {violation.invariant}: {violation.message}"
        return first if self.on_violation == "stop" else ""
