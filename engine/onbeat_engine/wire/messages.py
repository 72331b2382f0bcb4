"""What front end and ranks tell each other, as msgspec structs over ZeroMQ.

To a rank go entries of the group's numbered log (`onbeat_spec.protocol`): every one carries the event, and the request
if it is one. Aborts of single requests are no events of the group. From a rank come outputs, and reports of itself
whenever those have changed (case B103: also without a step).
"""

import msgspec

from onbeat_engine.wire.lane_steps import LaneStep
from onbeat_engine.wire.params import SamplingParams, StructuredOutput
from onbeat_spec.balance import LoadReport
from onbeat_spec.protocol import PauseMode, Seen
from onbeat_spec.records import Member


class NewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request; its id is unique inside the deployment, whatever the client called it."""

    id: str
    prompt: list[int]
    params: SamplingParams
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0
    priority: int = 0
    cache_salt: str = ""


class ToRank(msgspec.Struct, frozen=True, tag=True):
    """Base of what is sent to a rank."""


class LogEntry(ToRank, frozen=True, kw_only=True, tag="event"):
    """One event of the group, as this rank sees it."""

    number: int
    kind: Seen
    mode: PauseMode = "keep"
    request: NewRequest | None = None
    """For kind `request`."""


class Abort(ToRank, frozen=True, kw_only=True, tag="abort"):
    """Clients of these requests are gone."""

    ids: tuple[str, ...]


class ResetPrefixCache(ToRank, frozen=True, kw_only=True, tag="reset-prefix-cache"):
    """Forget every cached block."""

    call: int


class Compile(ToRank, frozen=True, kw_only=True, tag="compile"):
    """Compile a grammar beside the step loop: the requests that are to follow find it there."""

    call: int
    structured: StructuredOutput


class Shutdown(ToRank, frozen=True, kw_only=True, tag="shutdown"):
    """End the process; unfinished requests are aborted and told so."""


class Ping(ToRank, frozen=True, tag="ping"):
    """The front end lives. Sent to ranks that it has not started itself, which cannot see its end otherwise."""


class FromRank(msgspec.Struct, frozen=True, tag=True):
    """Base of what a rank sends."""


class Hello(FromRank, frozen=True, kw_only=True, tag="hello"):
    """A rank that somebody else has started asks for its configuration."""

    rank: int


class Ready(FromRank, frozen=True, kw_only=True, tag="ready"):
    """The rank has loaded the model, and takes requests."""

    rank: int
    num_blocks: int
    max_model_len: int
    pid: int
    vocab_size: int | None = None
    """Of the model; None: as the tokenizer's."""
    coupled: bool = False
    """It shares collectives with all other ranks of the deployment."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities at one position: of the token that is there, and of the most likely ones."""

    token: int
    logprob: float
    rank: int
    """1 = most likely."""
    top_tokens: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What one step, or one abort, brought to one request."""

    id: str
    tokens: list[int] = []
    finish_reason: str | None = None
    """`stop`, `length`, `abort` or `error`."""
    stop_token: int | None = None
    """The token that ended it, if one did."""
    error: str | None = None
    """For `error`, and for a request that was refused: what was wrong."""
    refused: bool = False
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    num_cached_tokens: int = 0


class RankStats(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's state in numbers: gauges, and counters since its start."""

    rank: int
    epoch: int = 0
    number: int = 0
    waiting: int = 0
    running: int = 0
    tokens: int = 0
    """Prompt tokens of unfinished requests."""
    read: int = 0
    read_tokens: int = 0
    """Requests, and their prompt tokens, read from the front end so far (load balancing)."""
    kv_cache_usage: float = 0.0
    steps: int = 0
    dummy_steps: int = 0
    held_steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    violations: dict[str, int] = {}
    """Violated invariants, by id."""
    stopped: int = 0
    """Number of the event at which the rank stopped last (`protocol.report`)."""
    paused: PauseMode | None = None
    asleep: bool = False

    @property
    def load(self) -> LoadReport:
        """What the load balancer reads of them."""
        return LoadReport(self.epoch, self.number, self.waiting, self.running, self.tokens, self.read, self.read_tokens)


class RankOutputs(FromRank, frozen=True, kw_only=True, tag="outputs"):
    """Outputs of a step, merged, never replaced (case B111), and the rank's stats if they have changed."""

    rank: int
    outputs: list[Output] = []
    stats: RankStats | None = None
    lock_steps: list[Member] = []
    """The rank's part in the turns of its group since the last message, if the group is watched."""
    lane_steps: list[LaneStep] = []
    """Its steps that have ended since then, for the lanes."""


class Alive(FromRank, frozen=True, kw_only=True, tag="alive"):
    """The rank's step takes long, and works."""

    rank: int
    epoch: int


class Answer(FromRank, frozen=True, kw_only=True, tag="answer"):
    """To a call, by its number."""

    rank: int
    call: int
    ok: bool
    message: str = ""


class Ended(FromRank, frozen=True, kw_only=True, tag="ended"):
    """The rank's loop has ended; why."""

    rank: int
    why: str
    expected: bool = False


ToRankMessage = LogEntry | Abort | ResetPrefixCache | Compile | Ping | Shutdown
FromRankMessage = Hello | Ready | RankOutputs | Alive | Answer | Ended
