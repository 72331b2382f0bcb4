"""The demo of the engine: real requests through a real server of several ranks, and what its trace says afterwards.

Everything runs as a user would run it: `onbeat serve` in a process of its own, HTTP, a signal, `onbeat check-trace`.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import httpx

from onbeat_engine.bench.client import RequestResult, ServerTarget, drive
from onbeat_engine.bench.prompts import Lengths, Planned, arrival_times, random_requests
from onbeat_engine.lanes import Summary, read_lanes, render, summarize
from onbeat_engine.wire.params import SamplingParams
from onbeat_spec.catalogue import CATALOGUE, GROUP_CATALOGUE
from onbeat_spec.errors import ConfigError, OnbeatError
from onbeat_spec.trace_read import trace_paths

QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colors.",
    "Why is the sky blue?",
)
STARTS_WITHIN = 180.0
"""Seconds that the server has to load the model."""
ENDS_WITHIN = 30.0
TESTED = ("phase-agrees", "collectives-align", "budget", "exactly-once", "no-crash")
"""Invariants that the demo's trace must put to the test."""
MAY_BE_VACUOUS = tuple(id for id in (*CATALOGUE, *GROUP_CATALOGUE) if id not in TESTED)
"""The others: few requests that come in real time hold nobody for long and need not preempt anybody."""
VIOLATIONS = re.compile(r"^onbeat:invariant_violations_total\{.*\} (\S+)$", re.MULTILINE)


class DemoFailed(OnbeatError):
    """Something that the demo needs could not be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """What the demo does.

    Args:
        model: as `EngineConfig.model`.
        folder: gets the traces, the pictures and the server's log.
        experts: each dense FFN becomes so many equal experts, of which two take each token.
        load: completions that come meanwhile, `rate` a second, of `lengths`.
        max_tokens: of an answer.
    """

    folder: Path
    model: str | None = None
    ranks: int = 2
    interval: int = 2
    experts: int = 4
    questions: Sequence[str] = QUESTIONS
    max_tokens: int = 40
    load: int = 24
    rate: float = 2.0
    lengths: Lengths = field(default_factory=lambda: Lengths(input_len=32, output_len=32, range_ratio=0.5))


@dataclass(slots=True)
class Shown:
    """What came of it."""

    ready: bool = False
    answers: list[str] = field(default_factory=list)
    outcomes: list[RequestResult] = field(default_factory=list)
    seconds: float = 0.0
    """From the first request to the end of the last."""
    live_violations: int = 0
    trace_code: int = 2
    """Exit code of `onbeat check-trace`."""
    lock_steps: int = 0
    trace_violations: int = 0
    phases: str = "not checked"
    """Verdict of `phase-agrees`."""
    summary: Summary | None = None
    equal: int = 0
    """Answers that the model gives, as it is, on one rank too."""

    @property
    def failed(self) -> int:
        """Requests that did not come to their regular end."""
        return sum(not outcome.ok for outcome in self.outcomes)

    @property
    def exit_code(self) -> int:
        """0: everything holds; 1: something does not; 2: it could not be decided."""
        wrong = self.live_violations or self.failed or self.equal < len(self.answers) or not self.ready
        if wrong or self.trace_code == 1:
            return 1
        return 0 if self.trace_code == 0 and self.phases == "holds" else 2


def run(plan: DemoPlan, say: Callable[[str], object]) -> Shown:
    """Serve, ask, stop, check, draw, compare.

    Args:
        say: is given text as it comes, line ends included.

    Raises:
        DemoFailed: a part of it could not be run. OnbeatError: the model, or the trace, cannot be used.
    """
    traces = plan.folder / "traces"
    traces.mkdir(parents=True, exist_ok=True)
    for old in traces.glob("*.ndjson"):
        old.unlink()
    shown = Shown()
    asyncio.run(_serve(plan, shown, say))
    asyncio.run(_check(plan, shown))
    lanes = read_lanes(trace_paths([str(traces)]))
    shown.summary = summarize(lanes)
    (plan.folder / "lanes.html").write_text(render(lanes), encoding="utf-8")
    from onbeat_engine.lanes.png import picture  # noqa: PLC0415 - with the next, all that a usage error need not load

    (plan.folder / "lanes.png").write_bytes(picture(lanes))
    shown.equal = _equal(plan, shown.answers)
    return shown


def ordinal(number: int) -> str:
    """Write 1st, 2nd, 3rd, 4th and so on."""
    last = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{last}"


def program() -> str:
    """Return the path of the program `onbeat`: the one beside this Python, else the first one found.

    Raises:
        ConfigError: there is none.
    """
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = shutil.which("onbeat", path=folders)
    if found is None:
        raise ConfigError("the program onbeat is not in the path; install the package, as `make demo` does")
    return found


async def _serve(plan: DemoPlan, shown: Shown, say: Callable[[str], object]) -> None:
    async with _server(plan) as base_url, httpx.AsyncClient(base_url=base_url, timeout=ENDS_WITHIN * 4) as client:
        say(f"{plan.ranks} ranks in lock step, prefills on every {ordinal(plan.interval)} step: {base_url}\n")
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        target = ServerTarget(base_url=base_url, model=model, body={"temperature": 0, "ignore_eos": True})
        times = list(islice(arrival_times(plan.rate, 1.0, seed=0), plan.load))
        planned = random_requests(plan.load, plan.lengths, times, seed=0, vocab_size=None)
        began = time.perf_counter()
        meanwhile = asyncio.create_task(drive(target, planned))
        try:
            for question in plan.questions:
                say(f"\n> {question}\n")
                answer, outcome = await _ask(client, model, question, plan.max_tokens, say)
                say("\n")
                shown.answers.append(answer)
                shown.outcomes.append(outcome)
            shown.outcomes += (await meanwhile)[0]
        finally:
            meanwhile.cancel()
        shown.seconds = time.perf_counter() - began
        shown.ready = (await client.get("/ready")).status_code == 200
        counted = VIOLATIONS.findall((await client.get("/metrics")).text)
        shown.live_violations = sum(int(float(count)) for count in counted)


@contextlib.asynccontextmanager
async def _server(plan: DemoPlan) -> AsyncIterator[str]:
    """Run `onbeat serve`; give its address."""
    flags = {
        "port": 0,
        "moe-upcycle": plan.experts,
        "data-parallel-size": plan.ranks,
        "prefill-schedule-interval": plan.interval,
        "trace-dir": plan.folder / "traces",
        "num-gpu-blocks-override": 1024,
        "log-level": "warning",
    }
    arguments = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    log = plan.folder / "server.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(program(), "serve", *([plan.model] if plan.model else []), *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={"OMP_NUM_THREADS": "1", **os.environ},
        )
    try:
        assert process.stdout is not None
        try:
            line = (await asyncio.wait_for(process.stdout.readline(), STARTS_WITHIN)).decode()
        except TimeoutError:
            raise DemoFailed(f"the server has not started within {STARTS_WITHIN:g} s; see {log}") from None
        found = re.search(r"http://\S+", line)
        if found is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), ENDS_WITHIN)
            said = log.read_text("utf-8", "replace").strip().splitlines() or ["it said nothing"]
            raise DemoFailed(f"the server has not started: {said[-1].removeprefix('onbeat: error: ')}")
        yield found[0]
        _signal(process, signal.SIGTERM)
        try:
            code = await asyncio.wait_for(process.wait(), ENDS_WITHIN)
        except TimeoutError:
            raise DemoFailed(f"the server has not ended {ENDS_WITHIN:g} s after SIGTERM; see {log}") from None
        if code:
            raise DemoFailed(f"the server ended with exit code {code}; see {log}")
    finally:
        if process.returncode is None:
            _signal(process, signal.SIGKILL)  # its ranks end with it
            await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal. The process's own method would wait for one that has ended, behind asyncio's back."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)


async def _ask(
    client: httpx.AsyncClient, model: str, question: str, max_tokens: int, say: Callable[[str], object]
) -> tuple[str, RequestResult]:
    """Ask, and say the answer piece by piece as it comes."""
    messages = [{"role": "user", "content": question}]
    asked = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    outcome, pieces, began = RequestResult(Planned(0.0, question, 0, max_tokens)), list[str](), time.perf_counter()
    try:
        async with client.stream("POST", "/v1/chat/completions", json=asked) as stream:
            async for line in stream.aiter_lines():
                if not line.startswith("data: {"):  # an empty line, or the end
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    outcome.error = str(event["error"]["message"])
                for choice in event.get("choices", ()):
                    if piece := choice["delta"].get("content"):
                        outcome.chunks.append(time.perf_counter() - began)
                        pieces.append(piece)
                        say(piece)
    except httpx.HTTPError as error:
        outcome.error = f"{type(error).__name__}: {error}"
    if not pieces and not outcome.error:
        outcome.error = f"no text came (status {stream.status_code})"
    outcome.ended = time.perf_counter() - began
    return "".join(pieces), outcome


async def _check(plan: DemoPlan, shown: Shown) -> None:
    """Have the trace checked, by the program that checks anybody's."""
    report = plan.folder / "check.json"
    report.unlink(missing_ok=True)
    process = await asyncio.create_subprocess_exec(
        *(program(), "check-trace", str(plan.folder / "traces"), "--json", str(report)),
        *(part for id in MAY_BE_VACUOUS for part in ("--allow-vacuous", id)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = (await process.communicate())[0].decode("utf-8", "replace")
    shown.trace_code = process.returncode if process.returncode is not None else 2
    if not report.exists():
        raise DemoFailed(f"the trace could not be checked: {said.strip()}")
    found = json.loads(report.read_text(encoding="utf-8"))
    shown.lock_steps = found["lock_steps"]
    shown.trace_violations = sum(row["violations"] for row in found["invariants"])
    shown.phases = next((row["verdict"] for row in found["invariants"] if row["id"] == "phase-agrees"), "not checked")


def _equal(plan: DemoPlan, answers: Sequence[str]) -> int:
    """Count the answers that the model gives too as it is: dense, and on one rank."""
    from onbeat_engine import LLM  # noqa: PLC0415 - see `run`

    asked = [[{"role": "user", "content": question}] for question in plan.questions]
    with LLM(plan.model, num_gpu_blocks_override=256) as llm:
        outputs = llm.chat(asked, SamplingParams(temperature=0, max_tokens=plan.max_tokens), use_tqdm=False)
    texts = [output.outputs[0].text for output in outputs]
    return sum(text == answer for text, answer in zip(texts, answers, strict=True))
