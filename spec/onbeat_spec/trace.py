"""The trace format: records of what one rank's scheduler did, as lines of JSON. docs/trace-format.md describes it.

A file has one rank. Its first line is a header, each other line one record: a step with what is needed around it to
evaluate the invariants, or an event between two steps. What has its default value is left out. The reader is strict:
an unknown key or a wrong type is an error, and only a last line that was cut off is let pass, and told.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from onbeat_spec.config import Config
from onbeat_spec.records import LockStep, State, Step

FORMAT = "onbeat-trace"
VERSION = 1

PauseMode = Literal["new", "all"]
NoticeKind = Literal["abort", "load_finished", "load_failed"]


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a file: whose steps these are, and how things stood when it was begun."""

    rank: int
    ranks: int
    """Ranks of the lock-step group; 1 = on its own."""
    config: Config
    policy: str
    scheduler: str
    """The class, as module:Class."""
    state: State
    """The whole state before the first record."""
    run: str = ""
    """Names the run: the same in all files of one scheduler object."""
    part: int = 0
    """Number of this file in its run."""
    group: str = ""
    """Names the start of the lock-step group in which the run was: all its ranks say the same. Empty: not known."""
    next_step: int = 0
    """Number of the step that comes next."""
    started: float = 0.0
    """When the file was begun, seconds since the epoch."""
    software: Mapping[str, str] = field(default_factory=dict)
    """Versions, by name."""
    any_flag: bool = False
    """The throttle does not come from a clock with the configured interval."""
    lost: int = 0
    """Records that could not be written since the file before this one."""
    flights: tuple[tuple[int, Mapping[str, int]], ...] = ()
    """Steps in flight, oldest first: number, and tokens per request."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One call of `schedule()`."""

    step: Step
    before: State
    after: State
    """Partial states, as the live monitor builds them; or whole ones."""
    whole: State | None = None
    """The whole state after the step, every so many steps."""
    paused: PauseMode | None = None
    lock: LockStep | None = None
    """The lock step of the group that this was."""
    time: float = 0.0
    """When it was scheduled, in seconds since the file was begun."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A lock step in which this rank took part without scheduling anything."""

    lock: LockStep
    time: float = 0.0
    """When it ended, in seconds since the file was begun; 0: not recorded."""
    took: float = 0.0
    """Seconds that it lasted; 0: not recorded."""


@dataclass(frozen=True, slots=True)
class Update:
    """The outputs of a step came back."""

    step: int
    tokens: Mapping[str, int] = field(default_factory=dict)
    """Tokens delivered, for each request to which the step did not bring exactly one."""
    finished: Mapping[str, str] = field(default_factory=dict)
    """Who ended by it, and why."""
    time: float = 0.0
    """When they came, in seconds since the file was begun; 0: not recorded."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request was accepted."""

    id: str
    num_prompt: int
    limit: int
    """Most tokens, prompt included, that it may ever know."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request was refused for its size."""

    id: str
    num_prompt: int


@dataclass(frozen=True, slots=True)
class Notice:
    """A request was aborted, or its remote load ended."""

    what: NoticeKind
    id: str
    known: bool = True
    """It spoke of something live."""
    before: State | None = None
    after: State | None = None
    """How a late notice changed the state; None: not at all."""


@dataclass(frozen=True, slots=True)
class PauseChanged:
    """Scheduling was paused, or with mode None resumed."""

    mode: PauseMode | None


@dataclass(frozen=True, slots=True)
class CacheReset:
    """These requests were preempted outside of a step, with the prefix cache emptied."""

    preempted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Crashed:
    """A call raised what it does not declare."""

    error: str


Record = StepRecord | Idle | Update | Accepted | Refused | Notice | PauseChanged | CacheReset | Crashed

CONFIG_DEFAULTS = {field.name: field.default for field in fields(Config)}
