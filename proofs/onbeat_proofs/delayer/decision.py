"""What decides: the interface of a delayer, for this audit and for authors of new ones.

An author writes a class for one rank:

    class Patient:
        initial = 0                       # this rank's state before the first pass; hashable; None if left out

        def __init__(self, max_delay_passes):      # or any of the names of `Settings`, or nothing
            self.most = max_delay_passes

        def decide(self, state, rank, rows):       # -> (allow: bool, next state)
            if any(row.prefillable for row in rows) and any(row.running for row in rows) and state < self.most:
                return False, state + 1
            return True, 0

`rows` has the `Row` of every rank, the same tuple on all of them; `rank` is one's own index. `decide` must be a
function of its arguments alone. An attribute `prefill_excludes_decode = True` says that a rank that prefills in a pass
runs no decode in it.
"""

import inspect
from collections.abc import Hashable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, Protocol

from onbeat_proofs.delayer.rows import Row, Settings, alphabet
from onbeat_proofs.foreign.targets import where_raised
from onbeat_proofs.foreign.watchdog import Hang, limited
from onbeat_spec.errors import NotADelayer, OnbeatError

DECISION_S = 5.0
"""A single decision that takes longer hangs."""

State = tuple[Hashable, ...]
"""The state of a group: that of every rank, by rank."""


class PassResult(NamedTuple):
    """What a pass came to: whether each rank may prefill, and the group's next state."""

    allow: tuple[bool, ...]
    state: State


class Misstep(Exception):
    """The code under audit did what no decision may: raised, exited, hung, or answered something else."""


class Decision(Protocol):
    """A decision of a whole group, as the audit runs it."""

    @property
    def name(self) -> str:
        """What it is, for reports, its version included."""

    @property
    def prefill_excludes_decode(self) -> bool:
        """Whether a rank that prefills in a pass runs no decode in it."""

    def initial(self) -> State:
        """Return the state before the first pass."""

    def rows(self) -> Sequence[Row]:
        """Return all rows that a rank can bring."""

    def step(self, state: State, rows: Sequence[Row]) -> PassResult:
        """Take the decision of every rank for one pass. Raises Misstep."""

    def show(self, state: State) -> list[str]:
        """Return each rank's state as a short text."""


class OfClass:
    """The decision of a group whose ranks all run one class with a method `decide`.

    Raises:
        NotADelayer: the class has no `decide`, or cannot be made.
    """

    def __init__(self, cls: type, settings: Settings, name: str) -> None:
        self.name = name
        self.settings = settings
        if not callable(getattr(cls, "decide", None)):
            raise NotADelayer(f"{name} has no method decide(state, rank, rows); see `onbeat delayer --help`")
        try:
            with limited(DECISION_S, patience=1):
                self._delayer = cls(**accepted(cls, settings))
                self._initial = getattr(self._delayer, "initial", None)
                hash(self._initial)
        except (Hang, Misstep, TypeError, ValueError) as error:
            raise NotADelayer(f"{name} cannot be made: {where_raised(error)}") from error
        self.prefill_excludes_decode = bool(getattr(cls, "prefill_excludes_decode", False))

    def initial(self) -> State:
        """Return `initial` for every rank."""
        return (self._initial,) * self.settings.ranks

    def rows(self) -> Sequence[Row]:
        """Return the whole alphabet."""
        return alphabet(self.settings)

    def step(self, state: State, rows: Sequence[Row]) -> PassResult:
        """Ask `decide` once for each rank."""
        allow, following = [], []
        for rank, own in enumerate(state):
            answer = guarded(self._delayer.decide, own, rank, tuple(rows))
            if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], bool)):
                raise Misstep(f"rank {rank}: decide returned {answer!r}; it must return (allow: bool, next state)")
            if not _hashable(answer[1]):
                raise Misstep(f"rank {rank}: the next state {answer[1]!r} is not hashable; a tuple or a number is")
            allow.append(answer[0])
            following.append(answer[1])
        return PassResult(tuple(allow), tuple(following))

    def show(self, state: State) -> list[str]:
        """Return what the states look like."""
        return [repr(own) for own in state]


def _hashable(state: Any) -> bool:
    try:
        hash(state)
    except TypeError:
        return False
    return True


def accepted(cls: type, settings: Settings) -> dict[str, Any]:
    """Return those settings that a class's constructor names."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    try:
        names = inspect.signature(cls).parameters
    except ValueError:
        return {}
    return {name: value for name, value in values.items() if name in names}


def guarded(function: Any, *arguments: Any) -> Any:
    """Call code under audit; whatever it raises becomes a Misstep."""
    try:
        return function(*arguments)
    except (KeyboardInterrupt, Hang, Misstep, OnbeatError):
        raise
    except BaseException as error:
        raise Misstep(where_raised(error, __file__)) from error
