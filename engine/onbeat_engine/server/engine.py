"""What the server asks of the engine behind it; `AsyncLLM` is one, tests have a fake one."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from onbeat_engine.wire.lane_steps import Lanes
from onbeat_engine.wire.messages import RankStats
from onbeat_engine.wire.params import SamplingParams, StructuredOutput
from onbeat_spec.protocol import PauseMode


class ServedLogprob(Protocol):
    """A token's log probability, and its place among all tokens (1 = most likely)."""

    @property
    def logprob(self) -> float: ...
    @property
    def rank(self) -> int: ...
    @property
    def decoded_token(self) -> str: ...


ServedLogprobs = Mapping[int, ServedLogprob]
"""At one position, by token id: of the token that is there, and of the most likely ones."""


class ServedChoice(Protocol):
    """What is new of one completion."""

    @property
    def index(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def logprobs(self) -> Sequence[ServedLogprobs] | None: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def stop_reason(self) -> int | str | None: ...
    @property
    def error(self) -> str | None: ...


class ServedOutput(Protocol):
    """What is new of one prompt's completions; the last one of a request has `finished` set."""

    @property
    def outputs(self) -> Sequence[ServedChoice]: ...
    @property
    def prompt_logprobs(self) -> Sequence[ServedLogprobs | None] | None: ...
    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def rank(self) -> int:
        """Which served it; -1: it is not known yet."""
        ...

    @property
    def finished(self) -> bool: ...


class ServedStream(Protocol):
    """A request's outputs. Those to come are what is new since the one before."""

    def __aiter__(self) -> AsyncIterator[ServedOutput]: ...
    async def aclose(self) -> None:
        """Abort the request if it is not finished."""
        ...


class ServedTokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
        """Return a text's ids.

        Raises:
            BadRequest: it has more than `max_tokens`, or is no Unicode text.
        """
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the prompt that the model's chat template makes of messages.

        Raises:
            BadRequest: it has more than `max_tokens`, a message has parts that are no text, or the template refuses it.
        """
        ...


class ServedRank(Protocol):
    """One rank's process."""

    @property
    def rank(self) -> int: ...
    @property
    def alive(self) -> bool: ...


class Engine(Protocol):
    """An engine that generates for many clients at once."""

    @property
    def tokenizer(self) -> ServedTokenizer: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def ranks(self) -> Sequence[ServedRank]: ...
    @property
    def is_running(self) -> bool:
        """Whether requests may be served, now or once it is resumed."""
        ...

    @property
    def is_paused(self) -> bool: ...
    @property
    def is_sleeping(self) -> bool: ...
    @property
    def num_unfinished(self) -> int: ...
    @property
    def num_held(self) -> int:
        """Requests that wait for `resume_generation`."""
        ...

    @property
    def last_progress(self) -> float:
        """`time.monotonic()` of the latest output."""
        ...

    def generate(
        self,
        prompt: Sequence[int],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
        output_kind: Literal["delta"],
    ) -> ServedStream:
        """Submit at once, and yield what is new; cancelling the task that waits aborts within a step (case B91).

        Raises:
            BadRequest: the request can never be served.
            TryLater: it cannot be served now (case B107).
            EngineDead: the engine has ended.
        """
        ...

    async def compile_structured(self, structured: StructuredOutput) -> None:
        """Compile what a text has to be, ahead of `generate`. May take seconds, in which all else goes on.

        Raises:
            BadRequest: it cannot be compiled.
        """
        ...

    def lanes(self) -> Lanes:
        """Return the latest steps of every rank."""
        ...

    def stats(self) -> Sequence[RankStats]:
        """Return the latest state of each rank."""
        ...

    def group_violations(self) -> Mapping[str, int]:
        """Return how often ranks that step together violated invariants of their group, by id."""
        ...

    async def check_health(self) -> None:
        """Raise EngineDead if the engine has ended."""
        ...

    async def pause_generation(self, *, mode: PauseMode) -> None: ...
    async def resume_generation(self) -> None: ...
    async def sleep(self, *, mode: PauseMode) -> None: ...
    async def wake_up(self) -> None: ...
    async def reset_prefix_cache(self) -> bool: ...
    def stop_admission(self) -> None: ...
    async def shutdown(self, timeout: float = 5.0) -> None: ...
