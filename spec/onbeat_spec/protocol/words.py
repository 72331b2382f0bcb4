"""What the ranks and the front end of a group have in common: settings, events, groups."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from onbeat_spec.errors import ConfigError

PauseMode = Literal["keep", "abort", "wait"]
"""Requests that a rank has when it is paused: stay as they are, are dropped, or are finished first."""
Seen = Literal["request", "wake", "pause", "resume", "sleep", "rouse", "leave", "remove", "end"]
"""What an event is to its reader. `wake`: a request elsewhere; `leave`: you are removed; `remove`: another is."""


class GroupSettings(NamedTuple):
    """What all ranks of a group have in common; see `common`."""

    interval: int = 1
    """Prefills are let in on every so many forwards."""
    sync: int = 16
    """Forwards between two exchanges. Nothing but the cost depends on it (B81)."""


class Event(NamedTuple):
    """One entry of the log, as one rank sees it."""

    number: int
    kind: Seen
    mode: PauseMode = "keep"


def common(settings: Sequence[GroupSettings]) -> GroupSettings:
    """Return the settings of a group from those that its ranks were started with.

    Raises:
        ConfigError: they differ (B81), or are below 1.
    """
    if len(set(settings)) != 1:
        raise ConfigError(f"ranks of a group differ in (interval, sync): {list(map(tuple, settings))}; make them equal")
    if settings[0].interval < 1 or settings[0].sync < 1:
        raise ConfigError(f"interval and sync must be at least 1, not {tuple(settings[0])}")
    return settings[0]


def groups(ranks: int, coupled: bool) -> tuple[tuple[int, ...], ...]:
    """Return the groups of a deployment: all ranks if they share collectives, else each by itself (B80)."""
    if coupled:
        return (tuple(range(ranks)),)
    return tuple((rank,) for rank in range(ranks))
