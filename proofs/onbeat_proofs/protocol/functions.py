"""The functions of the protocol as the checker calls them; a variant replaces single ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from onbeat_spec import protocol
from onbeat_spec.protocol import Admission, Agreement, Effect, Event, Front, GroupSettings, Rank, Sent, Turn, Vote
from onbeat_spec.protocol.words import PauseMode

FrontEvent = Callable[[Front], tuple[Front, Sent]]
RankEvent = Callable[[Front, int], tuple[Front, Sent]]


class PauseFunction(Protocol):
    """The function that pauses a group."""

    def __call__(self, front: Front, mode: PauseMode, *, holds: bool) -> tuple[Front, Sent]:
        """See `protocol.pause`."""
        ...


@dataclass(frozen=True)
class Text:
    """The protocol: the real functions, unless told otherwise."""

    read: Callable[[Rank, Event], tuple[Rank, Effect]] = protocol.read
    before_step: Callable[[Rank, bool, GroupSettings], Turn] = protocol.before_step
    collectives: Callable[[Turn, int], tuple[str, ...]] = protocol.collectives
    tally: Callable[[Sequence[Vote]], Agreement] = protocol.tally
    after_step: Callable[[Rank, GroupSettings, Agreement | None], Rank] = protocol.after_step
    lost: Callable[[Rank, str], tuple[Rank, Effect]] = protocol.lost
    admission: Callable[[Front, int], Admission] = protocol.admission
    request: RankEvent = protocol.request
    withdraw: Callable[[Front], Front] = protocol.withdraw
    pause: PauseFunction = protocol.pause
    resume: FrontEvent = protocol.resume
    sleep: FrontEvent = protocol.sleep
    rouse: FrontEvent = protocol.rouse
    remove: RankEvent = protocol.remove
    died: RankEvent = protocol.died
    restart: FrontEvent = protocol.restart
    report: Callable[[Front, int, int], Front] = protocol.report
    complete: Callable[[Front], bool] = protocol.complete
    common: Callable[[Sequence[GroupSettings]], GroupSettings] = protocol.common
    groups: Callable[[int, bool], tuple[tuple[int, ...], ...]] = protocol.groups


TEXT = Text()
