"""Between the step loop and what executes its steps: a model runner, or a fake one in tests.

The scheduler's own requests are the runner's requests: their tokens and their block tables are read where they stand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from onbeat_engine.wire.messages import TokenLogprobs
from onbeat_engine.wire.params import SamplingParams
from onbeat_reference.request import Request


class EngineRequest(Request):
    """A request as scheduler and runner share it."""

    __slots__ = ("logprobs_done", "params", "runner_state", "seed")

    def __init__(
        self,
        id: str,
        prompt: Sequence[int],
        max_tokens: int,
        params: SamplingParams,
        *,
        seed: int,
        priority: int = 0,
        stop_token_ids: Sequence[int] = (),
        cache_salt: str = "",
    ) -> None:
        super().__init__(
            id, prompt, max_tokens, priority=priority, stop_token_ids=stop_token_ids, cache_salt=cache_salt
        )
        self.params = params
        self.seed = seed
        """`params.seed`, or a random one: what is sampled depends on this and the position alone."""
        self.runner_state: object = None
        """Belongs to the runner."""
        self.logprobs_done = 0
        """Prompt positions whose log probabilities were delivered."""


class BatchRow(NamedTuple):
    """What one request does in one step: `num_tokens` tokens from position `start` on.

    Their ids are `request.tokens[start : start + num_tokens]`. The last of them may be missing there: it is what the
    step before, still in flight, samples for this request. KV goes into `blocks`, its block table as of this step.
    """

    request: EngineRequest
    start: int
    num_tokens: int
    samples: bool
    """The last token is the last known one: its logits are sampled from."""
    blocks: Sequence[int]


@dataclass(slots=True)
class StepOutputs:
    """What one step brought, by request id."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    """For those that asked; as many as tokens."""
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    """For prompt positions start + 1 .. of this step's chunk (the first token of a prompt has none)."""


class Pending(Protocol):
    """A step that runs."""

    def wait(self) -> StepOutputs:
        """Wait for it."""
        ...


class Executor(Protocol):
    """Executes steps, in order. At most two are in flight."""

    def execute(self, rows: Sequence[BatchRow]) -> Pending:
        """Begin a step; its rows are never empty."""
        ...

    def dummy(self) -> int | None:
        """Take part in a forward of the group without any token of one's own.

        Returns:
            Rows of this rank that reached an expert; None: nobody could count them.
        """
        ...

    def release(self, request: EngineRequest) -> None:
        """A request has ended; forget what is kept for it."""
        ...

    def sleep(self) -> None:
        """Give the KV cache's memory up (what is in it is lost)."""
        ...

    def wake_up(self) -> None:
        """Take the memory back."""
        ...
