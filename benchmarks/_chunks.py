"""What the scheduler's benchmark measures of a step in which many prompts are computed in chunks.

Every chunk leaves to the decodes behind it what they are due, so each has to know how many there are. The scheduler
lists them once a step; `Recounts` looks through the rest of the running list for every chunk.
"""

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from time import perf_counter_ns
from typing import NamedTuple

from benchmarks._measure import build_scheduler, median_us, sampled
from onbeat_reference import Request, Scheduler
from onbeat_reference.lifecycle import InFlight

# The peer's, by the same names; a test compares them.
CHUNK_TOKENS = 4
"""Tokens of one chunk in one step (`long_prefill_token_threshold`)."""
CHUNKED_PROMPT_TOKENS = 256

CHUNK_STEPS, CHUNK_WARMUP = 20, 4
"""Measured and unmeasured steps of each round; all prompts are longer than the chunks of these steps."""


class _Listed(tuple[Request, ...]):
    """Running requests that know which of them is being served."""

    at = -1

    def __iter__(self) -> Iterator[Request]:
        for self.at, request in enumerate(super().__iter__()):  # the position is the point
            yield request


class Recounts(Scheduler):
    """The scheduler with the plain definition of what a chunk owes: a look at everybody behind it, for each chunk."""

    listed = _Listed()

    def _serve(
        self, flight: InFlight, requests: Sequence[Request], hold: bool, owed: Sequence[int] | None = None
    ) -> tuple[list[Request], list[int]]:
        self.listed = _Listed(requests)
        return super()._serve(flight, self.listed, hold, owed)

    def _owed(self, behind: deque[Request], now: int) -> int:
        return len(self._decodes(self.listed[self.listed.at + 1 :], now))


class ChunkRow(NamedTuple):
    """Median microseconds of `schedule()` and `update()` with so many chunks."""

    chunks: int
    onbeat_us: float
    recounts_us: float
    vllm_us: float | None

    @property
    def cheaper(self) -> float:
        """How many steps fit into one that counts again for every chunk."""
        return self.recounts_us / self.onbeat_us

    @property
    def ratio(self) -> float | None:
        """How many of our steps fit into one of vLLM's."""
        return None if self.vllm_us is None else self.vllm_us / self.onbeat_us


def measure_chunks(kind: type[Scheduler], chunks: int) -> float:
    """Measure a scheduler of its own; return the median microseconds of a step of so many chunks."""
    scheduler = build_scheduler(False, CHUNK_TOKENS, kind)
    for number in range(chunks):
        scheduler.add_request(Request(f"r{number}", [number] * CHUNKED_PROMPT_TOKENS, 1))
    gc.collect()
    taken = [_timed_step(scheduler, chunks) for _ in range(1 + CHUNK_WARMUP + CHUNK_STEPS)]
    return median_us(taken[1 + CHUNK_WARMUP :])


def _timed_step(scheduler: Scheduler, chunks: int) -> int:
    """Take one step of nothing but chunks; return the nanoseconds of `schedule()` and `update()`."""
    began = perf_counter_ns()
    step = scheduler.schedule()
    schedule_ns = perf_counter_ns() - began
    if len(step.scheduled) != chunks or sum(step.scheduled.values()) != chunks * CHUNK_TOKENS:
        raise RuntimeError(f"a step of {chunks} chunks scheduled {sum(step.scheduled.values())} tokens")
    outputs = sampled(scheduler, step, 1)
    began = perf_counter_ns()
    scheduler.update(step, outputs)
    return schedule_ns + perf_counter_ns() - began
