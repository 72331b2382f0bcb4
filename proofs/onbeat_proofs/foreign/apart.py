"""Runs a job that calls foreign code in a process of its own; whatever becomes of that, the caller hears of it."""

import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, TypeVar

from onbeat_proofs.foreign.watchdog import SIZE, Journal
from onbeat_spec.errors import OnbeatError

LAST_S = 20.0
"""Wall seconds that a process may take to end once it has closed its end of the pipe: a big one on a busy machine."""
SHOWN = 2000
"""Characters of a process's last words that are kept."""
ENTRY = "from onbeat_proofs.foreign.apart import main; main()"

J = TypeVar("J")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Died:
    """A process that gave no answer."""

    how: str
    """`was ended by SIGKILL`, `ended with exit code 3`, or `did not end within 180 s`."""
    late: bool
    """It was stopped, since its time was up."""
    journal: Any
    """What it wrote last into its journal; None: nothing."""
    words: str
    """The end of what it wrote to standard output and standard error."""


@dataclass(frozen=True, slots=True)
class Apart:
    """What a job has in its own process."""

    tell: Callable[[Any], object]
    """Sends something to the caller before the answer."""
    journal: Journal
    """What is written here can be read when the process is gone."""


def run_apart(
    task: Callable[[J, Apart], R], job: J, limit_s: float, receive: Callable[[Any], object] = lambda news: None
) -> R | Died:
    """Run a task in a process of its own, and return its answer.

    Args:
        task: a function of a module; called with the job and the `Apart` of its process.
        job: what to do; can be pickled, like the answer.
        limit_s: wall seconds after which the process is stopped.
        receive: called with whatever the task tells before its answer.

    Raises:
        OnbeatError: whatever the task raises.
    """
    with tempfile.TemporaryFile() as memory, tempfile.TemporaryFile() as words:
        memory.truncate(SIZE)
        ours, theirs = Pipe(duplex=False)
        passed = theirs.fileno(), memory.fileno()
        command = [sys.executable, "-c", ENTRY, *map(str, passed)]
        with (
            ours,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=words, stderr=words, pass_fds=passed) as child,
        ):
            theirs.close()
            assert child.stdin is not None
            late, deadline = True, monotonic() + limit_s
            try:
                with suppress(BrokenPipeError), child.stdin:  # it may be gone already
                    child.stdin.write(pickle.dumps((task, job)))
                while ours.poll(max(0.0, deadline - monotonic())):
                    kind, value = _received(ours)
                    if kind == "news":
                        receive(value)
                    elif kind == "error":
                        raise value
                    elif kind == "answer":
                        answer: R = value
                        return answer
                    else:
                        with suppress(subprocess.TimeoutExpired):
                            child.wait(LAST_S)
                            late = False
                        break
            finally:
                if child.poll() is None:
                    child.kill()
        words.seek(0)
        output = words.read().decode(errors="replace").strip()[-SHOWN:]
        how = f"did not end within {limit_s:g} s" if late else _how(child.returncode)
        return Died(how, late, Journal(memory.fileno()).read(), output)


def _received(results: Connection) -> tuple[str, Any]:
    try:
        kind, value = results.recv()
    except (EOFError, OSError):  # the end, between two messages or within one
        return "end", None
    return kind, value


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def main() -> None:
    """Do a job in this process; the arguments are the numbers of two files, for the answer and for the journal."""
    with Connection(int(sys.argv[1]), readable=False) as results:
        task, job = pickle.load(sys.stdin.buffer)
        apart = Apart(lambda news: results.send(("news", news)), Journal(int(sys.argv[2])))
        try:
            message = "answer", task(job, apart)
        except OnbeatError as error:
            message = "error", error
        results.send(message)
