"""Signs of life of a rank that is in one step for long: from a thread beside the loop, as long as the step works.

A thread that merely runs would speak for a loop that is deadlocked. So a sign is given only while the process takes
processor time, and for one turn not for ever. That is for steps on a CPU: a thread that waits for a GPU may spin.
"""

import threading
import time
from collections.abc import Callable

import psutil

WORKS = 0.01
"""A process that takes less than this share of one processor does nothing."""
LONGEST = 20.0
"""A step that takes so many times `collective_timeout` hangs, whatever it does."""
BEAT = 0.5
"""Seconds between two looks."""

NEVER = -1e9
"""Before every time of `time.monotonic`."""


class Heart:
    """Gives signs of life while a turn works, or waits for another rank's that does.

    Args:
        beat: gives one; called in the thread.
        timeout: `collective_timeout`, in seconds.
        vouched: when a rank that keeps this one waiting was last seen to work (`Exchange.vouched`): one that does
            nothing meanwhile is as alive as that one.
    """

    def __init__(self, beat: Callable[[], None], timeout: float, vouched: Callable[[], float] = lambda: NEVER) -> None:
        self._beat = beat
        self._timeout = timeout
        self._vouched = vouched
        self._began: float | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="heart")
        self._thread.start()

    def turn_begins(self) -> None:
        """The loop takes a turn."""
        self._began = time.monotonic()

    def turn_ended(self) -> None:
        """It has; while there is none the loop speaks for itself."""
        self._began = None

    def stop(self) -> None:
        """End the thread."""
        self._ends.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.process_time()
        while not self._ends.wait(BEAT):
            spent, began, now = time.process_time(), self._began, time.monotonic()
            works = spent - before >= WORKS * BEAT or now - self._vouched() < self._timeout
            if works and began is not None and now - began < LONGEST * self._timeout:
                self._beat()
            before = spent


def processor_seconds(pid: int) -> float | None:
    """Return the processor time that another process of this machine has taken; None: it cannot be told."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)
