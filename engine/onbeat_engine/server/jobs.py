"""Requests in flight: who may come in, and what ends each of them."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from starlette.types import Receive

from onbeat_engine.server.engine import Engine, ServedOutput, ServedStream
from onbeat_engine.server.metrics import RequestTimes, ServerMetrics
from onbeat_engine.wire.errors import BadRequest, EngineDead, TryLater
from onbeat_engine.wire.params import SamplingParams

AHEAD = 16
"""Outputs that are read from the engine before the client has taken them; further ones the engine merges."""


class ClientGone(Exception):
    """The client has closed its connection: nobody reads an answer."""


@dataclass(slots=True)
class Work:
    """What one HTTP request wants generated."""

    kind: str
    """Prefix of its id: `cmpl` or `chatcmpl`."""
    prompts: Sequence[list[int]]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    only_prompt: bool = False
    """Nothing is to be generated; the token that a step samples all the same is left out."""

    @property
    def size(self) -> int:
        """Completions, each choice of each prompt counted."""
        return len(self.prompts) * self.params.n


@dataclass(slots=True, eq=False)
class Job:
    """One HTTP request that generates. Iterate it once; it is over when that ends, for whatever reason."""

    jobs: "Jobs"
    work: Work
    receive: Receive
    id: str = ""
    queue: asyncio.Queue[tuple[int, ServedOutput] | Exception] = field(default_factory=lambda: asyncio.Queue(AHEAD))
    streams: list[ServedStream] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        """Submit it; from now on a disconnect is noticed.

        Raises:
            OnbeatError: the engine refused a prompt; the caller closes the job.
        """
        for i, prompt in enumerate(self.work.prompts):
            stream = self.jobs.engine.generate(
                prompt,
                self.work.params,
                f"{self.id}-{i}",
                priority=self.work.priority,
                cache_salt=self.work.cache_salt,
                output_kind="delta",
            )
            self.streams.append(stream)
            self.tasks.append(asyncio.create_task(self._pump(i, stream)))
        self.tasks.append(asyncio.create_task(self._watch()))

    async def outputs(self) -> AsyncGenerator[tuple[int, ServedOutput]]:
        """Yield (index of the prompt, its output so far) until all prompts are finished.

        Raises:
            OnbeatError: the job cannot go on.
            ClientGone: nobody reads it any more.
        """
        left = len(self.work.prompts)
        try:
            while left:
                item = await self.queue.get()
                if isinstance(item, Exception):
                    raise item
                left -= item[1].finished
                yield item
        finally:
            await self.close()

    def end(self, error: Exception) -> None:
        """End it from outside, with an error for the client in the place of what it has not taken yet."""
        for task in self.tasks[: len(self.streams)]:
            task.cancel()
        while not self.queue.empty():
            self.queue.get_nowait()
        self.queue.put_nowait(error)

    async def close(self) -> None:
        """Abort what still runs, and forget the job."""
        for task in self.tasks:
            task.cancel()
        try:
            await asyncio.gather(*self.tasks, return_exceptions=True)
            for stream in self.streams:  # a task that was cancelled before it ran has not aborted its own
                await stream.aclose()
        finally:
            if self.jobs.running.pop(self.id, None) is not None:
                self.jobs.in_flight -= self.work.size

    async def _pump(self, i: int, stream: ServedStream) -> None:
        times = RequestTimes(self.jobs.metrics)
        finished = False
        try:
            async for output in stream:
                finished = output.finished
                times.output(output)
                failed = [choice.error for choice in output.outputs if choice.finish_reason == "error"]
                if failed:
                    raise EngineDead(failed[0] or "the engine failed")
                await self.queue.put((i, output))
            if not finished:
                raise EngineDead("the engine ended the request without an answer")
        except Exception as error:
            times.left("error", self.work.params.n)
            await self.queue.put(error)
        except asyncio.CancelledError:
            if not finished:
                times.left("abort", self.work.params.n)
            raise

    async def _watch(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.end(ClientGone())


class Jobs:
    """All requests in flight.

    Args:
        limit: most completions at once.
    """

    def __init__(self, engine: Engine, metrics: ServerMetrics, limit: int) -> None:
        self.engine = engine
        self.metrics = metrics
        self.limit = limit
        self.running: dict[str, Job] = {}
        self.in_flight = 0
        self.draining = False
        self.busy_since = 0.0
        """`time.monotonic()` at which the first of those in flight came."""

    async def start(self, work: Work, receive: Receive) -> Job:
        """Begin a request.

        Raises:
            BadRequest: it could never be admitted.
            TryLater: there is no room, or the server is shutting down.
        """
        self._check(work)
        if work.params.structured is not None:
            self.in_flight += work.size  # whoever waits for a grammar takes up room, too
            try:
                await self.engine.compile_structured(work.params.structured)
            finally:
                self.in_flight -= work.size
            self._check(work)
        if not self.running:
            self.busy_since = time.monotonic()
        job = Job(self, work, receive, f"{work.kind}-{uuid.uuid4().hex}")
        self.running[job.id] = job
        self.in_flight += work.size
        try:
            job.start()
        except BaseException:
            await job.close()
            raise
        return job

    def _check(self, work: Work) -> None:
        """Refuse what there is no room for."""
        if self.draining:
            raise TryLater("the server is shutting down; send the request elsewhere")
        if work.size > self.limit:
            raise BadRequest(f"{work.size} completions in one request; at most {self.limit} may be in flight", "n")
        if self.in_flight + work.size > self.limit:
            raise TryLater(f"{self.in_flight} of at most {self.limit} completions are in flight; try again later")

    def end_all(self, error: Exception) -> None:
        """End every request with an error for its client."""
        for job in self.running.values():
            job.end(error)
