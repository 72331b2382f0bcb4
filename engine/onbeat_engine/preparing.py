"""From what a caller gives to what a rank is sent; what can never be served is refused here, before anything is sent."""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from onbeat_engine.errors import BadRequest
from onbeat_engine.messages import NewRequest
from onbeat_engine.sampling_params import SamplingParams


class Detokenizer(Protocol):
    """The text of one completion as its tokens come."""

    text: str
    """What may be shown: nothing that could still become part of a stop string, no character cut in two."""
    num_tokens: int
    """The tokens whose text that is."""
    stopped: str | None
    """The stop string that was met."""

    def push(self, tokens: Sequence[int]) -> None:
        """Take tokens; none that come after a stop string was met."""
        ...

    def finish(self) -> None:
        """No token follows: what was held back may be shown."""
        ...


class Tokenizer(Protocol):
    """What the front end needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        ...

    @property
    def eos_token_ids(self) -> Sequence[int]:
        """Tokens that end a text."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        ...

    def detokenizer(self, prompt: Sequence[int], params: SamplingParams) -> Detokenizer:
        """Return the detokenizer of one completion."""
        ...


class Prepared(NamedTuple):
    """One request of a caller."""

    prompt: str | None
    """If it was given as text."""
    prompt_token_ids: list[int]
    params: SamplingParams
    requests: list[NewRequest]
    """One for each of its n completions."""


class Preparer:
    """Checks requests and fills in what the caller left open.

    Args:
        tokenizer: the model's.
        longest: most tokens, prompt included, that a request may know (`Config.longest_request`).
    """

    def __init__(self, tokenizer: Tokenizer, longest: int) -> None:
        self.tokenizer = tokenizer
        self.longest = longest
        self._serial: Iterator[int] = itertools.count(1)

    def prepare(self, prompt: str | Sequence[int], params: SamplingParams, priority: int = 0) -> Prepared:
        """Return what is to be sent. Ids are our own, whatever the client calls its request.

        Raises:
            BadRequest: it can never be served.
        """
        tokens = self._tokens(prompt)
        self._check(params)
        room = self.longest - len(tokens)
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else self.tokenizer.eos_token_ids)}
        seed = random.getrandbits(62) if params.seed is None else params.seed
        number = next(self._serial)
        requests = []
        for child in range(params.n):
            own = params
            if params.n > 1:
                told = params.prompt_logprobs if child == 0 else None
                own = msgspec.structs.replace(params, n=1, seed=seed + child, prompt_logprobs=told)
            id = f"r{number}" if params.n == 1 else f"r{number}.{child}"
            requests.append(
                NewRequest(
                    id=id,
                    prompt=tokens,
                    params=own,
                    max_tokens=max_tokens,
                    stop_token_ids=tuple(sorted(stops)),
                    seed=seed + child,
                    priority=priority,
                    # What is found in the prefix cache is not computed, and has no log probabilities (case B109).
                    cache_salt=id if own.prompt_logprobs is not None else "",
                )
            )
        return Prepared(prompt if isinstance(prompt, str) else None, tokens, params, requests)

    def _tokens(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            try:
                prompt.encode("utf-8")
            except UnicodeEncodeError as error:
                raise BadRequest(f"the prompt is not valid text: {error.reason}", "prompt") from None
            tokens = self.tokenizer.encode(prompt)
        else:
            tokens = list(prompt)
            self._known(tokens, "prompt")
        if not tokens:  # case B100
            raise BadRequest("the prompt has no tokens; it must have at least 1", "prompt")
        if len(tokens) >= self.longest:  # case B97
            raise BadRequest(
                f"the prompt has {len(tokens)} tokens; at most {self.longest - 1} leave room for an answer", "prompt"
            )
        return tokens

    def _check(self, params: SamplingParams) -> None:
        self._known(params.stop_token_ids, "stop_token_ids")
        self._known(params.logit_bias, "logit_bias")

    def _known(self, tokens: Sequence[int] | dict[int, float], name: str) -> None:
        size = self.tokenizer.vocab_size
        wrong = next((token for token in tokens if not isinstance(token, int) or not 0 <= token < size), None)
        if wrong is not None:
            raise BadRequest(f"{name} has token {wrong!r}; the model knows 0 .. {size - 1}", name)
