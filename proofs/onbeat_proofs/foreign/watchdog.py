"""Calls into foreign code that may never return, and what was going on if it never does."""

import mmap
import pickle
import signal
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic, process_time
from types import FrameType
from typing import Any

from onbeat_proofs.scenarios.operations import Op
from onbeat_spec.config import Config

Trail = tuple[Op, "Trail"] | tuple[()]
"""Operations that led to a state, the latest first."""
CALL_S = 2.0
"""CPU seconds that one operation may take."""
PATIENCE = 15
"""Times as many wall seconds may pass: a busy machine is no fault of the code under test, and one may wait idly."""
SIZE = 1 << 20
"""Bytes of a journal."""
_HEAD = struct.Struct("=Qd")
"""Of a journal: the size of its entry, and when what it tells of began; 0.0: it has ended."""


class Hang(BaseException):
    """A call did not return. No `Exception`, so that code under test does not swallow it."""


CRASHES = (Exception, SystemExit, Hang)
"""What a call may raise that it should not."""


@contextmanager
def limited(seconds: float = CALL_S, patience: float = PATIENCE) -> Iterator[None]:
    """Raise `Hang` inside the block once it has taken so long; only in a main thread, where there are signals.

    Args:
        seconds: of CPU time.
        patience: times as many may pass by the clock.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    began, began_cpu = monotonic(), process_time()

    def late(signum: int, frame: FrameType | None) -> None:
        used = max(process_time() - began_cpu, (monotonic() - began) / patience)
        if used >= 0.99 * seconds:  # timers go off a little early
            raise Hang(f"a call did not return within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)  # again, should the code swallow the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Journal:
    """What is being done, written where another process can read it after this one is gone."""

    def __init__(self, file: int) -> None:
        self._memory = mmap.mmap(file, SIZE)

    def write(self, entry: object) -> None:
        """Take note of what is about to be done, in place of the entry before; one beyond `SIZE` is left out."""
        data = pickle.dumps(entry, pickle.HIGHEST_PROTOCOL)
        if len(data) <= SIZE - _HEAD.size:
            _HEAD.pack_into(self._memory, 0, 0, 0.0)  # what is half written must not be read
            self._memory[_HEAD.size : _HEAD.size + len(data)] = data
            _HEAD.pack_into(self._memory, 0, len(data), monotonic())

    def ended(self) -> None:
        """What was written down last is done."""
        size, _ = _HEAD.unpack_from(self._memory)
        _HEAD.pack_into(self._memory, 0, size, 0.0)

    def read(self) -> Any:
        """Return the latest entry; None: there is none."""
        size, _ = _HEAD.unpack_from(self._memory)
        if not 0 < size <= SIZE - _HEAD.size:
            return None
        return pickle.loads(self._memory[_HEAD.size : _HEAD.size + size])

    def under_way_s(self) -> float:
        """Return for how many wall seconds what the latest entry tells of has been under way; 0: it has ended."""
        size, began = _HEAD.unpack_from(self._memory)
        return float(monotonic() - began) if size and began else 0.0


class Guard:
    """Watches the operations of the runs in this process."""

    def __init__(self, journal: Journal | None = None, seconds: float = CALL_S) -> None:
        self.journal = journal
        self.seconds = seconds
        self.latest: tuple[Config, tuple[Op, ...]] | None = None
        """What is being done, or was done last: the operations, and with which configuration."""

    @contextmanager
    def during(self, config: Config, trail: Trail) -> Iterator[None]:
        """Execute the last operation of a trail."""
        self.latest = config, tuple(operations(trail))
        if self.journal is not None:
            self.journal.write(self.latest)
        with limited(self.seconds):
            yield
        if self.journal is not None:
            self.journal.ended()


GUARD: ContextVar[Guard | None] = ContextVar("GUARD", default=None)
"""Set in a process that runs foreign code."""


def operations(trail: Trail) -> list[Op]:
    """Return the operations of a trail, the first one first."""
    ops: list[Op] = []
    while trail:
        op, trail = trail
        ops.append(op)
    return ops[::-1]
