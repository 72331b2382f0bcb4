"""A scenario as values: what can be done to a scheduler, and what can be expected of it.

The shapes are those of `scenario.schema.json` in the spec package; `files.py` reads them, `writing.py` writes them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from onbeat_spec.config import Config

DEFAULT_MAX_TOKENS = 16
"""Most tokens that a request samples unless its `add` says otherwise."""
TURN = "{i}"
"""What the turn of a `repeat` replaces in ids."""


class Bounds(NamedTuple):
    """A number that is known within bounds only, both included."""

    at_most: int | None = None
    at_least: int | None = None

    def __str__(self) -> str:
        parts = [f"at {name} {value}" for name, value in (("most", self[0]), ("least", self[1])) if value is not None]
        return " and ".join(parts)


Number = int | Bounds
Reason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a scheduler should have done. None: not asked.

    A map speaks of the ids that it names (`scheduled` of all); an empty map says that there is nothing at all.
    """

    scheduled: Mapping[str, Number] | None = None
    """Tokens in the latest step, draft tokens included."""
    preempted: tuple[str, ...] | None = None
    """Whom the latest step preempted, in any order."""
    waiting: tuple[str, ...] | None = None
    running: tuple[str, ...] | None = None
    parked: tuple[str, ...] | None = None
    saturated: bool | None = None
    free_blocks: Number | None = None
    computed: Mapping[str, Number] | None = None
    """Tokens whose KV is resident."""
    outputs: Mapping[str, Number] | None = None
    """Tokens delivered so far."""
    finished: Mapping[str, Reason] | None = None
    """Who has ended, and why."""
    refused: tuple[str, ...] | None = None
    """Ids refused so far, in any order."""
    drafts: Mapping[str, Number] | None = None
    """Draft tokens in the latest step."""
    loading: tuple[str, ...] | None = None
    """Remote loads that the latest step started, in any order."""
    tokens: Mapping[str, Number] | None = None
    """Tokens scheduled so far, draft tokens and recomputation included."""
    prefill_tokens: Number | None = None
    decode_tokens: Number | None = None
    preemptions: Mapping[str, Number] | None = None
    max_waiting: Number | None = None
    """Most requests left waiting by any step so far."""
    first_chunk: Mapping[str, Number] | None = None
    """Step, from 0, that gave a request its first tokens."""
    first_output: Mapping[str, Number] | None = None
    """Step, from 0, that sampled a request's first output."""


@dataclass(frozen=True, slots=True)
class Add:
    """A request comes. Counts are tokens."""

    id: str
    prompt: int
    max_tokens: int = DEFAULT_MAX_TOKENS
    priority: int = 0
    prefix: tuple[str, int] | None = None
    """The prompt's first so many tokens are those of the text of this name, the same in every request."""
    remote_tokens: int = 0
    remote_mode: Literal["async", "sync"] = "async"
    output: tuple[int, ...] | None = None
    """Token ids that it samples first, in order."""


@dataclass(frozen=True, slots=True)
class Abort:
    """The client of a request goes away."""

    id: str
    instance: int | None = None
    """Of the requests accepted under that id the n-th, from 0; None: the latest."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The next token delivered to this request is a stop token."""

    id: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step."""

    throttle: bool | None = None
    """None: the clock decides."""
    budget: int | None = None
    """Most tokens of this one step, if fewer than the configured."""
    accept: Mapping[str, int] | None = None
    """How many of a request's draft tokens in this step turn out to be right; 0 for those not named."""
    expect: Expectation | None = None


@dataclass(frozen=True, slots=True)
class RemoteDone:
    """The remote store says that a load has landed."""

    id: str


@dataclass(frozen=True, slots=True)
class RemoteFailed:
    """The remote store says that a load ended, and that from this block on it brought nothing valid."""

    id: str
    from_block: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """`new` admits nobody; `all` schedules nothing."""

    mode: Literal["new", "all"]


@dataclass(frozen=True, slots=True)
class Resume:
    """The end of a pause."""


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Every cached block is forgotten."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """The outputs of the oldest steps in flight come back."""

    count: int


@dataclass(frozen=True, slots=True)
class Ineligible:
    """A request cannot run in the next so many steps."""

    id: str
    steps: int


@dataclass(frozen=True, slots=True)
class Check:
    """Nothing happens; something is expected."""

    expect: Expectation


@dataclass(frozen=True, slots=True)
class Repeat:
    """The same steps several times; `{i}` in an id is the turn of the innermost repeat, from 0."""

    times: int
    steps: "tuple[Op, ...]"


Op = (
    Add
    | Abort
    | Stop
    | Schedule
    | RemoteDone
    | RemoteFailed
    | Pause
    | Resume
    | ResetPrefixCache
    | Deliver
    | Ineligible
    | Check
    | Repeat
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario: a configuration, what happens, and what is expected."""

    name: str
    case: str | None = None
    """Id of the public case it comes from."""
    source: str | None = None
    invariants: tuple[str, ...] = ()
    """Ids of the invariants that it exercises."""
    violates: tuple[str, ...] = ()
    """Ids of the invariants that it is meant to violate."""
    config: Config = field(default_factory=Config)
    steps: tuple[Op, ...] = ()
    origin: Path | None = field(default=None, compare=False)
    """The file it was read from; `config.policy` may be relative to it."""


class Located(NamedTuple):
    """An operation and where it stands in its scenario."""

    where: str
    op: Op


def flatten(steps: tuple[Op, ...], where: str = "steps") -> Iterator[Located]:
    """Yield the operations of a scenario one by one, repeats written out."""
    for position, op in enumerate(steps):
        here = f"{where}[{position}]"
        if not isinstance(op, Repeat):
            yield Located(here, op)
            continue
        for turn in range(op.times):
            steps_of_turn = tuple(_in_turn(inner, turn) for inner in op.steps)
            yield from flatten(steps_of_turn, f"{here}.repeat.steps")


T = TypeVar("T")


def _in_turn(op: Op, turn: int) -> Op:
    """Return `op` with its ids written for this turn; an inner repeat counts its own."""
    return op if isinstance(op, Repeat) else _substituted(op, str(turn))


def _substituted(value: T, turn: str) -> T:
    """Return `value` with `{i}` replaced in all its texts; the same object if there is none."""
    changed: Any
    if isinstance(value, str):
        changed = value.replace(TURN, turn)
    elif isinstance(value, tuple) and not isinstance(value, Bounds):
        changed = tuple(_substituted(item, turn) for item in value)
    elif isinstance(value, Mapping):
        changed = {key.replace(TURN, turn): item for key, item in value.items()}
    elif is_dataclass(value) and not isinstance(value, type):
        old = {f.name: getattr(value, f.name) for f in fields(value)}
        new = {name: _substituted(item, turn) for name, item in old.items()}
        changed = value if new == old else replace(value, **new)
    else:
        return value
    result: T = changed
    return result
