"""CUDA graphs of decode-only steps: one for each size of a ladder; a step replays the smallest that holds it."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch


class Captured(NamedTuple):
    """A forward that can be run again."""

    replay: Callable[[], None]
    logits: Any
    """Where each replay leaves its outcome, until the next one."""


Forward = Callable[[], Any]
Capture = Callable[[Forward], Captured]


def ladder(most: int) -> list[int]:
    """Return the sizes to capture, up to `most` rows: close together where steps are short, 16 apart at the end."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    return [size for size in sizes if size < most] + [most] if most <= sizes[-1] else sizes


def size_for(sizes: Sequence[int], num_rows: int) -> int:
    """Return the smallest of the ascending sizes that holds so many rows; 0: none does."""
    index = bisect_left(sizes, num_rows)
    return sizes[index] if index < len(sizes) else 0


class CudaCapture:
    """Captures CUDA graphs into one memory pool; the first should be the largest, the rest then fit into its memory."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream = torch.cuda.Stream()

    def __call__(self, forward: Forward) -> Captured:
        """Run a forward once, so that everything is compiled and allocated, then capture it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            forward()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog asks for events from a thread of its own meanwhile, which must not spoil the capture.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            logits = forward()
        self._pool = self._pool or graph.pool()
        return Captured(graph.replay, logits)


class DecodeGraphs:
    """The captured sizes.

    Args:
        sizes: in ascending order.
        forward: prepares a step of so many padding rows, and returns what runs it: inputs to logits.
        capture: how a forward is captured.
    """

    def __init__(self, sizes: list[int], forward: Callable[[int], Forward], capture: Capture) -> None:
        self._captured = {size: capture(forward(size)) for size in reversed(sizes)}

    def replay(self, size: int) -> Any:
        """Run the step whose inputs are in the buffers; return its logits [size, V], good until the next replay."""
        captured = self._captured[size]
        captured.replay()
        return captured.logits
