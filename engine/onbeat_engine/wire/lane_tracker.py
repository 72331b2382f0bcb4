"""Puts a rank's steps together from their two ends: scheduled, and outputs there. For traces and live ranks alike."""

from onbeat_engine.wire.lane_steps import LaneStep, idle_step, lane_step
from onbeat_spec.records import LockStep, Step


class LaneTracker:
    """Follows one rank. Times are seconds, of any one clock that never jumps.

    A step begins when it is scheduled, or, if it was scheduled ahead, when the one before it ends.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.open: dict[int, LaneStep] = {}
        """Steps whose outputs have not come, by number of the scheduler's call."""
        self._busy_until = float("-inf")

    def scheduled(self, step: Step, lock: LockStep | None, *, saturated: bool, time: float) -> None:
        """Take a step that `schedule()` returned; `saturated` is the rank's flag before it."""
        self.open[step.index] = lane_step(step, lock, self.rank, saturated=saturated, start=time)

    def ended(self, index: int, time: float | None) -> LaneStep | None:
        """Take the moment in which a step's outputs came; return the step, None if it is not known.

        Args:
            index: number of the scheduler's call.
            time: None: nobody recorded it.
        """
        step = self.open.pop(index, None)
        if step is None or time is None:
            return step
        start = max(step.start, self._busy_until)
        self._busy_until = time
        return step._replace(start=start, duration=max(0.0, round(time - start, 6)))

    def idle(self, lock: LockStep, *, time: float, took: float | None) -> LaneStep:
        """Take a lock step in which nothing was scheduled, when it has ended; return it."""
        self._busy_until = time
        return idle_step(lock, self.rank, start=time - (took or 0.0), duration=took)
