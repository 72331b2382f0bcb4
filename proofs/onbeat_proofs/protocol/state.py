"""What a world of ranks is made of: how large it is, its members, its moves. All of it is frozen."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

from onbeat_spec.protocol import Event, GroupSettings, Rank, Turn
from onbeat_spec.protocol.words import PauseMode

MODES: tuple[PauseMode, ...] = ("keep", "abort", "wait")


@dataclass(frozen=True)
class GroupScope:
    """How large a world is.

    Attributes:
        requests: that are accepted or held, in all.
        controls: pauses, resumes, sleeps, rousals and removals that change something, in all.
        removals: how many of them may be removals.
        deaths: of ranks.
        restarts: of the group, after a death.
        aborts: of single requests, by their clients.
        orphans: the front end may die.
        settings: of each rank; one for all.
        coupled: the ranks share collectives; if not, one of the groups that they make is looked at.
        fixed: the ranks are `ranks` whatever the text says of groups.
        prompt: every message is read at the latest at the second turn after it was sent; and requests are timed.
    """

    ranks: int = 2
    requests: int = 3
    controls: int = 3
    removals: int = 0
    deaths: int = 0
    restarts: int = 0
    aborts: int = 0
    orphans: bool = False
    holds: bool = False
    settings: tuple[GroupSettings, ...] = (GroupSettings(2, 2),)
    coupled: bool = True
    fixed: bool = False
    prompt: bool = False
    modes: tuple[PauseMode, ...] = MODES

    def of(self, rank: int) -> GroupSettings:
        """Return the settings of a rank."""
        return self.settings[rank % len(self.settings)]

    @cached_property
    def symmetric(self) -> bool:
        """Whether ranks may be told apart by their states only."""
        return len(set(self.settings)) == 1

    def __str__(self) -> str:
        extra = [f"{self.removals} removal"] if self.removals else []
        extra += [f"{self.deaths} death"] if self.deaths else []
        extra += [f"{self.restarts} restart"] if self.restarts else []
        extra += [f"{self.aborts} abort"] if self.aborts else []
        extra += ["front end dies"] if self.orphans else []
        extra += ["held"] if self.holds else []
        extra += [] if self.coupled else ["independent"]
        extra += ["timed"] if self.prompt else []
        sync = "/".join(str(setting.sync) for setting in self.settings)
        size = f"{self.ranks} rank{'s' * (self.ranks > 1)}, {self.requests} requests, {self.controls} controls"
        return ", ".join([size, f"sync {sync}", *extra])


class GroupMember(NamedTuple):
    """A rank with what surrounds it."""

    rank: Rank
    channel: tuple[Event, ...] = ()
    """Sent, and not read yet."""
    work: int = 0
    """Requests of its scheduler that have not ended."""
    dead: bool = False
    begun: bool = False
    """It has taken a turn in this busy period."""
    due: int = 0
    """Messages that it reads before its next turn at the latest; only timed."""
    age: int = 0
    """Turns that a request of it has waited; only timed."""

    @property
    def gone(self) -> bool:
        """Whether it is no part of the group any more."""
        return self.rank.ended == "removed"


class Begun(NamedTuple):
    """A rank in a turn: how many messages it has read before, and what it takes part in."""

    member: GroupMember
    turn: Turn
    calls: tuple[str, ...]
    reads: int


class Left(NamedTuple):
    """What may still happen from outside."""

    requests: int
    controls: int
    removals: int
    deaths: int
    restarts: int = 0
    aborts: int = 0
    orphans: bool = False


ABORT = Event(0, "wake")
"""That a client aborts a request, on the channel to its rank. It is no event: it has no number, and is no news."""
ORPHANED = "the front end died"
"""Why a front end has ended that has died itself."""


Wrong = tuple[str, str] | None
"""What is violated: invariant and message."""
State = tuple[int, ...]
"""Numbers, in the world's tables, of the front end, of what may still happen, and of each member."""


class Move(NamedTuple):
    """One move of the world."""

    label: tuple[Any, ...]
    state: State
    wrong: Wrong = None


T = TypeVar("T")


class Table(Generic[T]):
    """Values by number: states of a world are compared and kept as numbers."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}

    def number(self, value: T) -> int:
        """Return the number of a value."""
        index = self._numbers.setdefault(value, len(self.values))
        if index == len(self.values):
            self.values.append(value)
        return index
