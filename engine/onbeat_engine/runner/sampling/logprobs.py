"""Log probabilities of the model's own distribution: before biases, penalties, temperature and grammars."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from onbeat_engine.runner.sampling.transfer import to_device
from onbeat_engine.wire.messages import TokenLogprobs

ROWS_AT_ONCE = 64
"""Positions of a prompt whose log probabilities are worked out together; bounds the memory."""


class LogprobTensors(NamedTuple):
    """Log probabilities of n positions, k alternatives each."""

    logprob: Any
    """[n] of the token that is there."""
    rank: Any
    """[n] its rank; 1 = most likely, and so are all that are as likely as the most likely."""
    top_ids: Any
    """[n, k]"""
    top_logprobs: Any
    """[n, k]"""


def measure(logits: Any, tokens: Any, k: int) -> LogprobTensors:
    """Return log probabilities.

    Args:
        logits: [n, V].
        tokens: [n] ids.
        k: most likely tokens wanted.
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
    chosen = logits.gather(1, tokens[:, None])
    top = logits.topk(min(k, logits.shape[-1]), dim=-1).indices
    # Not logsumexp: on a CPU it, and exp, take twenty times as long where most terms underflow.
    logprobs = logits.log_softmax(-1)
    rank = (logits > chosen).sum(-1, dtype=torch.int32) + 1
    return LogprobTensors(logprobs.gather(1, tokens[:, None]).squeeze(1), rank, top, logprobs.gather(1, top))


def as_lists(tokens: Sequence[int], measured: LogprobTensors, ks: Sequence[int]) -> list[TokenLogprobs]:
    """Return log probabilities that have reached the host, `ks[i]` alternatives at position i."""
    columns = [tensor.tolist() for tensor in measured]
    return [
        TokenLogprobs(token, logprob, rank, tuple(ids[:k]), tuple(logprobs[:k]))
        for token, logprob, rank, ids, logprobs, k in zip(tokens, *columns, ks, strict=True)
    ]


def prompt_logprobs(logits: Any, token_ids: Sequence[int], k: int) -> list[TokenLogprobs]:
    """Return the log probabilities of tokens of a prompt, each after the tokens before it.

    Args:
        logits: [n, V]; row i is what the model says of the token after the i-th.
        token_ids: n ids; the i-th is the one that does come after it.
        k: most likely tokens wanted at each position.
    """
    lists: list[TokenLogprobs] = []
    with torch.inference_mode():
        for start in range(0, len(token_ids), ROWS_AT_ONCE):
            ids = token_ids[start : start + ROWS_AT_ONCE]
            tokens = to_device(ids, torch.int64, logits.device)
            lists += as_lists(ids, measure(logits[start : start + ROWS_AT_ONCE], tokens, k), [k] * len(ids))
    return lists
