"""The beat: which steps let prefills in.

A group that steps in lock step carries one *phase*, 0 .. interval - 1, the same on all ranks; phase 0 is the beat.
It is carried, not computed from a step number, so that every rank's next phase is a function of its present one
(and so that it can be proved: phase = steps since the wave began, modulo interval).

A rank that shares nothing with others (one rank, or a dense model) keeps a local clock instead: a step that carried
prefill opens a hold of interval - 1 executed steps (vLLM PR 54627, case B04).
"""


def advance(phase: int, interval: int) -> int:
    """Return the phase of the next lock step."""
    following = phase + 1
    if following >= interval:
        return 0
    return following


def throttles(phase: int, interval: int) -> bool:
    """Whether prefills are held back in a step of this phase."""
    return interval > 1 and phase != 0


def count_held(held_steps: int, holds: bool) -> int:
    """Return how many steps in a row have held, after a step that holds or not."""
    if holds:
        return held_steps + 1
    return 0


class PhaseClock:
    """The clock of a lock-step group, as one rank sees it. Every step counts, empty ones included."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.phase = 0

    def throttle(self) -> bool:
        """Whether the step about to be scheduled holds prefills back."""
        return throttles(self.phase, self.interval)

    def executed(self, tokens: int, prefill: bool, held: bool) -> None:
        """Take note of a step: its tokens, whether it carried prefill, whether it held (and did not lift the hold)."""
        self.phase = advance(self.phase, self.interval)

    def idle(self) -> None:
        """The wave ended; the next one begins on a beat."""
        self.phase = 0


def next_hold(left: int, interval: int, tokens: int, prefill: bool, held: bool) -> int:
    """Executed steps that stay held after a step, given how many were `left` before it.

    A step without tokens was not executed and changes nothing. A step that held opens no new hold, whatever passed
    it: otherwise a stream of remote resumes would keep every fresh prefill out.
    """
    if tokens == 0:
        return left
    if prefill and not held:
        return interval - 1
    if left > 0:
        return left - 1
    return 0


class LocalClock:
    """The clock of a rank on its own."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.left = 0

    def throttle(self) -> bool:
        """Whether the step about to be scheduled holds prefills back."""
        return self.interval > 1 and self.left > 0

    def executed(self, tokens: int, prefill: bool, held: bool) -> None:
        """Take note of a step: its tokens, whether it carried prefill, whether it held (and did not lift the hold)."""
        self.left = next_hold(self.left, self.interval, tokens, prefill, held)

    def idle(self) -> None:
        """Being idle leaves a local clock alone: fairness debt accrues only while both classes compete (B15)."""


def clock_for(interval: int, data_parallel_size: int) -> PhaseClock | LocalClock:
    """Return the clock that a rank of such a deployment keeps."""
    return PhaseClock(interval) if data_parallel_size > 1 else LocalClock(interval)
