"""Measure the reference scheduler's steps, beside those of vLLM's own, and what it costs to check a scheduler.

Four figures, none of which needs a GPU or a model:

    scheduler   median microseconds of `schedule()` and `update()` while n requests decode, prefix caching off and on;
                with --vllm-python beside those of vLLM's Scheduler (`_vllm_peer.py`), in the same run
    chunks      the same while n prompts are computed in chunks, also beside a scheduler that counts the decodes behind
                each chunk anew (`_chunks.py`)
    monitor     what watching every step adds
    search      checked steps per second of the audit's exhaustive search

Both sides get the same shape: prompts of 32 tokens, blocks of 16, as many warm-up and measured steps. Outputs are made
up outside the timed region, and the garbage collector stays on. The sides take turns in rounds, so that a busy machine
slows all of them down, and the round with the least medians counts: a step of milliseconds loses more to other jobs
than one of microseconds, so any other choice would flatter the faster side.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks._chunks import CHUNK_STEPS, CHUNK_WARMUP, ChunkRow, Recounts, measure_chunks
from benchmarks._measure import (
    BLOCK_SIZE,
    FULL,
    LOOK_EVERY,
    MAX_MODEL_LEN,
    MAX_SEQS,
    NUM_BLOCKS,
    PROMPT_TOKENS,
    QUICK,
    Effort,
    Shape,
    Times,
    Watching,
    measure,
    measure_search,
    measure_watch,
)
from benchmarks._report import Row, as_json, machine, show
from onbeat_reference import Scheduler

PEER = Path(__file__).with_name("_vllm_peer.py")

T = TypeVar("T", Times, Watching)


class PeerError(Exception):
    """vLLM's side could not be measured."""


# --- vLLM's side -----------------------------------------------------------------------------------------------------


class Peer:
    """vLLM's scheduler, measured by the Python of an environment that has it."""

    def __init__(self, python: str) -> None:
        self.python = python
        self.version = ""
        """vLLM's, once it has been measured."""

    def measure(self, shapes: Sequence[Shape], effort: Effort) -> list[Times]:
        """Measure every shape, in one process.

        Raises:
            PeerError: it cannot be started, or says that it cannot measure.
        """
        report = self._run(
            "--decodes=" + ",".join(str(n) for n in dict.fromkeys(shape.decodes for shape in shapes)),
            "--prefix-caching=off,on",
            f"--steps={effort.steps}",
            f"--warmup={effort.warmup}",
        )
        self.version = report["vllm"]
        rows = {Shape(row["decodes"], row["prefix_caching"]): row for row in report["rows"]}
        return [Times(*(rows[shape][name] for name in Times._fields)) for shape in shapes]

    def measure_chunks(self, chunks: Sequence[int]) -> list[float]:
        """Measure steps of so many chunks, in one process; return the medians of both calls.

        Raises:
            PeerError: as `measure`.
        """
        numbers = ",".join(map(str, chunks))
        rows = self._run(f"--chunks={numbers}", f"--steps={CHUNK_STEPS}", f"--warmup={CHUNK_WARMUP}")["rows"]
        return [next(row["both_us"] for row in rows if row["chunks"] == number) for number in chunks]

    def _run(self, *arguments: str) -> dict[str, Any]:
        try:
            run = subprocess.run([self.python, str(PEER), *arguments], capture_output=True, text=True, check=False)
        except OSError as error:
            raise PeerError(f"{self.python} cannot be run: {error.strerror}") from error
        if run.returncode != 0:
            last = run.stderr.strip().splitlines()[-1:] or [f"{PEER.name} ended with exit code {run.returncode}"]
            raise PeerError(last[0])
        try:
            report: dict[str, Any] = json.loads(run.stdout)
        except ValueError as error:
            raise PeerError(f"{self.python} printed something else than results") from error
        return report


# --- All of it -------------------------------------------------------------------------------------------------------


def measure_rows(
    shapes: Sequence[Shape], effort: Effort, peer: Peer | None, progress: Callable[[str], object]
) -> list[Row]:
    """Measure all sides in turns: each round from the first side to the last, or back."""
    ours: list[list[Times]] = []
    theirs: list[list[Times]] = []
    watching: list[list[Watching]] = []
    turns: list[tuple[str, Callable[[], None]]] = [
        ("onbeat", lambda: ours.append([measure(shape, effort) for shape in shapes])),
        ("monitor", lambda: watching.append([measure_watch(shape, effort) for shape in shapes])),
    ]
    if peer is not None:
        turns.append(("vLLM", lambda: theirs.append(peer.measure(shapes, effort))))
    for index in range(effort.rounds):
        for name, turn in turns if index % 2 == 0 else reversed(turns):
            progress(f"round {index + 1} of {effort.rounds}: {name}")
            turn()
    others = quietest(theirs) if peer is not None else [None] * len(shapes)
    return [Row(*columns) for columns in zip(shapes, quietest(ours), others, quietest(watching), strict=True)]


def measure_chunk_rows(
    chunks: Sequence[int], rounds: int, peer: Peer | None, progress: Callable[[str], object]
) -> list[ChunkRow]:
    """Measure steps of chunks, the sides one after the other in each round; the quietest round counts for each."""
    sides: list[Callable[[], list[float]]] = [
        lambda: [measure_chunks(Scheduler, number) for number in chunks],
        lambda: [measure_chunks(Recounts, number) for number in chunks],
    ]
    if peer is not None:
        sides.append(lambda: peer.measure_chunks(chunks))
    measured: list[list[list[float]]] = []
    for index in range(rounds):
        progress(f"round {index + 1} of {rounds}: chunks")
        measured.append([side() for side in sides])
    best = [[min(values) for values in zip(*side, strict=True)] for side in zip(*measured, strict=True)]
    theirs = best[2] if peer is not None else [None] * len(chunks)
    return [ChunkRow(*columns) for columns in zip(chunks, best[0], best[1], theirs, strict=True)]


def quietest(rounds: Sequence[Sequence[T]]) -> list[T]:
    """Return for each shape what its least disturbed round gave."""
    return [min(measured, key=sum) for measured in zip(*rounds, strict=True)]


# --- The command line ------------------------------------------------------------------------------------------------


def counts(text: str) -> list[int]:
    """Parse `1,64`: numbers of running decodes."""
    values = [int(part) for part in text.split(",")]
    if not all(1 <= value <= MAX_SEQS for value in values):
        raise argparse.ArgumentTypeError(f"each must lie in 1..{MAX_SEQS}: {text}")
    return values


def at_least(low: int) -> Callable[[str], int]:
    """Return a parser of numbers from `low` on."""

    def parse(text: str) -> int:
        if int(text) < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}: {text}")
        return int(text)

    return parse


def parse_options(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Effort]:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="scheduler.py", description="Measure the scheduler, its monitor, the search.")
    parser.add_argument("--decodes", type=counts, default=[1, 64, 256, 1024], help="running decodes, as 1,64")
    parser.add_argument("--chunks", type=counts, default=[256, 1024], help="running chunks, as 256,1024")
    parser.add_argument(
        "--vllm-python",
        metavar="PATH",
        default=os.environ.get("ONBEAT_VLLM_PYTHON"),
        help="a Python that has vLLM, to compare with it; by default $ONBEAT_VLLM_PYTHON",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to FILE")
    parser.add_argument("--quick", action="store_true", help="a fast run, good for orders of magnitude")
    parser.add_argument("--rounds", type=at_least(1), help="how often every side has its turn")
    parser.add_argument("--steps", type=at_least(LOOK_EVERY), help="measured steps of each round")
    parser.add_argument("--warmup", type=at_least(0), help="unmeasured steps before them")
    options = parser.parse_args(arguments)
    numbers = {name: value for name in ("rounds", "steps", "warmup") if (value := getattr(options, name)) is not None}
    effort = (QUICK if options.quick else FULL)._replace(**numbers)
    # Requests prefilled first decode on while the others are prefilled; 16 steps are more than that takes.
    tokens = PROMPT_TOKENS + effort.warmup + effort.steps + 16
    if tokens > MAX_MODEL_LEN or max(options.decodes) * -(-tokens // BLOCK_SIZE) >= NUM_BLOCKS:
        parser.error(f"{tokens} tokens each for {max(options.decodes)} decodes do not fit the KV cache; ask for less")
    return options, effort


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code: 0, or 2 if vLLM's side could not be measured."""
    options, effort = parse_options(arguments)
    peer = Peer(options.vllm_python) if options.vllm_python else None
    print(machine(os.getloadavg()[0], os.cpu_count() or 1), flush=True)
    shapes = [Shape(decodes, caching) for caching in (False, True) for decodes in options.decodes]

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        rows = measure_rows(shapes, effort, peer, progress)
        chunk_rows = measure_chunk_rows(options.chunks, effort.rounds, peer, progress)
    except PeerError as error:
        progress(f"scheduler.py: error: {error}")
        return 2
    progress("search")
    search = measure_search(effort.operations)
    vllm = None if peer is None else peer.version
    show(rows, chunk_rows, vllm, search)
    if options.json is not None:
        report = as_json(rows, chunk_rows, vllm, search, effort)
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
