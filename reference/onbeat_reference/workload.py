"""When requests come and how long they are: real traces, and a generator where there is none.

Two forms are read, told apart by their content:

- Azure CSV (AzurePublicDataset, LLM inference traces 2023 and 2024): header TIMESTAMP,ContextTokens,GeneratedTokens;
- Mooncake JSONL (kvcache-ai/Mooncake, FAST25-release/traces): one object per line with timestamp in milliseconds,
  input_length, output_length and, if known, hash_ids, one for each 512 tokens of the prompt.
"""

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from onbeat_spec.errors import WorkloadError

BLOCK_TOKENS = 512
"""Prompt tokens that one block hash stands for; the last one of a prompt may stand for fewer."""

MAX_HASH = 2**62 - 1
MAX_TOKENS = 999_999_999

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


class Arrival(NamedTuple):
    """One request of a workload."""

    time_s: float
    """Seconds since the first request."""
    prompt_tokens: int
    output_tokens: int
    """Tokens that it samples before it ends."""
    block_hashes: tuple[int, ...] = ()
    """What the leading blocks of `BLOCK_TOKENS` prompt tokens contain: equal prefixes of these, equal tokens. Tokens
    beyond them are the request's own."""


def read(path: str | Path) -> list[Arrival]:
    """Read a trace of arrivals, in the order of the file.

    Nothing is skipped, sorted or repaired: a trace that is not what its form says is damaged, or is none. In
    particular times must not go back, and a request without output is refused: the real traces have none, and a
    server that is asked for no token has nothing to schedule. A CSV line cut within its last number cannot be told
    from a whole one, since Azure's own files end without a line break; any other cut is found.

    Args:
        path: an Azure CSV or a Mooncake JSONL file, UTF-8.

    Raises:
        WorkloadError: the file cannot be read, or a line is not as it must be. One line: file, line number, what was
            wrong, what to do.
    """
    arrivals: list[Arrival] = []
    start = before = 0
    line = 0
    parse: Callable[[str], Row] | None = None
    try:
        with Path(path).open("rb") as file:
            for line, raw in enumerate(file, 1):
                text = _text(raw, first=line == 1)
                if parse is None:
                    parse = _form(text)
                    if parse is not _json_row:
                        continue
                time_ns, prompt, output, hashes = parse(text)
                if not arrivals:
                    start = time_ns
                elif time_ns < before:
                    raise _Wrong(
                        f"the time lies {(before - time_ns) / 1e9:g} s before that of the line above",
                        "put the lines into the order of their times",
                    )
                before = time_ns
                arrivals.append(Arrival((time_ns - start) / 1e9, prompt, output, hashes))
    except _Wrong as wrong:
        raise WorkloadError(f"{path}, line {line}: {wrong.fault}; {wrong.remedy}") from None
    except OSError as error:
        raise WorkloadError(
            f"{path}: cannot be read ({error.strerror}); give the path of an Azure CSV or a Mooncake JSONL file"
        ) from error
    if not arrivals:
        raise WorkloadError(
            f"{path}, line {line or 1}: the file ends before any request; give a file that holds at least one"
        )
    return arrivals


Row = tuple[int, int, int, tuple[int, ...]]
"""Time in nanoseconds, prompt tokens, output tokens, block hashes."""


class _Wrong(Exception):
    """What is wrong with a line, and what to do."""

    def __init__(self, fault: str, remedy: str) -> None:
        super().__init__(fault)
        self.fault = fault
        self.remedy = remedy


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _text(raw: bytes, first: bool) -> str:
    try:
        text = raw.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise _Wrong(
            f"byte {raw[error.start]:#04x} is not UTF-8", "unpack it if it is compressed, or convert it to UTF-8"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def _form(text: str) -> Callable[[str], Row]:
    if text.startswith("{"):
        return _json_row
    if text == HEADER:
        return _csv_row
    raise _Wrong(
        f"{_shown(text)} is neither the header {HEADER} nor a JSON object",
        "give an Azure CSV or a Mooncake JSONL file",
    )


# --- Azure CSV -----------------------------------------------------------------------------------------------------

_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:(Z)|([+-])(\d\d):?([0-5]\d))?", re.ASCII)
_COUNT = re.compile(r"\d{1,9}", re.ASCII)


def _csv_row(text: str) -> Row:
    fields = text.split(",")
    if len(fields) != 3:
        raise _Wrong(
            f"{_shown(text)} has {len(fields)} field{'s' if len(fields) > 1 else ''} instead of 3",
            "complete or remove the line",
        )
    return (_time_ns(fields[0]), _count("ContextTokens", fields[1]), _count("GeneratedTokens", fields[2]), ())


def _time_ns(text: str) -> int:
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        date, clock, fraction, _utc, sign, hours, minutes = match.groups()
        moment = datetime.fromisoformat(f"{date} {clock}")
    except ValueError:
        raise _Wrong(
            f"TIMESTAMP is {_shown(text)}; it must look like 2023-11-16 18:15:46.6805900, with or without a time zone",
            "correct or remove the line",
        ) from None
    # A time without a zone counts as UTC.
    seconds = moment.toordinal() * 86_400 + moment.hour * 3600 + moment.minute * 60 + moment.second
    if sign:
        offset = int(hours) * 3600 + int(minutes) * 60
        seconds += -offset if sign == "+" else offset
    return seconds * 10**9 + int((fraction or "").ljust(9, "0"))


def _count(name: str, text: str) -> int:
    if not _COUNT.fullmatch(text) or (count := int(text)) < 1:
        _refuse(name, text, f"a whole number from 1 to {MAX_TOKENS:,}")
    return count


def _refuse(name: str, value: object, rule: str) -> NoReturn:
    raise _Wrong(f"{name} is {_shown(value)}; it must be {rule}", "correct or remove the line")


# --- Mooncake JSONL ------------------------------------------------------------------------------------------------


def _json_row(text: str) -> Row:
    try:
        record = json.loads(text)
    # ValueError: no JSON, or a number of thousands of digits; RecursionError: thousands of brackets.
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise _Wrong(f"{_shown(text)} is no whole JSON object", "complete or remove the line")
    for name in ("timestamp", "input_length", "output_length"):
        if name not in record:
            raise _Wrong(f"{name} is missing", "complete or remove the line")
    time = record["timestamp"]
    # Written so that NaN, which json reads, fails it.
    if type(time) not in (int, float) or not 0 <= time <= 1e15:
        _refuse("timestamp", time, "a number of milliseconds, 0 or more")
    prompt = _json_count(record, "input_length")
    return round(time * 1e6), prompt, _json_count(record, "output_length"), _hashes(record, prompt)


def _json_count(record: dict[str, Any], name: str) -> int:
    count: object = record[name]
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_TOKENS:
        _refuse(name, count, f"a whole number from 1 to {MAX_TOKENS:,}")
    return count


def _hashes(record: dict[str, Any], prompt: int) -> tuple[int, ...]:
    ids = record.get("hash_ids", [])
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i <= MAX_HASH for i in ids):
        _refuse("hash_ids", ids, "a list of whole numbers from 0 to 2**62 - 1")
    most = -(-prompt // BLOCK_TOKENS)
    if len(ids) > most:
        raise _Wrong(
            f"hash_ids has {len(ids)} ids, and {prompt} tokens are {most} blocks of {BLOCK_TOKENS}",
            f"correct the line, or convert the file to blocks of {BLOCK_TOKENS} tokens",
        )
    return tuple(ids)


# --- The generator -------------------------------------------------------------------------------------------------

REQUESTS_PER_S = 5.5
PROMPT_P50, PROMPT_P99 = 1000, 4200
OUTPUT_P50, OUTPUT_P99 = 130, 600
LONGEST_PROMPT, LONGEST_OUTPUT = 16_000, 2000
SHARING = 0.3
"""Share of requests that begin with one of `PREFIXES`, as far as their prompt holds whole blocks of it."""
PREFIXES = ((0,), (1, 2), (3,), (4, 5, 6, 7), (8, 9), (10, 11, 12))
"""Block hashes of the shared prefixes, the most popular first; the n-th is drawn with a weight of 1/n."""

_Z99 = 2.326
"""The standard normal distribution's 99th percentile."""


def arrivals(name: str | Path, seed: int = 0) -> list[Arrival]:
    """Return the built-in workload of this seed, if the name is `builtin`, else what the file of this name holds.

    Raises:
        WorkloadError: as `read`.
    """
    return builtin(seed) if name == "builtin" else read(name)


def builtin(seed: int = 0, requests: int = 2000) -> list[Arrival]:
    """Generate a workload of the shape of a public chat trace.

    Arrivals are bursty: gamma distributed gaps of shape 1/2, whose coefficient of variation is 1.41 (1 would be a
    Poisson process), 5.5 requests/s on average. Lengths are lognormal: prompts p50 1,000 and p99 4,200 tokens, outputs
    p50 130 and p99 600 tokens (cf. the Azure LLM inference trace 2023, conversations: 1,020 and 4,142, 129 and 601).
    Up to 3 in 10 requests share one of six prefixes of 512 to 2,048 tokens.

    Args:
        seed: the same seed gives the same workload, on every Python version; an integer, its sign does not matter.
        requests: how many, at least 1.

    Raises:
        WorkloadError: `requests` is less than 1.
    """
    if requests < 1:
        raise WorkloadError(f"requests is {requests}; a workload needs at least 1")
    # Of all that the random module draws, only the sequence of random() is promised to stay across versions.
    draw = random.Random(seed).random
    normal = _normals(draw)
    time_s = 0.0
    arrivals = []
    for _ in range(requests):
        prompt = _lognormal(next(normal), PROMPT_P50, PROMPT_P99, LONGEST_PROMPT)
        output = _lognormal(next(normal), OUTPUT_P50, OUTPUT_P99, LONGEST_OUTPUT)
        hashes: tuple[int, ...] = ()
        if draw() < SHARING:
            hashes = _prefix(draw())[: prompt // BLOCK_TOKENS]
        # Rounded, so that the last bits of this machine's cos() and log() do not show.
        arrivals.append(Arrival(round(time_s, 6), prompt, output, hashes))
        # A squared normal is gamma distributed with shape 1/2, and its mean is 1.
        time_s += next(normal) ** 2 / REQUESTS_PER_S
    return arrivals


def _normals(draw: Callable[[], float]) -> Iterator[float]:
    """Standard normal numbers, by the method of Box and Muller."""
    while True:
        radius = math.sqrt(-2 * math.log(1 - draw()))
        angle = 2 * math.pi * draw()
        yield radius * math.cos(angle)
        yield radius * math.sin(angle)


def _lognormal(z: float, p50: int, p99: int, longest: int) -> int:
    tokens = p50 * math.exp(math.log(p99 / p50) * z / _Z99)
    return max(1, min(longest, round(tokens)))


def _prefix(u: float) -> tuple[int, ...]:
    """The shared prefix that a number from [0, 1) chooses."""
    u *= sum(1 / rank for rank in range(1, len(PREFIXES) + 1))
    for rank, prefix in enumerate(PREFIXES, 1):
        u -= 1 / rank
        if u < 0:
            return prefix
    return PREFIXES[-1]
