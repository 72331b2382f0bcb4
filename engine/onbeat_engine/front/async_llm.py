"""The asynchronous engine, with vLLM's names: ranks in processes of their own, requests as asynchronous iterators."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from onbeat_engine.front.client import Client
from onbeat_engine.front.outputs import OutputKind, RequestState
from onbeat_engine.front.preparing import Preparer
from onbeat_engine.front.restarts import Restarts
from onbeat_engine.front.streams import RequestStream
from onbeat_engine.front.supervision import Processes, RankInfo
from onbeat_engine.front.waits import Done
from onbeat_engine.text.open_tokenizer import configured_tokenizer
from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.errors import EngineDead
from onbeat_engine.wire.lane_steps import LaneRing, Lanes
from onbeat_engine.wire.messages import Ended, FromRank, Output, RankOutputs, RankStats
from onbeat_engine.wire.params import SamplingParams, StructuredOutput
from onbeat_spec.errors import OnbeatError
from onbeat_spec.protocol import PauseMode

log = logging.getLogger("onbeat.engine")

BUILD = "onbeat_engine.rank.build:build"
"""Builds a rank with a real model."""
MOST_COMPILED = 1000
"""Grammars that are remembered as compiled."""


class AsyncLLM:
    """An engine. All of it belongs to one event loop. Made by `from_config`."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        build: str,
        listen: str | None = None,
        local_ranks: int | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.max_model_len = 0
        self.last_progress = time.monotonic()
        """When a token came last, or a request while there was none (`time.monotonic`)."""
        self._processes = Processes(
            config, build, self._received, self._rank_died, listen=listen, local_ranks=local_ranks
        )
        self._client: Client
        self._preparer: Preparer
        self._open: dict[str, set[RequestState]] = {}
        """By the caller's names: what somebody still reads."""
        self._ring = LaneRing(interval=config.prefill_schedule_interval)
        self._compiling = asyncio.Lock()
        self._compiled: set[bytes] = set()
        """Grammars that every rank has."""
        self._drained = asyncio.Event()
        self._slept = False
        """The pause is `sleep`'s own."""
        self._stopping = False
        self._restarts: Restarts

    @classmethod
    async def from_config(
        cls,
        config: EngineConfig,
        *,
        build: str = BUILD,
        tokenizer: Tokenizer | None = None,
        listen: str | None = None,
        local_ranks: int | None = None,
    ) -> "AsyncLLM":
        """Start an engine; return it when it can serve.

        Args:
            config: what it is made of.
            build: `module:function` that builds a rank (`onbeat_engine.rank.parts.Build`).
            tokenizer: None: the model's.
            listen: where ranks that somebody else starts connect to; see `Processes`, likewise the next.
            local_ranks: ranks that are started here; None: all.

        Raises:
            ModelError: no tokenizer. ConfigError: it cannot listen there. EngineDead: a rank could not start.
        """
        if tokenizer is None:
            tokenizer = configured_tokenizer(config)
        engine = cls(config, tokenizer, build, listen, local_ranks)
        ready = await engine._processes.start()
        engine.max_model_len = min(rank.max_model_len for rank in ready)
        sizes = config.scheduler_config(
            num_blocks=min(rank.num_blocks for rank in ready), max_model_len=engine.max_model_len
        )
        engine._preparer = Preparer(tokenizer, sizes.longest_request, ready[0].vocab_size)
        coupled = any(rank.coupled for rank in ready)
        engine._ring.lock_step = coupled
        engine._client = Client(
            config.data_parallel_size,
            coupled,
            engine._processes.send,
            on_violation=config.on_violation,
            restarts=config.restart,
        )
        engine._restarts = Restarts(engine._client, engine._processes, engine._started_again)
        return engine

    # --- Requests ----------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
        output_kind: OutputKind = "cumulative",
    ) -> RequestStream:
        """Begin a request, and return its outputs as they come.

        Args:
            prompt: text, or token ids.
            sampling_params: how to sample.
            request_id: the caller's name for it, for `abort`; it need not be unique.
            priority: smaller is served first, with priority scheduling.
            cache_salt: only requests of the same salt share cached prefixes.
            output_kind: what each output holds.

        Raises:
            BadRequest: it can never be served. TryLater: it may be sent again. EngineDead: no rank lives.
                In each case nothing of it is kept.
        """
        prepared = self._preparer.prepare(prompt, sampling_params, priority, cache_salt)
        state = RequestState(request_id, prepared, self.tokenizer)
        news = asyncio.Event()
        if not self._open:
            self.last_progress = time.monotonic()
        sent: list[str] = []

        def deliver(output: Output, rank: int) -> None:
            try:
                stopped = state.push(output, rank)  # a stop string: the rank knows only tokens
            except Exception as error:  # no fault of one request may reach the others of the step
                log.exception("the output of request %r could not be read", request_id)
                state.fail(output.id, f"its output could not be read: {type(error).__name__}: {error}")
                stopped = True
            if stopped:
                self._client.abort([output.id])
            news.set()

        try:
            for request in prepared.requests:
                self._client.add(request, deliver)
                sent.append(request.id)
        except OnbeatError:
            self._client.abort(sent)
            raise
        self._open.setdefault(request_id, set()).add(state)
        return RequestStream(self.forget, state, news, output_kind)

    async def compile_structured(self, structured: StructuredOutput) -> None:
        """Compile a grammar, here and at every rank, which may take seconds; one at a time.

        `generate` with the same one is quick afterwards, and no step of other requests waits for it.

        Raises:
            BadRequest: the schema is none, or structured output is not installed. EngineDead: no rank lives.
            TryLater: all are being started again.
        """
        key = self._preparer.key_of(structured)
        if key in self._compiled:
            return
        async with self._compiling:
            await asyncio.to_thread(self._preparer.check_structured, structured)
            await self._complete(partial(self._client.compile, structured))
            if len(self._compiled) >= MOST_COMPILED:
                self._compiled.clear()
            self._compiled.add(key)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests by the caller's names for them; their streams end with `abort`. Unknown ones are left alone."""
        for name in [request_id] if isinstance(request_id, str) else list(request_id):
            for state in tuple(self._open.get(name, ())):
                self._client.abort(state.unfinished_ids)

    def forget(self, state: RequestState) -> None:
        """A stream is over; a request that nobody reads any more is aborted within one step (case B91)."""
        same = self._open.get(state.request_id, set())
        same.discard(state)
        if not same:
            self._open.pop(state.request_id, None)
        if not state.finished:
            self._client.abort(state.unfinished_ids)
        if not self._open:
            self._drained.set()

    @property
    def num_unfinished(self) -> int:
        """Requests that ranks have, or are sent."""
        return len(self._client.requests)

    @property
    def num_held(self) -> int:
        """Requests that are held until the engine is resumed."""
        return self._client.num_held

    # --- Pause, sleep ------------------------------------------------------------------------------------------------

    async def pause_generation(self, *, mode: PauseMode = "abort") -> None:
        """Pause; returns when every rank has stopped. Idempotent; the latest mode counts.

        Args:
            mode: what becomes of requests that ranks have: `keep` them as they are, and hold new ones; `abort` them;
                `wait` until they have finished. With the last two new ones are refused.

        Raises:
            ProtocolMisuse: it sleeps and should wait, or it was resumed meanwhile. EngineDead: no rank lives.
            TryLater: all are being started again.
        """
        self._client.pause(mode)
        await self._complete(self._client.when_stopped)

    async def resume_generation(self) -> None:
        """End a pause, and sleep. Idempotent."""
        self._slept = False
        self._client.resume()
        self.last_progress = time.monotonic()

    @property
    def is_paused(self) -> bool:
        """Whether it is paused."""
        return self._client.paused is not None

    async def sleep(self, *, mode: PauseMode = "abort") -> None:
        """Pause, unless it is paused, and give the KV cache's memory up; returns when all ranks have. Idempotent.

        Raises:
            ProtocolMisuse, EngineDead, TryLater: as `pause_generation`.
        """
        if not self.is_paused:
            self._client.pause(mode)
            self._slept = True
        self._client.sleep()
        await self._complete(self._client.when_stopped)

    async def wake_up(self) -> None:
        """Take the memory back; a pause that `sleep` began ends too. Idempotent.

        Raises:
            EngineDead: no rank lives.
        """
        if self._slept:
            await self.resume_generation()
        elif self.is_paused:  # else it is awake, and need not stop for that
            self._client.rouse()
            await self._complete(self._client.when_stopped)

    @property
    def is_sleeping(self) -> bool:
        """Whether the ranks give their memory up, or have."""
        return self._client.sleeping

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; what runs is computed again.

        Raises:
            EngineDead: no rank lives. TryLater: all are being started again.
        """
        await self._complete(self._client.reset_prefix_cache)
        return True

    # --- State -------------------------------------------------------------------------------------------------------

    async def check_health(self) -> None:
        """Return if a rank lives, or is being started again.

        Raises:
            EngineDead: none is.
        """
        if self.dead_error is not None:
            raise self.dead_error

    @property
    def dead_error(self) -> EngineDead | None:
        """Why no rank lives, or will again; None: one does."""
        return EngineDead(self._client.dead) if self._client.dead and not self._client.coming_back else None

    @property
    def errored(self) -> bool:
        """Whether no rank lives, or will again."""
        return self.dead_error is not None

    @property
    def is_running(self) -> bool:
        """Whether requests may be served, now or once it is resumed."""
        return not self._client.dead and not self._stopping

    @property
    def is_restarting(self) -> bool:
        """Whether some ranks are being started again."""
        return bool(self._client.recovering)

    def stats(self) -> list[RankStats]:
        """Return what each rank told last."""
        return list(self._client.stats)

    def violations(self) -> dict[str, int]:
        """Return how often invariants were violated, by id: those of single ranks, and of groups."""
        counts = Counter(self.group_violations())
        for stats in self._client.stats:
            counts.update(stats.violations)
        return dict(counts)

    def group_violations(self) -> dict[str, int]:
        """Return how often groups violated invariants, by id."""
        counts: Counter[str] = Counter()
        for watch in self._client.watches.values():
            counts.update(watch.counts)
        return dict(counts)

    def lanes(self) -> Lanes:
        """Return the latest steps of every rank."""
        return self._ring.lanes()

    @property
    def ranks(self) -> list[RankInfo]:
        """The processes of the ranks; one that is being started again is not alive yet."""
        gone = self._client.gone
        return [replace(info, alive=info.alive and info.rank not in gone) for info in self._processes.infos]

    # --- The end -----------------------------------------------------------------------------------------------------

    def stop_admission(self, why: str = "the engine is shutting down; send the request elsewhere") -> None:
        """Refuse new requests from now on; those that are there go on."""
        self._client.closed = why

    async def drain(self, timeout: float) -> bool:
        """Wait until nobody waits for anything any more; False: the time was too short."""
        until = time.monotonic() + timeout
        while self._open:
            self._drained.clear()
            left = until - time.monotonic()
            try:
                await asyncio.wait_for(self._drained.wait(), max(0.0, left))
            except TimeoutError:
                return not self._open
        return True

    async def shutdown(self, timeout: float = 5.0) -> None:
        """End all ranks; open streams end with `abort`. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        self.stop_admission()
        await self._restarts.stop()
        for states in tuple(self._open.values()):
            for state in tuple(states):
                self._client.abort(state.unfinished_ids)
        until = time.monotonic() + timeout
        await self._stop_together(timeout)
        await self._processes.stop(max(0.0, until - time.monotonic()))
        for info in self._processes.infos:
            self._client.died(info.rank, info.why)

    async def _stop_together(self, timeout: float) -> None:
        """Let ranks that share collectives stop at the same turn: one that goes earlier is missed by the others."""
        if self._client.watches and not self._client.dead:
            try:
                await asyncio.wait_for(self.pause_generation(mode="abort"), timeout)
            except (OnbeatError, TimeoutError) as error:
                log.warning("the ranks did not stop together: %s", str(error) or f"not within {timeout:g} s")

    # --- Inside ------------------------------------------------------------------------------------------------------

    def _received(self, message: FromRank) -> None:
        if isinstance(message, RankOutputs):
            for step in message.lane_steps:
                self._ring.add(step)
            if message.outputs:
                self.last_progress = time.monotonic()
        self._client.received(message)
        if isinstance(message, Ended) and not message.expected:
            self._recover(message.rank)

    def _rank_died(self, rank: int, why: str) -> None:
        self._client.died(rank, why)
        self._recover(rank)

    def _recover(self, rank: int) -> None:
        if self.config.restart and not self._stopping:
            self._restarts.begin(self._client.group_of(rank))

    def _started_again(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._ring.forget(rank)
        self._compiled.clear()

    async def _complete(self, when: Callable[[Done], None]) -> None:
        """Wait for what `when` tells to be complete."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: OnbeatError | None) -> None:
            if future.done():  # whoever waited was cancelled
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        when(done)
        await future
