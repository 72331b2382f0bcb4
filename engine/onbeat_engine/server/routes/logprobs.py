"""Log probabilities in the three forms that answers have them in."""

from collections.abc import Callable, Sequence
from typing import Any

from onbeat_engine.server.engine import ServedLogprob, ServedLogprobs
from onbeat_engine.server.response_bodies import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)

LOWEST = -9999.0
"""JSON has no minus infinity, nor not-a-number."""


def value(chance: ServedLogprob) -> float:
    """Return a log probability that JSON can hold."""
    return chance.logprob if chance.logprob > LOWEST else LOWEST  # so is not-a-number


def completion(
    ids: Sequence[int], chances: Sequence[ServedLogprobs | None], decode: Callable[[int], str], offset: int
) -> CompletionLogprobs:
    """Return them as `/v1/completions` does.

    Args:
        ids: the tokens that are there.
        chances: as many; None: nothing is known of it (the first token of a prompt).
        decode: the text of a token of which nothing is known.
        offset: characters before the first of them.
    """
    told = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
    for token, known in zip(ids, chances, strict=True):
        text = decode(token) if known is None else known[token].decoded_token
        told.text_offset.append(offset)
        told.tokens.append(text)
        told.token_logprobs.append(None if known is None else value(known[token]))
        told.top_logprobs.append(None if known is None else by_text(known))
        offset += len(text)
    return told


def by_text(known: ServedLogprobs) -> dict[str, float]:
    """Return the likely tokens by their texts; of several with the same one, the likeliest."""
    ordered = sorted(known.values(), key=lambda chance: chance.logprob)
    return {chance.decoded_token: value(chance) for chance in ordered}


def chat(ids: Sequence[int], chances: Sequence[ServedLogprobs], top: int) -> ChatLogprobs:
    """Return them as `/v1/chat/completions` does, with this many likely tokens for each."""
    content = []
    for token, known in zip(ids, chances, strict=True):
        likely = sorted((chance for chance in known.values() if chance.rank <= top), key=lambda chance: chance.rank)
        content.append(TokenLogprob(**entry(known[token]), top_logprobs=[TopLogprob(**entry(each)) for each in likely]))
    return ChatLogprobs(content=content)


def entry(chance: ServedLogprob) -> dict[str, Any]:
    """Return one token as chat's form has it."""
    return {
        "token": chance.decoded_token,
        "logprob": value(chance),
        "bytes": list(chance.decoded_token.encode("utf-8", "replace")),
    }


def prompt(chances: Sequence[ServedLogprobs | None] | None) -> PromptLogprobs | None:
    """Return a prompt's as vLLM's field `prompt_logprobs` has them; None stays None."""
    if chances is None:
        return None
    return [None if known is None else {token: ranked(each) for token, each in known.items()} for known in chances]


def ranked(chance: ServedLogprob) -> dict[str, Any]:
    """Return one token as `prompt_logprobs` has it."""
    return {"logprob": value(chance), "rank": chance.rank, "decoded_token": chance.decoded_token}
