"""The processes of ranks that the front end has started itself."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence

COMMAND = (sys.executable, "-m", "onbeat_engine.rank")


class Children:
    """Those that run, and those that ended by themselves."""

    def __init__(self) -> None:
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        """By rank."""
        self._noticed: set[int] = set()
        """Ranks whose process was seen to have ended."""

    def __contains__(self, rank: int) -> bool:
        """Whether a rank was started here, and not ended here since."""
        return rank in self.processes

    def start(self, rank: int, spec: bytes) -> int:
        """Start a rank's process, and tell it what to do (one line); return its id."""
        path = os.pathsep.join(entry for entry in sys.path if entry)
        child = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=2,  # what a rank prints is no output of the front end's
            env={**os.environ, "PYTHONPATH": path},
        )
        assert child.stdin is not None
        self.processes[rank] = child
        self._noticed.discard(rank)
        with contextlib.suppress(BrokenPipeError):  # it ended at once: seen when it is waited for
            child.stdin.write(spec + b"\n")
            child.stdin.flush()
        return child.pid

    def reap(self) -> bool:
        """Return whether one still runs; those that do not are in the process table no more."""
        running = [child.poll() is None for child in self.processes.values()]
        return any(running)

    def ended(self, rank: int) -> str | None:
        """Return how a rank's process has ended; None: it runs, or is none of these.

        At the first look after its end that is empty: its last words may be in the socket, and are read until the next.
        """
        child = self.processes.get(rank)
        if child is None or child.poll() is None:
            return None
        if rank not in self._noticed:
            self._noticed.add(rank)
            return ""
        return f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"

    def kill(self, rank: int) -> None:
        """Kill a rank's process, if it was started here; nobody waits for its end."""
        if rank in self.processes:
            self.processes[rank].kill()

    async def end(self, ranks: Sequence[int]) -> None:
        """Kill what is left of these ranks, and wait until nothing is."""
        for rank in ranks:
            child = self.processes.pop(rank, None)
            if child is None:
                continue
            child.kill()
            while child.poll() is None:
                await asyncio.sleep(0.005)
            if child.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.close()
