"""What a caller gets: vLLM's names, collected from the outputs of one or, with n > 1, several requests."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from onbeat_engine.front.preparing import Prepared
from onbeat_engine.text.detokenizer import Detokenizer
from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.messages import Output, TokenLogprobs

OutputKind = Literal["cumulative", "delta", "final"]
"""All so far in every output; only what is new; or one output at the end."""
FinishReason = Literal["stop", "length", "abort", "error"]


class Logprob(NamedTuple):
    """A token's log probability at one position."""

    logprob: float
    rank: int
    """1 = most likely; 0: not known."""
    decoded_token: str


Logprobs = dict[int, Logprob]
"""By token: the one that is there first, then the most likely ones."""


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[Logprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop string, or the token of `stop_token_ids`, that ended it."""
    error: str | None = None
    """What was wrong, for `error`."""

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A request, and what came for it. Times are seconds of `time.monotonic`; 0: not yet."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[Logprobs | None] | None = None
    """One entry per token of the prompt, the first is None; with deltas in the first output only."""
    num_cached_tokens: int = 0
    rank: int = -1
    """Where it is served, with n > 1 the first completion; -1: nowhere yet."""
    arrival_time: float = 0.0
    first_token_time: float = 0.0
    finished_time: float = 0.0


class Choice:
    """One completion as it grows."""

    def __init__(self, index: int, prepared: Prepared, tokenizer: Tokenizer) -> None:
        self.index = index
        self.params = prepared.params
        self.tokens: list[int] = []
        """Those whose text may be told; at the end all."""
        self.logprobs: list[Logprobs] = []
        self.cumulative = 0.0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, prepared.params)
        self._fresh: list[str] = []
        """Text that no output has told."""
        self._told_tokens = 0
        self._told_end = False

    def push(self, output: Output) -> bool:
        """Take an output; True: a stop string was met, which the rank does not know yet."""
        if self.finish_reason is not None:
            return False
        detokenizer, reason = self._detokenizer, output.finish_reason
        before = detokenizer.num_tokens
        chunk = detokenizer.update(output.tokens, stop_token=output.stop_token is not None, finished=reason is not None)
        self.tokens += chunk.token_ids
        self._fresh.append(chunk.text)
        if output.logprobs is not None:
            self._add_logprobs(output.logprobs[: detokenizer.num_tokens - before])
        if chunk.stop is not None:
            self.finish_reason, self.stop_reason = "stop", chunk.stop
            return reason is None
        if reason is not None:
            self.finish_reason, self.error = _reason(reason), output.error
            if output.stop_token in self.params.stop_token_ids:
                self.stop_reason = output.stop_token
        return False

    def fail(self, why: str) -> None:
        """End it with an error."""
        if self.finish_reason is None:
            self.finish_reason, self.error = "error", why

    def take(self, kind: OutputKind) -> CompletionOutput | None:
        """Return all so far, or what is new; None: nothing is."""
        if kind == "delta" and not self.has_news:
            return None
        if kind == "delta":
            text, start = "".join(self._fresh), self._told_tokens
        else:
            text, start = self._detokenizer.text, 0
        self._fresh.clear()
        self._told_tokens, self._told_end = len(self.tokens), self.finish_reason is not None
        wanted = self.params.logprobs is not None
        return CompletionOutput(
            self.index,
            text,
            self.tokens[start:],
            self.cumulative if wanted else None,
            self.logprobs[start : len(self.tokens)] if wanted else None,
            self.finish_reason,
            self.stop_reason,
            self.error,
        )

    @property
    def has_news(self) -> bool:
        """Whether there is something that no output has told."""
        return len(self.tokens) > self._told_tokens or (self.finish_reason is not None and not self._told_end)

    def _add_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        for each in logprobs:
            self.cumulative += each.logprob
            self.logprobs.append(by_token(each, self._tokenizer))


class RequestState:
    """One request of a caller, as it grows.

    Args:
        request_id: the caller's name for it.
        prepared: what was sent.
        tokenizer: the model's.
    """

    def __init__(self, request_id: str, prepared: Prepared, tokenizer: Tokenizer) -> None:
        self.request_id = request_id
        self.prepared = prepared
        self.choices = [Choice(index, prepared, tokenizer) for index in range(prepared.params.n)]
        self.refused: str | None = None
        """What was wrong with it, if the scheduler refused it."""
        self.arrival_time = time.monotonic()
        self.first_token_time = 0.0
        self.finished_time = 0.0
        self.num_cached_tokens = 0
        self.rank = -1
        self._tokenizer = tokenizer
        self._prompt_logprobs: list[Logprobs | None] | None = None
        self._prompt_told = False
        self._index = {request.id: index for index, request in enumerate(prepared.requests)}

    @property
    def finished(self) -> bool:
        """Whether every completion has ended (case B102: each by itself)."""
        return all(choice.finish_reason is not None for choice in self.choices)

    @property
    def unfinished_ids(self) -> list[str]:
        """The ids of those that have not."""
        return [id for id, index in self._index.items() if self.choices[index].finish_reason is None]

    def push(self, output: Output, rank: int = -1) -> bool:
        """Take an output of a rank; True: that is to be told that this request has ended."""
        if self.rank < 0:
            self.rank = rank
        if output.refused:
            self.refused = output.error
        if output.tokens and not self.first_token_time:
            self.first_token_time = time.monotonic()
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        if output.tokens and self._prompt_logprobs is None and self.prepared.params.prompt_logprobs is not None:
            logprobs = output.prompt_logprobs
            if logprobs is not None or len(self.prepared.prompt_token_ids) == 1:
                self._prompt_logprobs = [None, *(by_token(each, self._tokenizer) for each in logprobs or ())]
        stopped = self.choices[self._index[output.id]].push(output)
        if self.finished and not self.finished_time:
            self.finished_time = time.monotonic()
        return stopped

    def fail(self, id: str, why: str) -> None:
        """End a completion with an error."""
        self.choices[self._index[id]].fail(why)

    def take(self, kind: OutputKind) -> RequestOutput | None:
        """Return what there is to tell; None: nothing new."""
        finished = self.finished
        if not finished and (kind == "final" or not any(choice.has_news for choice in self.choices)):
            return None
        outputs = [output for choice in self.choices if (output := choice.take(kind)) is not None]
        prompt_logprobs = None if kind == "delta" and self._prompt_told else self._prompt_logprobs
        self._prompt_told = self._prompt_told or prompt_logprobs is not None
        return RequestOutput(
            self.request_id,
            self.prepared.prompt,
            self.prepared.prompt_token_ids,
            outputs,
            finished,
            prompt_logprobs,
            self.num_cached_tokens,
            self.rank,
            self.arrival_time,
            self.first_token_time,
            self.finished_time,
        )


def by_token(logprobs: TokenLogprobs, tokenizer: Tokenizer) -> Logprobs:
    """Return the log probabilities at one position by token: the one that is there, then the most likely ones."""
    table = {logprobs.token: Logprob(logprobs.logprob, logprobs.rank, tokenizer.token_text(logprobs.token))}
    for rank, (token, logprob) in enumerate(zip(logprobs.top_tokens, logprobs.top_logprobs, strict=True), 1):
        table.setdefault(token, Logprob(logprob, rank, tokenizer.token_text(token)))
    return table


def _reason(text: str) -> FinishReason:
    assert text in ("stop", "length", "abort", "error")
    return text  # type: ignore[return-value]  # mypy does not narrow a str by membership
