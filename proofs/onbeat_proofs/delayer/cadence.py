"""The prefill step cadence as a delayer: a group that steps in lock step, with the phase of `onbeat_spec.cadence`."""

from collections.abc import Sequence

from onbeat_proofs.delayer.rows import Row
from onbeat_spec.cadence import advance, throttles


class Cadence:
    """Prefills run on the beat, every `max_delay_passes` + 1 passes, or when no rank has a decode to run.

    The state is the phase. Idle passes end the wave, so the next one begins on a beat. The saturation flag is left
    out: rows say nothing about what a pass left in the queues.
    """

    initial = 0

    def __init__(self, max_delay_passes: int) -> None:
        self.interval = max_delay_passes + 1

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Decide from the phase, and from whether anybody has a decode."""
        if not any(row.prefillable or row.running for row in rows):
            return True, 0
        hold = throttles(state, self.interval) and any(row.running for row in rows)
        return not hold, advance(state, self.interval)
