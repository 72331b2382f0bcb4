"""Turns what a caller gives into what a rank is sent; what can never be served is refused here."""

import itertools
import operator
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from onbeat_engine.front.param_checks import check_ids, check_prompt_ids
from onbeat_engine.text.grammars import Grammars
from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.errors import BadRequest
from onbeat_engine.wire.messages import NewRequest
from onbeat_engine.wire.params import SamplingParams, StructuredOutput


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
        vocab_size: of the model, whose vocabulary may be larger or smaller than the tokenizer's; None: they are equal.
    """

    def __init__(self, tokenizer: Tokenizer, longest: int, vocab_size: int | None = None) -> None:
        self.tokenizer = tokenizer
        self.longest = longest
        self.vocab_size = tokenizer.vocab_size if vocab_size is None else vocab_size
        self._serial: Iterator[int] = itertools.count(1)
        self._grammars = Grammars(lambda: tokenizer, self.vocab_size)

    def prepare(
        self, prompt: str | Sequence[int], params: SamplingParams, priority: int = 0, cache_salt: str = ""
    ) -> Prepared:
        """Return what is to be sent. Ids are our own, whatever the client calls its request.

        Raises:
            BadRequest: it can never be served.
        """
        tokens = self._tokens(prompt)
        _check_readable("stop", params.stop, tuple[str, ...])
        _check_readable("sampling_params", params, SamplingParams)
        _check_readable("priority", priority, int)
        _check_readable("cache_salt", cache_salt, str)
        check_ids(params, self.vocab_size)
        if params.structured is not None:
            self.check_structured(params.structured)
        room = self.longest - len(tokens)
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        ends = () if params.ignore_eos else self.tokenizer.eos_token_ids
        stops = {*params.stop_token_ids, *(id for id in ends if 0 <= id < self.vocab_size)}
        seed = random.getrandbits(62) if params.seed is None else params.seed
        number = next(self._serial)
        salt = cache_salt and f"client's {cache_salt}"
        requests = []
        for child in range(params.n):
            own = params
            if params.n > 1:
                prompt_logprobs = params.prompt_logprobs if child == 0 else None
                own = msgspec.structs.replace(params, n=1, seed=_seed(seed + child), prompt_logprobs=prompt_logprobs)
            id = f"r{number}" if params.n == 1 else f"r{number}.{child}"
            requests.append(
                NewRequest(
                    id=id,
                    prompt=tokens,
                    params=own,
                    max_tokens=max_tokens,
                    stop_token_ids=tuple(sorted(stops)),
                    seed=_seed(seed + child),
                    priority=priority,
                    # What is found in the prefix cache is not computed, and has no log probabilities (case B109).
                    cache_salt=f"only {id}" if own.prompt_logprobs is not None else salt,
                )
            )
        return Prepared(prompt if isinstance(prompt, str) else None, tokens, params, requests)

    def _tokens(self, prompt: str | Sequence[int]) -> list[int]:
        most = self.longest - 1  # case B97; a text that is much longer is not even looked at
        tokens = self.tokenizer.encode(prompt, max_tokens=most) if isinstance(prompt, str) else _ids(prompt)
        check_prompt_ids(tokens, self.vocab_size)
        if len(tokens) > most:
            raise BadRequest(f"the prompt has {len(tokens)} tokens; at most {most} leave room for an answer", "prompt")
        return tokens

    def key_of(self, structured: StructuredOutput) -> bytes:
        """Return what tells a grammar from others.

        Raises:
            BadRequest: no rank could read it.
        """
        _check_readable("response_format", structured, StructuredOutput)
        return msgspec.msgpack.encode(structured)

    def check_structured(self, structured: StructuredOutput) -> None:
        """Compile a grammar, and keep it; thread-safe. The first one, and a large one, takes seconds.

        Raises:
            BadRequest: the schema is none, or structured output is not installed.
        """
        self.key_of(structured)
        self._grammars.check(structured)


def _ids(prompt: Iterable[object]) -> list[int]:
    """Return token ids as plain integers; arrays hold others."""
    try:
        return [operator.index(id) for id in prompt]  # type: ignore[arg-type]  # a TypeError is what is asked for
    except TypeError:
        raise BadRequest("the prompt is neither a text nor a list of token ids", "prompt") from None


def _check_readable(name: str, value: object, kind: Any) -> None:
    """Refuse what a rank could not read: a message that is no message, or that is lost, would be its end.

    Raises:
        BadRequest: with the name.
    """
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadRequest(f"{name} cannot be used: {error}", name) from None


def _seed(value: int) -> int:
    """Return the signed 64-bit integer that a sum of seeds wraps around to."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
