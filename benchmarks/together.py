"""Send random requests through coupled ranks; then look, live and in what they recorded, whether they agreed.

Ranks share the experts of a tiny random model, in float64, and prefill on the beat; each monitors itself, the front end
monitors the group, and all steps are recorded. Some requests are aborted, twice the engine is paused and resumed, and
now and then its caches are forgotten. Then:

- no invariant was violated, live; and `onbeat check-trace` finds none in what was recorded;
- in every lock step all ranks were in the same phase and in the same collectives, counted from the records;
- every request ended as it should, and equal prompts were answered equally, whatever ran beside them.

    python -m benchmarks.together [--requests 2000] [--ranks 2]

Exit code 0: all of it holds; 1: something does not.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._report import machine
from benchmarks._weights import SHAPES, write_model
from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.testing.fake import tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.params import SamplingParams
from onbeat_spec.catalogue import CATALOGUE, GROUP_CATALOGUE
from onbeat_spec.trace import Idle, StepRecord
from onbeat_spec.trace_read import TraceFile

PROMPTS, LONGEST_PROMPT, LONGEST_OUTPUT = 64, 60, 24
IN_FLIGHT, LIGHT = 48, 5
"""Requests at once: in the first half so many that some always wait for blocks, and saturated ranks hold nothing; then
so few that prefills wait for the beat."""
ABORTED = 0.05
"""Share of the requests that their clients give up."""
TESTED = ("phase-agrees", "collectives-align", "wake-not-lost", "budget", "exactly-once", "no-crash")
"""Invariants that also a short run puts to the test."""
MAY_BE_VACUOUS = tuple(id for id in (*CATALOGUE, *GROUP_CATALOGUE) if id not in TESTED)


@dataclass
class Seen:
    """What clients and front end saw."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    lock_steps: int = 0
    violations: dict[str, int] = field(default_factory=dict)
    stats: list[Any] = field(default_factory=list)
    """Of each rank."""


@dataclass
class Recorded:
    """What is in the traces."""

    lock_steps: int = 0
    by_phase: Counter[int | None] = field(default_factory=Counter)
    collectives: dict[int, Counter[str]] = field(default_factory=dict)
    """By rank."""
    unequal: list[str] = field(default_factory=list)


class Clients:
    """They ask, and compare what they get."""

    def __init__(self, engine: AsyncLLM, seed: int, observed: Seen) -> None:
        self._engine = engine
        self._random = random.Random(seed)
        self._observed = observed
        self._answers: dict[int, list[int]] = {}
        self._prompts = [
            [self._random.randrange(250) for _ in range(1 + self._random.randrange(LONGEST_PROMPT))]
            for _ in range(PROMPTS)
        ]

    async def ask(self, number: int, places: asyncio.Semaphore) -> None:
        """Send one request when there is a place; perhaps give it up."""
        which, length = self._random.randrange(PROMPTS), 1 + self._random.randrange(LONGEST_OUTPUT)
        leaves = self._random.randrange(length) if self._random.random() < ABORTED else None
        params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        async with places:
            tokens, reason = list[int](), "left"
            async with self._engine.generate(self._prompts[which], params, f"r{number}") as stream:
                async for output in stream:
                    tokens, reason = list(output.outputs[0].token_ids), output.outputs[0].finish_reason or "left"
                    if leaves is not None and len(tokens) > leaves and reason == "left":
                        break
        if reason == "length" and len(tokens) != length:
            self._observed.wrong.append(f"request {number} has {len(tokens)} tokens, not {length}")
        elif reason != "length" and not (leaves is not None and reason == "left"):
            self._observed.wrong.append(f"request {number} ended with {reason}")
        self._observed.ends[reason] += 1
        self._compare(number, which, tokens)

    def _compare(self, number: int, which: int, tokens: list[int]) -> None:
        self._observed.tokens += len(tokens)
        answer = self._answers.setdefault(which, tokens)
        shared = min(len(answer), len(tokens))
        if answer[:shared] != tokens[:shared]:
            self._observed.wrong.append(f"request {number} was answered otherwise than an equal one")
        if len(tokens) > len(answer):
            self._answers[which] = tokens


async def serve(config: EngineConfig, requests: int, seed: int) -> Seen:
    """Serve all requests."""
    engine, observed = await AsyncLLM.from_config(config, tokenizer=tokenizer()), Seen()
    try:
        clients, began = Clients(engine, seed, observed), time.monotonic()
        many, few = asyncio.Semaphore(IN_FLIGHT), asyncio.Semaphore(0)
        tasks = [
            asyncio.ensure_future(clients.ask(number, many if number < requests / 2 else few))
            for number in range(requests)
        ]
        for share in (1 / 4, 1 / 2, 3 / 4):
            while sum(task.done() for task in tasks) < share * requests:
                await asyncio.sleep(0.01)
            if share == 1 / 2:
                await engine.reset_prefix_cache()
                for _ in range(LIGHT):
                    few.release()
                continue
            await engine.pause_generation(mode="keep")
            await asyncio.sleep(0.1)
            await engine.resume_generation()
        await asyncio.gather(*tasks)
        observed.seconds = time.monotonic() - began
        await engine.pause_generation(mode="wait")  # all reports have come then
        observed.violations, observed.stats = engine.violations(), engine.stats()
        observed.lock_steps = sum(watch.lock_steps for watch in engine._client.watches.values())
        return observed
    finally:
        await engine.shutdown()


def recorded(folder: Path) -> Recorded:
    """Compare the ranks' records, lock step by lock step."""
    records, lanes = Recorded(), dict[int, dict[int, Any]]()
    for path in sorted(folder.glob("*.ndjson")):
        trace = TraceFile(path)
        lane = lanes.setdefault(trace.header.rank, {})
        for _, record in trace:
            if isinstance(record, StepRecord | Idle) and record.lock is not None:
                lane[record.lock.number] = record.lock
        trace.close()
    for number in sorted({number for lane in lanes.values() for number in lane}):
        locks = {rank: lane.get(number) for rank, lane in lanes.items()}
        records.lock_steps += 1
        for rank, lock in locks.items():
            records.collectives.setdefault(rank, Counter()).update(lock.collectives or () if lock else ())
        views = {(lock.phase, lock.collectives, lock.last) if lock else None for lock in locks.values()}
        if len(views) != 1:
            records.unequal.append(f"lock step {number}: {locks}")
        records.by_phase.update(lock.phase for lock in list(locks.values())[:1] if lock)
    return records


def checked(folder: Path) -> tuple[int, dict[str, Any], str]:
    """Run `onbeat check-trace`; return its exit code, its results, and what it printed."""
    results = folder / "results.json"
    command = [sys.executable, "-m", "onbeat", "check-trace", str(folder), "--json", str(results)]
    for id in MAY_BE_VACUOUS:
        command += ["--allow-vacuous", id]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    report = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    return ran.returncode, report, ran.stdout + ran.stderr


def judged(observed: Seen, records: Recorded, code: int, results: dict[str, Any]) -> list[str]:
    """Return what does not hold."""
    wrong = list(observed.wrong)
    if observed.violations:
        wrong.append(f"live violations: {observed.violations}")
    if code != 0 or results.get("findings") or not results.get("lock_steps"):
        wrong.append(f"check-trace: exit code {code}, {len(results.get('findings', []))} findings")
    if not observed.lock_steps:
        wrong.append("the front end compared no lock step")
    wrong += records.unequal[:5]
    if len({tuple(sorted(kinds.items())) for kinds in records.collectives.values()}) != 1:
        wrong.append(f"ranks took part in different collectives: {records.collectives}")
    return wrong


def show(observed: Seen, records: Recorded, results: dict[str, Any]) -> None:
    """Print the figures."""
    ends = ", ".join(f"{count:,} {reason}" for reason, count in sorted(observed.ends.items()))
    print(f"{sum(observed.ends.values()):,} requests ({ends}), {observed.tokens:,} tokens in {observed.seconds:.1f} s")
    for rank_stats in observed.stats:
        print(
            f"  rank {rank_stats.rank}: {rank_stats.steps:,} steps, {rank_stats.held_steps:,} of them held; "
            f"{rank_stats.dummy_steps:,} dummies; {rank_stats.preemptions:,} preemptions"
        )
    phases = ", ".join(f"phase {phase}: {count:,}" for phase, count in records.by_phase.items() if phase is not None)
    print(f"lock steps: {observed.lock_steps:,} compared live, {records.lock_steps:,} in the records ({phases})")
    print(f"  not alike on all ranks: {len(records.unequal)}")
    for rank, kinds in records.collectives.items():
        print(f"  collectives of rank {rank}: " + ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()))
    met = [row for row in results.get("invariants", []) if row["met"]]
    print(f"violations: {sum(observed.violations.values())} live, {len(results.get('findings', []))} by check-trace")
    print(f"  ({results.get('steps', 0):,} steps, {len(met)} invariants whose premise was met)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--interval", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace-dir", type=Path, help="an empty folder, which is kept")
    options = parser.parse_args(arguments)
    if options.requests < 1 or options.ranks < 2:
        parser.error("it takes at least one request and two ranks")
    if options.trace_dir is not None and options.trace_dir.exists() and any(options.trace_dir.iterdir()):
        parser.error(f"{options.trace_dir} is not empty")
    print(machine(os.getloadavg()[0], os.cpu_count() or 1), end="")
    with tempfile.TemporaryDirectory() as name:
        folder = options.trace_dir or Path(name) / "traces"
        config = EngineConfig(
            model=write_model(SHAPES["smallest"], Path(name) / "model"),
            dtype="float64",
            device="cpu",
            moe_upcycle=4,
            block_size=4,
            num_gpu_blocks_override=120,
            max_model_len=128,
            max_num_batched_tokens=64,
            max_num_seqs=16,
            data_parallel_size=options.ranks,
            prefill_schedule_interval=options.interval,
            trace_dir=str(folder),
        )
        observed = asyncio.run(serve(config, options.requests, options.seed))
        records = recorded(folder)
        code, results, output = checked(folder)
    show(observed, records, results)
    wrong = judged(observed, records, code, results)
    if code:
        print(output)
    print("\n".join(f"WRONG: {message}" for message in wrong) or "all of it holds")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
