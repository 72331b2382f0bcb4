"""The catalogue: what an invariant is made of. The invariants themselves are in `onbeat_spec.invariants`.

A predicate returns None where the invariant holds, else one sentence that says what is wrong. The same function
object is proved, tested, and evaluated on serving engines.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Literal, TypeVar

from onbeat_spec.config import Config
from onbeat_spec.protocol.facts import EventRead, FrontCall
from onbeat_spec.records import Facts, GroupStep, State

Scope = Literal["state", "step", "runs", "history", "group", "call", "read"]
Pair = Literal["throttle", "feature", "beat"]
"""Which two runs from one state are compared: the throttled step with the unthrottled one, that with a step of a
scheduler without the feature, or the step on a beat with the unthrottled one."""
Verdict = str | None
StatePredicate = Callable[[Config, State], Verdict]
StepPredicate = Callable[[Facts], Verdict]
RunsPredicate = Callable[[Facts, Facts], Verdict]
"""Takes the step as it was, and the step that the same state would have seen without the throttle."""
GroupPredicate = Callable[[GroupStep], Verdict]
CallPredicate = Callable[[FrontCall], Verdict]
ReadPredicate = Callable[[EventRead], Verdict]
Witness = Callable[[Facts, Facts], bool]
"""Takes a throttled step and the unthrottled one from the same state."""
F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class TwoRuns:
    """Two steps from one state, with the throttle and without it."""

    throttled: Facts
    unthrottled: Facts
    matters: bool
    """The throttle held somebody, or changed what was scheduled."""
    decode: bool
    """A running decode could run in the step."""


@dataclass(frozen=True, slots=True)
class ByText:
    """Two steps from one state, as the policy text sees them that the scheduler's family has built in.

    A hold that is lifted, or that preempts, shows in no record of such a scheduler; by the text it would have been one.
    """

    throttled: Facts
    holds: bool
    """The text holds in the throttled step."""
    all_held: bool
    """The text holds everybody whom the unthrottled step served, and that is somebody."""


def always(*evidence: object) -> bool:
    """Count every occurrence of an event."""
    return True


@dataclass(frozen=True, slots=True)
class Premise:
    """The situation that puts an invariant to the test, in words and as counts: for each event, whether it is one.

    A check that never meets the premise of an invariant says nothing about it: its verdict is `vacuous`.
    """

    words: str
    step: Callable[[Facts], int] | None = None
    """A step was scheduled."""
    runs: Callable[[TwoRuns], int] | None = None
    """Two steps from one state were compared."""
    by_text: Callable[[ByText], int] | None = None
    """Two steps of a scheduler that has its policy built in were compared."""
    call: Callable[[], int] | None = None
    """The scheduler was called."""
    accepted: Callable[[], int] | None = None
    """A request was accepted."""
    refused: Callable[[bool], int] | None = None
    """A request was refused. Takes whether it was too long."""
    notice: Callable[[bool], int] | None = None
    """A load landed or failed, or a request was aborted. Takes whether the scheduler knew of it."""
    delivered: Callable[[bool], int] | None = None
    """Outputs were delivered. Takes whether one of them was for a request that had been preempted, or other steps were
    in flight."""
    rest: Callable[[], int] | None = None
    """The last request ended."""
    beat: Callable[[bool], int] | None = None
    """A step on a beat was compared with an unthrottled one. Takes whether the throttle matters in that state."""
    whole: Callable[[], int] | None = None
    """A trace showed the whole state of a rank, and not only the requests that a step treated in no plain way."""
    lock_step: Callable[[GroupStep], int] | None = None
    """All ranks of a group took, or missed, a lock step."""


class History:
    """A predicate over a run. Each monitor has an object of its own, and tells it what happens."""

    __slots__ = ()

    def step(self, facts: Facts, interval: int) -> Sequence[str]:
        """A step was scheduled; return a sentence for each thing that is wrong.

        Args:
            facts: the step.
            interval: steps between beats; 0 when the caller passes any flag it likes.
        """
        return ()

    def finished(self, id: str) -> None:
        """A request ended."""

    def released(self, id: str) -> None:
        """A request lost its KV otherwise than by a step."""

    def notice(self) -> None:
        """A notice came: a load landed or failed, or a request was aborted."""

    def took_part(self) -> None:
        """The rank had nothing to run, and took part in a forward of its group."""

    def memory(self, now: int, config: Config) -> object:
        """Return what later verdicts depend on: a number, or a number for each request. `now` is the latest step."""
        raise NotImplementedError


@dataclass(slots=True)
class Invariant:
    """One entry. `id` is stable: people put it in bug reports."""

    id: str
    statement: str
    premise: Premise
    """What tests count, on whole states and pairs of runs."""
    cases: tuple[str, ...] = ()
    """Public reports behind it, by case id or vLLM PR."""
    in_traces: Premise | None = None
    """What is counted in a trace, which shows partial states and one run only; None: a trace never shows it."""
    witness: Witness | None = None
    """Whether two steps make a run about which the invariant says something: without one its proof is vacuous."""
    by_proof: bool = True
    """The design asks for a proof, beside tests."""
    about_holds: bool = False
    """It says nothing about a scheduler on which the throttle has no effect at all."""
    state: StatePredicate | None = None
    step: StepPredicate | None = None
    runs: RunsPredicate | None = None
    pair: Pair = "throttle"
    """Which two runs `runs` compares."""
    history: type[History] | Callable[..., Verdict] | None = None
    """A class for what has to be remembered from step to step, or a function for one event of the monitor."""
    group: GroupPredicate | None = None
    """Reads one lock step of all ranks."""
    call: CallPredicate | None = None
    """Reads one call of a group's front end: who has to be told, and what the front end takes the group for."""
    read: ReadPredicate | None = None
    """Reads one event as a rank has read it: what it has to leave there."""
    scopes: list[Scope] = field(default_factory=list)

    def over(self, scope: Scope) -> Callable[[F], F]:
        """Register a function, or for a history a class, as the predicate in one scope."""

        def register(predicate: F) -> F:
            assert getattr(self, scope) is None, (self.id, scope)
            setattr(self, scope, predicate)
            self.scopes.append(scope)
            return predicate

        return register


CATALOGUE: dict[str, Invariant] = {}
"""The invariants of one rank; `onbeat_spec.invariants` fills it."""
GROUP_CATALOGUE: dict[str, Invariant] = {}
"""The invariants of a lock-step group."""


def enter(catalogue: dict[str, Invariant], rooms: Iterable[ModuleType]) -> None:
    """Enter the invariants that modules define, in the order in which they stand there."""
    for room in rooms:
        for entry in vars(room).values():
            if isinstance(entry, Invariant):
                assert entry.id not in catalogue, entry.id
                catalogue[entry.id] = entry
