"""Soak a server: many streaming clients with random disconnects, resets, bad requests and pauses; then look for leaks.

    python -m benchmarks.soak --clients 500 --seconds 180

Serves a model with random weights in a process of its own, as `onbeat serve` does, with whatever further flags. Exits
with 0 if nothing crashed, every stream that was read had its end, every bad request was refused with its status, memory
did not grow without end, and afterwards blocks, entries and file descriptors are those of the start; else with 1.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks._clients import Client, Tally
from benchmarks._weights import SHAPES, write_model
from onbeat_engine.testing.fake import backend

SERVE = "import sys; from onbeat_engine.verbs.serve import command; command(sys.argv[1:])"
BACK_TO_ZERO = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_requests_held",
    "num_requests_unfinished",
    "http_requests_in_flight",
)
GROWTH = 1.2
"""Most that resident memory may grow from the middle of the run to its end."""
SETTLE = 20.0
"""Seconds in which the server has to come to rest once the load has ended."""


class Server:
    """A server in a process."""

    def __init__(self, model: str, flags: Sequence[str]) -> None:
        command = [sys.executable, "-c", SERVE, model, "--port", "0", "--log-level", "warning", *flags]
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        environment = {**os.environ, "PYTHONPATH": path}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.search(r"http://[^:]+:(\d+)", line)
        if match is None:
            raise SystemExit(f"the server did not start (exit code {self.process.wait()})")
        self.port = int(match[1])
        self.watched = psutil.Process(self.process.pid)

    def call(self, path: str, *, post: bool = False) -> str:
        """Return the text of an answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method="POST" if post else "GET")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())

    def metrics(self) -> dict[str, float]:
        """Return every sample summed over its labels."""
        values: dict[str, float] = {}
        for line in self.call("/metrics").splitlines():
            if not line.startswith("#"):
                name = line.partition("{")[0].removeprefix("onbeat:")
                values[name] = values.get(name, 0.0) + float(line.rpartition(" ")[2])
        return values

    def files(self) -> list[int]:
        """Return the open file descriptors of the server and of its ranks."""
        return [process.num_fds() for process in (self.watched, *self.watched.children(recursive=True))]

    def memory(self) -> float:
        """Return the resident MiB of all of them."""
        processes = (self.watched, *self.watched.children(recursive=True))
        return sum(process.memory_info().rss for process in processes) / 2**20

    def end(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        return self.process.returncode


async def load(server: Server, clients: int, seconds: float, seed: int, tally: Tally) -> list[float]:
    """Put the load on; now and then somebody pauses the server, as for an update of weights.

    Returns:
        Resident MiB, every ten seconds.
    """
    memory = []
    loop = asyncio.get_running_loop()
    begun = loop.time()
    until = begun + seconds
    tasks = [asyncio.create_task(Client(server.port, seed * 10_000 + i, tally).run(until)) for i in range(clients)]
    pauses = asyncio.create_task(pause_now_and_then(server, until, tally))
    while not all(task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=10)
        done = sum(tally.ends.values())
        now = f"{loop.time() - begun:5.0f} s: {done} requests, {tally.ends['WRONG']} wrong"
        memory.append(server.memory())
        print(f"{now}, {memory[-1]:.0f} MiB resident", flush=True)
    await asyncio.gather(*tasks, pauses)
    return memory


async def pause_now_and_then(server: Server, until: float, tally: Tally) -> None:
    """Pause in every mode in turn, and go on."""
    loop = asyncio.get_running_loop()
    modes = ("abort", "keep", "wait")
    turn = 0
    while loop.time() + 10 < until:
        await asyncio.sleep(8)
        try:
            await asyncio.to_thread(server.call, f"/pause?mode={modes[turn % 3]}", post=True)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.call, "/resume", post=True)
        except OSError as error:
            tally.fault(f"pause {modes[turn % 3]}: {error!r}")
        turn += 1
        tally.ends["pauses"] += 1


def at_rest(server: Server, files: Sequence[int]) -> list[str]:
    """Wait until everything is back to the start; return what is not."""
    end = time.monotonic() + SETTLE
    while True:
        metrics = server.metrics()
        left = [f"{name} is {metrics[name]:g}" for name in BACK_TO_ZERO if metrics[name]]
        now = zip(server.files(), files, strict=True)
        left += [f"{later} file descriptors, {before} at the start" for later, before in now if later > before]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.5)


def growth(memory: Sequence[float]) -> list[str]:
    """Return what is wrong with the resident MiB over time: under the same load it comes to rest."""
    if len(memory) < 6:
        return []
    middle, last = memory[len(memory) // 2], memory[-1]
    return [f"{last:.0f} MiB resident, {middle:.0f} in the middle"] if last > GROWTH * middle else []


def soak(model: str, flags: Sequence[str], clients: int, seconds: float, seed: int) -> dict[str, Any]:
    """Run it; return the result."""
    server = Server(model, flags)
    tally = Tally()
    try:
        asyncio.run(load(server, 20, min(3.0, seconds), seed + 1, Tally()))  # what is opened once is open from here on
        time.sleep(1.0)
        faults = at_rest(server, [1 << 30] * len(server.files()))
        files, memory = server.files(), server.memory()
        before = server.metrics()
        samples = asyncio.run(load(server, clients, seconds, seed, tally))
        faults += growth(samples)
        faults += at_rest(server, files)
        after, files_after, memory_after = server.metrics(), server.files(), server.memory()
        violations = after.get("invariant_violations_total", 0.0)
        faults += [f"{violations:g} violations of invariants"] if violations else []
        faults += tally.wrong
    finally:
        with suppress(ProcessLookupError):
            code = server.end()
    faults += [f"exit code {code}"] if code else []
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": dict(tally.ends),
        "tokens": after["generation_tokens_total"] - before["generation_tokens_total"],
        "steps": after["steps_total"] - before["steps_total"],
        "files": [files, files_after],
        "memory_mib": [round(memory), round(memory_after)],
        "faults": faults,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--model", help="default: one with random weights")
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", metavar="FILE")
    options, flags = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if model is None:
            model = write_model(SHAPES["smallest"], Path(folder))
            backend().save(f"{folder}/tokenizer.json")
            flags = ["--num-gpu-blocks-override", "4000", "--max-model-len", "512", "--dtype", "float32", *flags]
        result = soak(model, flags, options.clients, options.seconds, options.seed)
    for outcome, count in sorted(result["requests"].items()):
        print(f"{count:8d} {outcome}")
    print(f"{result['tokens']:.0f} tokens in {result['steps']:.0f} steps")
    print("file descriptors before and after:", *result["files"], "- resident MiB:", *result["memory_mib"])
    print("faults:", *(result["faults"] or ["none"]), sep="\n  ")
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
