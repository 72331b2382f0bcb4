"""Runs the checks on every mutant, and shows which check notices which.

Each mutant lives in a child process of its own. It meets the checks in stages, from cheap to expensive, until one
notices: theorems, the unit tests, scenarios, all sequences of operations in small worlds, the step on symbolic states,
and random histories. Before a stage its checks run once on the text as it is: they must pass
there, and it is noted which statements each one runs, since a check that never comes by a change cannot notice it.
What no check notices must be shown to change nothing (`equivalents`), or it is a hole.
"""

import os
import pickle
import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from select import select
from time import process_time
from types import FrameType
from typing import NamedTuple, TypeVar

from onbeat_proofs.mutants.checks import MutantCheck, histories, scenarios, searches, sweeps, theorems
from onbeat_proofs.mutants.equality import difference
from onbeat_proofs.mutants.equivalents import EQUIVALENT
from onbeat_proofs.mutants.plant import Mutant, Ran, mutants, trace, traced
from onbeat_proofs.mutants.unit_tests import unit_tests
from onbeat_spec.errors import NotReproduced

T = TypeVar("T")
Progress = Callable[[str, int, int], object]
"""Told what is being done, how much of it is done, and how much there is."""

STAGES = (theorems, unit_tests, scenarios, searches, sweeps, histories)
LEAST_SECONDS, TIMES_AS_LONG = 4.0, 10.0
"""A check hangs once it has taken so many seconds more, and so many times as long, as on the text as it is."""
MOST_MEMORY = 4 << 30
"""Bytes of address space that a child may have."""


@dataclass(slots=True)
class MutantResult:
    """What became of one mutant."""

    id: str
    file: str
    line: int
    function: str
    operator: str
    before: str
    after: str
    verdict: str = "survived"
    """`killed`, `equivalent`, or `survived`."""
    killed_by: str = ""
    """The check that noticed it."""
    message: str = ""
    """What the check noticed; why it is equivalent."""
    seconds: float = 0.0
    """CPU time of its child processes."""


class _Control(NamedTuple):
    """What a check did on the text as it is."""

    noticed: str | None
    seconds: float
    ran: frozenset[Ran]


class _Met(NamedTuple):
    """What a mutant met in one stage."""

    killed_by: str
    message: str
    seconds: float


class _Hang(BaseException):
    """The check takes too long."""


def run(
    progress: Progress | None = None, workers: int = 2, chosen: Sequence[Mutant] | None = None
) -> list[MutantResult]:
    """Run mutants through the checks.

    Args:
        progress: told about every mutant that has met a stage.
        workers: processes.
        chosen: by default all.

    Raises:
        NotReproduced: a check fails on the text as it is, or an entry of `equivalents` fits no mutant, or one that
            does change something.
    """
    tell = progress or (lambda what, done, total: None)
    everyone = mutants()
    chosen = everyone if chosen is None else chosen
    stale = sorted(set(EQUIVALENT) - {mutant.id for mutant in everyone})
    if stale:
        raise NotReproduced(f"equivalents.py speaks of a mutant that there is not: {stale[0]}; remove or rename it")
    results = {m.id: MutantResult(m.id, m.file, m.line, m.function, m.operator, m.before, m.after) for m in chosen}
    _prove_equal([m for m in chosen if m.id in EQUIVALENT], results, workers, tell)
    alive = [m for m in chosen if m.id not in EQUIVALENT]
    for stage in STAGES:
        checks = list(stage())
        controls = _controls(checks, workers, partial(tell, f"{stage.__name__} on the text as it is"))
        jobs = {
            m.id: partial(_meet, m, _relevant(m, checks, controls)) for m in alive if _relevant(m, checks, controls)
        }
        for done, (id, met) in enumerate(_forked(jobs, workers), 1):
            tell(stage.__name__, done, len(jobs))
            result = results[id]
            result.seconds += met.seconds
            if met.killed_by:
                result.verdict, result.killed_by, result.message = "killed", met.killed_by, met.message
        alive = [m for m in alive if results[m.id].verdict == "survived"]
        if not alive:
            break
    return list(results.values())


def _prove_equal(listed: Sequence[Mutant], results: dict[str, MutantResult], workers: int, tell: Progress) -> None:
    """Show that the mutants said to change nothing change nothing."""
    jobs = {mutant.id: partial(_differs, mutant) for mutant in listed}
    for done, (id, difference_) in enumerate(_forked(jobs, workers), 1):
        tell("equality", done, len(jobs))
        if difference_ is not None:
            raise NotReproduced(f"equivalents.py says that nothing notices {id}; {difference_}")
        results[id].verdict, results[id].message = "equivalent", EQUIVALENT[id]
        results[id].killed_by = "proved equal"


def _differs(mutant: Mutant) -> str | None:
    return difference(mutant)


def _controls(checks: Sequence[MutantCheck], workers: int, tell: Callable[[int, int], object]) -> dict[str, _Control]:
    controls = {}
    traced()
    for name, control in _forked({check.name: partial(_control, check) for check in checks}, workers):
        controls[name] = control
        tell(len(controls), len(checks))
        if control.noticed is not None:
            raise NotReproduced(f"{name} fails on the text as it is: {control.noticed}; mend that first")
    return controls


def _control(check: MutantCheck) -> _Control:
    ran: set[Ran] = set()
    trace(ran)
    began = process_time()
    noticed = _noticed(check)
    return _Control(noticed, process_time() - began, frozenset(ran))


def _relevant(
    mutant: Mutant, checks: Sequence[MutantCheck], controls: dict[str, _Control]
) -> list[tuple[MutantCheck, float]]:
    """Return the checks that come by a mutant's change, with the seconds that they may take.

    The older policies are run for changes in their own text; of other text they are asked only by scenarios.
    """
    place = (mutant.module, mutant.function, mutant.place)
    own = mutant.function.split(".")[0] in ("PullRequest44558", "LocalWork")
    relevant = [
        check
        for check in checks
        if place in controls[check.name].ran
        and (check.policy != "onbeat" if own else check.policy == "onbeat" or not check.symbolic)
    ]
    return [(check, LEAST_SECONDS + TIMES_AS_LONG * controls[check.name].seconds) for check in relevant]


def _meet(mutant: Mutant, checks: Sequence[tuple[MutantCheck, float]]) -> _Met:
    mutant.install()
    for check, seconds in checks:
        signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
        try:
            noticed = _noticed(check)
        except _Hang:
            if check.symbolic:
                break
            noticed = "it hangs"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if noticed is not None:
            return _Met(check.name, noticed, process_time())
    return _Met("", "", process_time())


def _noticed(check: MutantCheck) -> str | None:
    try:
        return check.run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# --- Processes -------------------------------------------------------------------------------------------------------


def _hang(number: int, frame: FrameType | None) -> None:
    raise _Hang


def _forked(jobs: Mapping[str, Callable[[], T]], workers: int) -> Iterator[tuple[str, T]]:
    """Run jobs in child processes, each in one of its own; yield their results as they come."""
    waiting = list(reversed(list(jobs.items())))
    active: dict[int, tuple[str, int, bytearray]] = {}
    try:
        while waiting or active:
            while waiting and len(active) < workers:
                name, job = waiting.pop()
                reader, process = _fork(job)
                active[reader] = name, process, bytearray()
            for reader in select(list(active), [], [])[0]:
                name, process, data = active[reader]
                part = os.read(reader, 1 << 16)
                data += part
                if not part:
                    del active[reader]
                    os.close(reader)
                    os.waitpid(process, 0)
                    yield name, pickle.loads(bytes(data))
    finally:
        for reader, (_, process, _) in active.items():
            os.close(reader)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _fork(job: Callable[[], T]) -> tuple[int, int]:
    reader, writer = os.pipe()
    process = os.fork()
    if process:
        os.close(writer)
        return reader, process
    try:
        os.close(reader)
        signal.signal(signal.SIGPROF, _hang)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        data = pickle.dumps(job())
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)
    raise AssertionError("a child ends above")
