"""Which requests a benchmark sends, and when: made up, or of an arrival trace.

Everything comes from the seed: the same arguments give the same requests on every machine.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onbeat_reference.workload import BLOCK_TOKENS, Arrival
from onbeat_spec.errors import WorkloadError

FIRST_ID = 100
"""Token ids below it are left out where there is room: special tokens are mostly there."""
_TEXT = """
the of and to in is was for that on as with by at from it his an were are which this be had or not one their its new
after but who they two her she been other when there all during into school time may years more most only over city
some world would where later up such used many can state about national out known university united then made
"""
WORDS = tuple(_TEXT.split())
"""Each is one token, with the blank before it, in the usual English vocabularies."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One request to send."""

    at: float
    """Seconds after the start."""
    prompt: str | list[int]
    prompt_len: int
    """Tokens; exact only for a prompt of token ids."""
    output_len: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long made-up requests are, in tokens.

    Args:
        range_ratio: lengths are drawn evenly from (1 - ratio) to (1 + ratio) times these, as vLLM does it.
        prefix_len: tokens before them that all prompts share.
    """

    input_len: int = 1024
    output_len: int = 128
    range_ratio: float = 0.0
    prefix_len: int = 0


def random_requests(
    count: int, lengths: Lengths, times: Sequence[float], *, seed: int, vocab_size: int | None
) -> list[Planned]:
    """Make requests up.

    Args:
        times: when, in seconds after the start; as many as `count`.
        vocab_size: prompts are token ids below it; None: prompts are words, of about one token each.
    """
    draw = random.Random(seed)
    prefix = _tokens(draw, lengths.prefix_len, vocab_size)
    planned = []
    for at in times[:count]:
        own = _tokens(draw, _length(draw, lengths.input_len, lengths.range_ratio), vocab_size)
        output = _length(draw, lengths.output_len, lengths.range_ratio)
        planned.append(_planned(at, prefix + own, output, vocab_size))
    return planned


def trace_requests(
    arrivals: Sequence[Arrival],
    times: Sequence[float],
    *,
    seed: int,
    vocab_size: int | None,
    max_input_len: int | None = None,
    max_output_len: int | None = None,
) -> list[Planned]:
    """Make requests as long as those of a trace; prompts that begin with the same blocks there do so here.

    Raises:
        WorkloadError: there is none.
    """
    if not arrivals:
        raise WorkloadError("the trace has no request to send; raise --num-prompts")
    planned = []
    for index, (arrival, at) in enumerate(zip(arrivals, times, strict=True)):
        length = min(arrival.prompt_tokens, max_input_len or arrival.prompt_tokens)
        tokens: list[int] = []
        for block in arrival.block_hashes:
            tokens += _tokens(random.Random(f"{seed}/block/{block}"), BLOCK_TOKENS, vocab_size)
        rest = max(0, length - len(tokens))
        tokens += _tokens(random.Random(f"{seed}/request/{index}"), rest, vocab_size)
        output = min(arrival.output_tokens, max_output_len or arrival.output_tokens)
        planned.append(_planned(at, tokens[:length], output, vocab_size))
    return planned


def arrival_times(rate: float, burstiness: float, *, seed: int) -> Iterator[float]:
    """Yield when requests come, without end; seconds after the start, the first at 0.

    Args:
        rate: requests per second; infinite: all at once.
        burstiness: shape of the gamma distributed gaps: 1 is a Poisson process, less comes in bursts, more is more
            even. The coefficient of variation is 1 / sqrt(burstiness).
    """
    draw = random.Random(f"{seed}/arrivals")
    at = 0.0
    while True:
        yield at
        if rate != float("inf"):
            at += draw.gammavariate(burstiness, 1 / (rate * burstiness))


def _length(draw: random.Random, length: int, ratio: float) -> int:
    return max(1, draw.randint(int(length * (1 - ratio)), int(length * (1 + ratio))))


def _tokens(draw: random.Random, count: int, vocab_size: int | None) -> list[int]:
    """Draw token ids, or indices of words."""
    if vocab_size is None:
        return [draw.randrange(len(WORDS)) for _ in range(count)]
    lowest = FIRST_ID if vocab_size > 2 * FIRST_ID else 0
    return [draw.randrange(lowest, vocab_size) for _ in range(count)]


def _planned(at: float, tokens: list[int], output_len: int, vocab_size: int | None) -> Planned:
    prompt: str | list[int] = tokens if vocab_size is not None else " ".join(WORDS[token] for token in tokens)
    return Planned(at, prompt, len(tokens), output_len)
