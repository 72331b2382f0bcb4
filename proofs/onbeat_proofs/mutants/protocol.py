"""Small changes of the protocol text, each of which the checks of a group of two have to notice.

What is changed and how is `plant.py`'s; here is what has to notice. A mutant is put in place in this process, and taken
out again. Not noticed and listed in `EQUIVALENT`: it changes nothing that can be seen.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from onbeat_proofs.mutants.plant import Mutant, function_of, mutants
from onbeat_proofs.mutants.unit_tests import run_file
from onbeat_proofs.play.suite import suite_path
from onbeat_proofs.protocol.explore import explore
from onbeat_proofs.protocol.replay import replay
from onbeat_proofs.protocol.scenario import load
from onbeat_proofs.protocol.state import GroupScope
from onbeat_proofs.protocol.theorems import group
from onbeat_proofs.prove.theorem import decide_all
from onbeat_spec.protocol import GroupSettings

MODULES = ("onbeat_spec.protocol.words", "onbeat_spec.protocol.rank", "onbeat_spec.protocol.front")
MOST = 45_000
"""States; a mutant that has more than the text itself is noticed by that."""
SCOPES = (
    GroupScope(requests=1, controls=2),
    GroupScope(requests=2, controls=2, settings=(GroupSettings(3, 3),)),
    GroupScope(requests=1, controls=3, prompt=True),
    GroupScope(requests=2, controls=2, holds=True),
    GroupScope(requests=1, controls=3, removals=1, deaths=1),
    GroupScope(requests=1, controls=2, deaths=1, restarts=1, holds=True),
    GroupScope(requests=1, controls=3, coupled=False),
    GroupScope(requests=1, controls=4),
)
EQUIVALENT = {
    "front.py:complete:flag: return all((number == front.last or rank in front.leaving for rank, number in "
    "zip(front.members, known, strict=True))) -> return all((number == front.last or rank in front.leaving for rank, "
    "number in zip(front.members, known, strict=False)))": "both have one entry for each member, always",
}
"""Mutants that change nothing, by id, and why."""


@dataclass(frozen=True)
class ProtocolMutantResult:
    """What became of a mutant: which check noticed it and what that said; empty if none did."""

    mutant: Mutant
    by: str
    message: str = ""


def run(progress: Callable[[str, int, int], None] | None = None) -> list[ProtocolMutantResult]:
    """Try every mutant."""
    results = []
    everything = mutants(MODULES)
    for done, mutant in enumerate(everything):
        if progress is not None:
            progress(mutant.function, done, len(everything))
        results.append(try_one(mutant))
    return results


def try_one(mutant: Mutant) -> ProtocolMutantResult:
    """Put a mutant in place and run the checks up to the first that notices."""
    with installed(mutant):
        for name, check in _checks():
            try:
                message = check()
            except Exception as error:  # whatever the mutant makes of the text, it was noticed
                message = f"{type(error).__name__}: {error}"
            if message:
                return ProtocolMutantResult(mutant, name, message)
    return ProtocolMutantResult(mutant, "")


@contextmanager
def installed(mutant: Mutant) -> Iterator[None]:
    """Put a mutant in place for a while."""
    function = function_of(mutant.module, mutant.function)
    before = function.__code__, function.__defaults__, function.__kwdefaults__
    mutant.install()
    try:
        yield
    finally:
        function.__code__, function.__defaults__, function.__kwdefaults__ = before


def _checks() -> Iterator[tuple[str, Callable[[], str]]]:
    for scope in SCOPES:
        yield "checker", lambda scope=scope: _explored(scope)  # type: ignore[misc]  # a default is no parameter here
    yield "scenario", _suite
    yield "theorem", _theorems
    yield "unit test", _unit_tests


def _explored(scope: GroupScope) -> str:
    explored = explore(scope, most=MOST)
    return f"{scope}: {explored.invariant}: {explored.message}" if explored.invariant else ""


def _suite() -> str:
    for scenario in load(Path(suite_path()) / "group"):
        outcome = replay(scenario)
        if not outcome.right:
            return f"{scenario.name}: {outcome.violations or outcome.failures}"
    return ""


def _unit_tests() -> str:
    file = suite_path().parent / "spec" / "test_protocol.py"  # only a checkout has it
    return (run_file(file.parents[2], file) or "") if file.is_file() else ""


def _theorems() -> str:
    return next((f"{v.id}: {v.message}" for v in decide_all(group.THEOREMS) if v.verdict != "proved"), "")
