"""Runs a job that calls foreign code in a process of its own; whatever becomes of that, the caller hears of it."""

import pickle
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic, process_time
from typing import Any, TypeVar

from onbeat_proofs.foreign.watchdog import SIZE, Journal
from onbeat_spec.errors import OnbeatError

LAST_S = 20.0
"""Wall seconds that a process may take to end once it has closed its end of the pipe: a big one on a busy machine."""
PATIENCE = 4
"""Times as many wall seconds as CPU seconds that a process may say nothing, unless told otherwise."""
SHOWN = 2000
"""Characters of a process's last words that are kept."""
ENTRY = "from onbeat_proofs.foreign.apart import main; main()"

J = TypeVar("J")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Died:
    """A process that gave no answer."""

    how: str
    """`was ended by SIGKILL`, `ended with exit code 3`, or `did not end within 180 s of CPU time`."""
    late: bool
    """It was stopped, since its time was up."""
    journal: Any
    """What it wrote last into its journal; None: nothing."""
    words: str
    """The end of what it wrote to standard output and standard error."""
    under_way_s: float = 0.0
    """For how many wall seconds what the journal tells of had been under way at the end; 0: it had ended."""


@dataclass(frozen=True, slots=True)
class Apart:
    """What a job has in its own process."""

    tell: Callable[[Any], object]
    """Sends something to the caller before the answer."""
    journal: Journal
    """What is written here can be read when the process is gone."""


def run_apart(
    task: Callable[[J, Apart], R],
    job: J,
    limit_s: float,
    receive: Callable[[Any], object] = lambda news: None,
    *,
    silent_s: float | None = None,
) -> R | Died:
    """Run a task in a process of its own, and return its answer.

    Args:
        task: a function of a module; called with the job and the `Apart` of its process.
        job: what to do; can be pickled, like the answer.
        limit_s: CPU seconds, whole ones, after which the process is stopped.
        receive: called with whatever the task tells before its answer.
        silent_s: wall seconds for which it may say nothing, since one that waits for ever uses no CPU time; by
            default `PATIENCE` times as many.

    Raises:
        OnbeatError: whatever the task raises.
    """
    with tempfile.TemporaryFile() as memory, tempfile.TemporaryFile() as words:
        memory.truncate(SIZE)
        ours, theirs = Pipe(duplex=False)
        passed = theirs.fileno(), memory.fileno()
        command = [sys.executable, "-c", ENTRY, *map(str, passed), str(ceil(limit_s))]
        silent_s = PATIENCE * limit_s if silent_s is None else silent_s
        with (
            ours,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=words, stderr=words, pass_fds=passed) as child,
        ):
            theirs.close()
            assert child.stdin is not None
            how = f"said nothing for {silent_s:g} s"
            late, latest = True, monotonic()
            try:
                with suppress(BrokenPipeError), child.stdin:  # it may be gone already
                    child.stdin.write(pickle.dumps((task, job)))
                while ours.poll(max(0.0, latest + silent_s - monotonic())):
                    latest = monotonic()
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
                            how, late = _how(child.wait(LAST_S), limit_s)
                        break
                journal = Journal(memory.fileno())
                under_way_s = journal.under_way_s()
            finally:
                if child.poll() is None:
                    child.kill()
        words.seek(0)
        output = words.read().decode(errors="replace").strip()[-SHOWN:]
        return Died(how, late, journal.read(), output, under_way_s)


def _received(results: Connection) -> tuple[str, Any]:
    try:
        kind, value = results.recv()
    except (EOFError, OSError):  # the end, between two messages or within one
        return "end", None
    return kind, value


def _how(code: int, limit_s: float) -> tuple[str, bool]:
    """Say how a process ended, and whether because its time was up."""
    if code == -signal.SIGXCPU:
        return f"did not end within {limit_s:g} s of CPU time", True
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}", False


def main() -> None:
    """Do a job in this process.

    The arguments are the numbers of two files, for the answer and for the journal, and the CPU seconds that it may use.
    """
    _limit(int(sys.argv[3]))
    with Connection(int(sys.argv[1]), readable=False) as results:
        task, job = pickle.load(sys.stdin.buffer)
        apart = Apart(lambda news: results.send(("news", news)), Journal(int(sys.argv[2])))
        try:
            message = "answer", task(job, apart)
        except OnbeatError as error:
            message = "error", error
        results.send(message)


def _limit(seconds: int) -> None:
    """End this process with SIGXCPU once it has used so many more CPU seconds, whatever it does by then."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = ceil(process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
