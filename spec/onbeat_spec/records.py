"""The records that the policy, the schedulers and the invariants share: a request, and what one step did."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from onbeat_spec.config import Config


class Place(Enum):
    """Where a live request is: in exactly one of the first three."""

    WAITING = "waiting"
    PARKED = "parked"  # a remote KV load is in flight
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """The scheduling facts of one request. Counts are tokens unless they say blocks.

    A scheduler owns and changes these fields; policy and invariants only read them. Nothing here is ever used as an
    index or a dictionary key except `id`, so every number may be symbolic.
    """

    __slots__ = (
        "arrival",
        "eligible_at",
        "external",
        "id",
        "limit",
        "load_deadline",
        "num_blocks",
        "num_computed",
        "num_drafts",
        "num_placeholders",
        "num_preemptions",
        "num_prompt",
        "num_tokens",
        "place",
        "priority",
        "remote_tokens",
        "reserved",
        "sync_load",
    )

    def __init__(self, id: str, num_prompt: int, limit: int, *, priority: int = 0, remote_tokens: int = 0) -> None:
        self.id = id
        self.priority = priority
        """Smaller is served first, as in vLLM."""
        self.arrival = 0
        """Position in the order of acceptance; unique."""
        self.num_prompt = num_prompt
        self.limit = limit
        """Most tokens, prompt included, that it may ever know."""
        self.num_tokens = num_prompt
        """Tokens known: prompt + sampled and delivered."""
        self.num_placeholders = 0
        """Tokens that steps in flight will sample."""
        self.num_computed = 0
        """Tokens whose KV is resident, or will be once the steps in flight have run."""
        self.num_drafts = 0
        """Draft tokens proposed for its next step."""
        self.remote_tokens = remote_tokens
        """Prompt tokens that a remote store offers and that have not been asked for yet."""
        self.sync_load = False
        """The remote store loads within the step that admits it, instead of beforehand."""
        self.external = 0
        """Leading tokens whose KV is at hand thanks to the remote store, in the present allocation; 0 = none."""
        self.load_deadline = 0
        """Step at which a load in flight counts as failed; 0 = never."""
        self.num_blocks = 0
        self.reserved = 0
        """Blocks promised to it at admission and not taken yet."""
        self.place = Place.WAITING
        self.eligible_at = 0
        """First step in which it may run."""
        self.num_preemptions = 0

    def __repr__(self) -> str:
        return (
            f"<{self.id} {self.place.value} tokens={self.num_tokens}+{self.num_placeholders} "
            f"computed={self.num_computed} blocks={self.num_blocks}>"
        )


class View(NamedTuple):
    """A request as it stood before a step: the fields that invariants may read."""

    id: str
    priority: int
    arrival: int
    limit: int
    num_prompt: int
    num_tokens: int
    num_placeholders: int
    num_computed: int
    num_drafts: int
    external: int
    remote_tokens: int
    sync_load: bool
    num_blocks: int
    reserved: int
    eligible_at: int
    place: Place


def view(request: Request) -> View:
    """Return `request` as it stands now."""
    return View(
        request.id,
        request.priority,
        request.arrival,
        request.limit,
        request.num_prompt,
        request.num_tokens,
        request.num_placeholders,
        request.num_computed,
        request.num_drafts,
        request.external,
        request.remote_tokens,
        request.sync_load,
        request.num_blocks,
        request.reserved,
        request.eligible_at,
        request.place,
    )


class Eviction(NamedTuple):
    """One preemption: who, for whom, and how many blocks came back to the pool."""

    victim: str
    cause: str
    released: int


@dataclass(slots=True, eq=False)
class Step:
    """What one call of `schedule()` decided. Ids only, so that it can be written to a trace."""

    index: int
    """Number of the call, from 0."""
    throttle: bool
    hold: bool = False
    """The step began by holding prefills."""
    lifted: bool = False
    """The hold was lifted within the step, since it would have left the step empty."""
    open: bool = True
    """Admission of waiting requests was open (not paused)."""
    budget: int = 0
    """Tokens left of `max_num_batched_tokens`."""
    scheduled: dict[str, int] = field(default_factory=dict)
    """Tokens per request, draft tokens included."""
    drafts: dict[str, int] = field(default_factory=dict)
    """Draft tokens per request that has any in this step."""
    evictions: list[Eviction] = field(default_factory=list)
    sat_out: list[str] = field(default_factory=list)
    """Running requests passed over as victims because all their blocks are shared; they get nothing in this step."""
    held: list[str] = field(default_factory=list)
    """Requests passed over because of the hold."""
    admitted: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    """Those admitted that held blocks and a slot already: their remote load had landed."""
    loading: list[str] = field(default_factory=list)
    """Remote loads that this step started."""
    cancelled: list[str] = field(default_factory=list)
    """Remote loads that this step gave up at their deadline; the connector must stop writing."""
    scan_over: bool = False
    """Something that may not be overtaken did not fit: only block holders may still be admitted."""
    prefill: bool = False
    """Some request with more than one token of local work got tokens."""
    wrote_flag: bool = False
    saturated: bool = False
    """The flag after the step."""

    @property
    def holding(self) -> bool:
        """The step holds prefills, and has not lifted the hold; after it, whether it counts as held."""
        return self.hold and not self.lifted

    @property
    def offers_admission(self) -> bool:
        """It offers admission to everybody who waits: it is open, holds nobody and preempts nobody.

        No other step may write the saturation flag (B03).
        """
        return self.open and not self.hold and not self.evictions


@dataclass(frozen=True, slots=True)
class State:
    """One rank between two calls. Lists hold ids, in the scheduler's own order.

    A live monitor builds partial states: only the requests that a step treated in no plain way are in them. An
    invariant that says something about each request alone may be evaluated on a part.
    """

    requests: Mapping[str, View]
    """Every live request; and those that ended while loading, as long as they hold blocks."""
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    parked: tuple[str, ...]
    free: int
    """Blocks that nobody holds."""
    promised: int
    """Blocks promised at admission and not taken yet."""
    saturated: bool
    num_running: int
    """All running requests, also in a partial state; likewise the next two."""
    num_loading: int
    """Loads in flight, those of requests that ended included."""
    num_slots: int
    """All requests that hold a slot: running, loading, or landed and waiting."""
    held: int
    """Distinct blocks that somebody holds, counted from the block tables; -1 in a partial state."""
    held_by_running: int = -1
    """Of these, blocks that running requests hold; -1 in a partial state."""
    in_flight: int = 0
    """Steps scheduled whose outputs have not come back."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One step with the state on both sides of it: what one-step and two-run invariants read."""

    config: Config
    before: State
    step: Step
    after: State


class Violation(NamedTuple):
    """An invariant that did not hold."""

    invariant: str
    step: int
    message: str


class Filler(NamedTuple):
    """What a dummy took: a forward that a rank ran without a token of its own."""

    blocks: int
    """KV blocks that left the pool."""
    expert_rows: int | None = None
    """Rows that reached an expert, as counted where tokens go to experts; None: nobody could count them."""


class LockStep(NamedTuple):
    """A rank's part in one lock step of its group."""

    number: int
    """Counts the lock steps of the group; never used twice."""
    phase: int | None = None
    """The rank's phase in it, 0 = on the beat; None: not recorded. Likewise the next two."""
    collectives: tuple[str, ...] | None = None
    """The collectives that the rank took part in, in order."""
    last: bool | None = None
    """The rank stops stepping after it, since the group agreed that there is no more to do."""
    filler: Filler | None = None
    """What the rank's dummy took; None: it ran none, or nobody recorded it."""


class Member(NamedTuple):
    """One rank in a lock step, with what the invariants of a group read of it."""

    lock: LockStep
    tokens: int
    """Tokens that it scheduled; 0 for one that only took part."""
    may_run: bool
    """It has requests that nothing keeps from running (`protocol.may_run`); False: or it is not known."""
    live: int
    """Its requests that were accepted and have not ended."""
    dummy: bool = False
    """It took part in a forward without a step of its own."""


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One lock step of a group: what its ranks did in it."""

    number: int
    members: Mapping[int, Member]
    """By rank; those that took part."""
    missing: tuple[int, ...] = ()
    """Ranks that were stepping before and after it, and took no part in it."""
