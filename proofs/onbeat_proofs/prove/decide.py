"""Decides the whole ledger, on as many processes as there are to use.

A policy is named, not passed: each process loads it for itself. `unknown` is a failure, whatever was expected.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from onbeat_proofs.foreign.policies import policy_of
from onbeat_proofs.play.table import step_text
from onbeat_proofs.play.two_runs import replay_runs
from onbeat_proofs.prove.ledger import START, THEOREMS, expected_of_sweep
from onbeat_proofs.prove.recipe import to_scenario
from onbeat_proofs.prove.states import Shape
from onbeat_proofs.prove.sweep import DEEP, QUICK, RESTRICTIONS, WITNESSES, Refutation, Sweep, sweep
from onbeat_proofs.prove.theorem import Theorem, TheoremVerdict, decide
from onbeat_proofs.scenarios.files import dump
from onbeat_proofs.symbolic import where
from onbeat_spec.errors import NotSymbolic, PolicyError, Undecided
from onbeat_spec.policy import Policy

T = TypeVar("T")
Progress = Callable[[str, int, int], None]
"""Told what has just ended, and how many jobs are done of how many."""


@dataclass(slots=True)
class Proof:
    """What `prove` showed."""

    verdicts: list[TheoremVerdict] = field(default_factory=list)
    seconds: float = 0.0
    """Wall time."""

    @property
    def exit_code(self) -> int:
        """0 all as expected, 1 something was refuted or proved that should not be, 2 something is unknown."""
        wrong = [verdict for verdict in self.verdicts if not verdict.as_expected]
        if not wrong:
            return 0
        return 2 if all(verdict.verdict == "unknown" for verdict in wrong) else 1


def prove(policies: Sequence[str], *, deep: bool = False, workers: int = 2, progress: Progress | None = None) -> Proof:
    """Decide every theorem and sweep every shape under each policy.

    Args:
        policies: names, `module:Class`, or `file.py:Class`.
        deep: the larger shapes too.
        workers: processes.
        progress: told about every job that ends.

    Raises:
        PolicyError: a policy cannot be loaded.
        NotSymbolic: a policy uses a value in a way that cannot be run symbolically; the message names the line.
        NotReproduced: a model does not do in plain Python what it did symbolically.
    """
    started = perf_counter()
    for name in policies:
        policy_of(name, Path())  # refuse a bad one before any work
    shapes = QUICK + (DEEP if deep else ())
    large_first = sorted(shapes, key=lambda shape: -(shape.running + len(shape.waiting)))
    jobs = [(_sweep, name, shape) for shape in large_first for name in policies]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures: dict[Future[Any], tuple[str, Any]] = {
            pool.submit(job, name, shape): (name, shape) for job, name, shape in jobs
        }
        futures |= {pool.submit(_theorems, name): (name, None) for name in policies}
        swept: dict[tuple[str, Shape], Sweep | str] = {}
        decided: dict[str, list[TheoremVerdict]] = {}
        for done, future in _ended(futures):
            name, shape = futures[future]
            if shape is None:
                decided[name] = future.result()
            else:
                swept[name, shape] = future.result()
            if progress is not None:
                progress(f"{name}: {shape or 'theorems'}", done, len(futures))
        proof = Proof()
        for name in policies:
            outcomes = {shape: swept[name, shape] for shape in shapes}
            rows = _rows(policy_of(name, Path()).name, outcomes)
            for verdict in (*decided[name], *rows):
                verdict.loaded_from = name
                proof.verdicts.append(verdict)
            withdraw((*decided[name], *rows))
            _add_scenarios(pool, name, outcomes, [row for row in rows if row.verdict == "refuted"])
    proof.seconds = perf_counter() - started
    return proof


def _ended(futures: dict[Future[Any], Any]) -> Iterator[tuple[int, Future[Any]]]:
    try:
        yield from enumerate(as_completed(futures), 1)
    finally:
        for future in futures:
            future.cancel()


def _load(name: str) -> Policy:
    return policy_of(name, Path())()


def _located(function: Callable[[Policy], T], name: str) -> T:
    """Run a function under a policy; an error that the policy's own code raises names its line.

    Raises:
        NotSymbolic: as the function.
        PolicyError: the policy raised anything else.
    """
    try:
        return function(_load(name))
    except NotSymbolic as error:
        file, line, source = where(error)
        raise NotSymbolic(f"{error} at {file}:{line}: {source}") from None
    except Exception as error:
        file, line, source = where(error)
        if file != inspect.getfile(policy_of(name, Path())):
            raise
        raise PolicyError(f"policy {name} raised {type(error).__name__}: {error} at {file}:{line}: {source}") from None


def _sweep(name: str, shape: Shape) -> Sweep | str:
    try:
        return _located(lambda policy: sweep(shape, policy), name)
    except Undecided as error:
        return f"{shape}: {error}"


def _theorems(name: str) -> list[TheoremVerdict]:
    verdicts = []
    for theorem in THEOREMS:
        verdict = _located(partial(decide, theorem), name)
        if verdict.verdict == "refuted" and theorem.shape is not None:
            _write(verdict, theorem, name)
        verdicts.append(verdict)
    return verdicts


def _write(verdict: TheoremVerdict, theorem: Theorem, name: str) -> None:
    assert theorem.shape is not None
    verdict.scenario, verdict.table = _scenario(theorem.id, verdict.model, theorem.shape, name)


def _scenario(theorem: str, model: dict[str, Any], shape: Shape, name: str) -> tuple[str, str]:
    """Return a refutation as a scenario file and as a step table; empty texts if no scenario leads there."""
    scenario = to_scenario(theorem, model, shape, name)
    if scenario is None:
        return "", ""
    outcome = replay_runs(scenario, policy=_load(name))
    violation = next(v for v in outcome.violations if v.invariant in scenario.violates)
    return dump(scenario, header=f"step {violation.step}: {violation.message}"), step_text(outcome.history)


def _rows(policy: str, outcomes: dict[Shape, Sweep | str]) -> list[TheoremVerdict]:
    """Put the shapes of one policy together: a row for each invariant."""
    names = ", ".join(str(shape) for shape in outcomes)
    unknown = [text for text in outcomes.values() if isinstance(text, str)]
    sweeps = [part for part in outcomes.values() if isinstance(part, Sweep)]
    paths = sum(part.counters.paths for part in sweeps)
    queries = sum(part.counters.queries for part in sweeps)
    seconds = sum(part.counters.seconds for part in sweeps)
    rows = []
    for invariant in WITNESSES:
        expected = expected_of_sweep(invariant, policy)
        row = TheoremVerdict(f"{invariant}/step", policy, f"for all values: {names}", expected, "proved")
        row.statement = "The real schedule(), from every state of these shapes."
        row.restrictions, row.from_start_state = RESTRICTIONS, True
        row.paths, row.queries, row.seconds = paths, queries, seconds
        refuted = smallest_refutation(invariant, sweeps)
        if refuted is not None:
            row.verdict, row.message, row.model = "refuted", refuted.message, refuted.model
        elif unknown:
            row.verdict, row.message = "unknown", unknown[0]
        elif not any(invariant in part.witnessed for part in sweeps):
            row.verdict, row.message = "unknown", "no path meets the premises: the claim says nothing"
        rows.append(row)
    return rows


def withdraw(verdicts: Sequence[TheoremVerdict]) -> None:
    """Withdraw what is proved from start states under a policy for which what they assume is not proved."""
    lost = [verdict for verdict in verdicts if verdict.id in START and verdict.verdict != "proved"]
    for verdict in verdicts:
        if lost and verdict.from_start_state and verdict.verdict == "proved":
            why = f"{lost[0].id} is {lost[0].verdict} ({lost[0].message})"
            verdict.verdict = "unknown"
            verdict.message = f"it begins in states that {verdict.policy} may leave: {why}"


def smallest_refutation(invariant: str, sweeps: Sequence[Sweep]) -> Refutation | None:
    """Return the smallest numbers with which any of the shapes violates an invariant."""
    refutations = [part.refuted[invariant] for part in sweeps if invariant in part.refuted]
    return min(refutations, key=lambda refutation: refutation.size, default=None)


def _add_scenarios(
    pool: ProcessPoolExecutor, name: str, outcomes: dict[Shape, Sweep | str], rows: list[TheoremVerdict]
) -> None:
    """Write each refutation as a scenario, from the first shape whose state can be led to."""
    futures = {pool.submit(_first_scenario, name, row.id, outcomes): row for row in rows}
    for future in as_completed(futures):
        row = futures[future]
        row.scenario, row.table = future.result()


def _first_scenario(name: str, id: str, outcomes: dict[Shape, Sweep | str]) -> tuple[str, str]:
    invariant = id.split("/", maxsplit=1)[0]
    for shape, part in outcomes.items():
        if isinstance(part, Sweep) and invariant in part.refuted:
            texts = _scenario(id, part.refuted[invariant].model, shape, name)
            if texts[0]:
                return texts
    return "", ""
