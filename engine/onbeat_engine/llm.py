"""The engine for programs without an event loop, with vLLM's names."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from onbeat_engine.front.async_llm import BUILD, AsyncLLM
from onbeat_engine.front.client import Client
from onbeat_engine.front.outputs import RequestOutput, RequestState
from onbeat_engine.front.preparing import Prepared, Preparer
from onbeat_engine.rank.core import EngineCore
from onbeat_engine.rank.parts import resolve
from onbeat_engine.text.open_tokenizer import configured_tokenizer
from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.errors import BadRequest, EngineDead
from onbeat_engine.wire.messages import Output, RankStats
from onbeat_engine.wire.params import SamplingParams

T = TypeVar("T")
Prompt = str | Sequence[int]
Message = Mapping[str, Any]
OnFinished = Callable[[RequestOutput], None]


class OfflineEngine(Protocol):
    """Serves a list of requests."""

    def run(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], finished: OnFinished
    ) -> list[RequestOutput]:
        """Serve them all; `finished` is called with each that has finished."""
        ...

    def stats(self) -> list[RankStats]:
        """Return what each rank told last."""
        ...

    def shutdown(self) -> None:
        """End."""
        ...


class LLM:
    """An engine that is used from a program that waits for it.

    One rank runs in this process; several in processes of their own.

    Args:
        model: as `EngineConfig.model`.
        build: `module:function` that builds a rank.
        loaded_tokenizer: None: the model's.
        fields: those of `EngineConfig`.

    Raises:
        OnbeatError: the model, or the configuration, cannot be used.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        build: str = BUILD,
        loaded_tokenizer: Tokenizer | None = None,
        **fields: Any,
    ) -> None:
        self.config = EngineConfig(model=model, **fields)
        self._tokenizer = configured_tokenizer(self.config) if loaded_tokenizer is None else loaded_tokenizer
        kind = InProcess if self.config.data_parallel_size == 1 else InThread
        self._engine: OfflineEngine = kind(self.config, build, self._tokenizer)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts; return the outputs in their order.

        Args:
            prompts: one or several; each text, or token ids.
            sampling_params: for all, or one for each.
            use_tqdm: show a progress bar.

        Raises:
            BadRequest: one of them can never be served; then none is. EngineDead: the engine has ended.
        """
        listed = _listed(prompts)
        if sampling_params is None:
            sampling_params = SamplingParams()
        params = [sampling_params] * len(listed) if isinstance(sampling_params, SamplingParams) else sampling_params
        if len(params) != len(listed):
            raise BadRequest(f"there are {len(listed)} prompts and {len(params)} sampling_params; give one for each")
        with _bar(len(listed), use_tqdm) as finished:
            return self._engine.run(listed, params, finished)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one or several conversations; `options` are those of `Tokenizer.apply_chat_template`.

        Raises:
            BadRequest, EngineDead: as `generate`.
        """
        many = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [self._tokenizer.encode_chat(each, **options) for each in many]  # type: ignore[arg-type]  # see above
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        return self._tokenizer

    def stats(self) -> list[RankStats]:
        """Return what each rank told last."""
        return self._engine.stats()

    def shutdown(self) -> None:
        """End the engine. Idempotent."""
        self._engine.shutdown()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class InProcess:
    """One rank in this very process and thread."""

    def __init__(self, config: EngineConfig, build: str, tokenizer: Tokenizer) -> None:
        built = resolve(build)(config, 0)
        self.core = EngineCore(config, built)
        self.client = Client(1, False, lambda rank, message: self.core.read(message))
        self._tokenizer = tokenizer
        self._preparer = Preparer(tokenizer, self.core.scheduler.config.longest_request, built.vocab_size)

    def run(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], finished: OnFinished
    ) -> list[RequestOutput]:
        """Serve them all."""
        prepared = [self._preparer.prepare(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
        states = [RequestState(str(index), each, self._tokenizer) for index, each in enumerate(prepared)]
        done: dict[int, RequestOutput] = {}
        try:
            for index, state in enumerate(states):
                self._add(state, prepared[index], partial(done.setdefault, index))
            seen = 0
            while len(done) < len(states):
                busy = self.core.turn()
                for message in self.core.take():
                    self.client.received(message)
                for output in list(done.values())[seen:]:
                    finished(output)
                seen = len(done)
                if not busy and seen < len(states):
                    raise EngineDead(f"the engine stopped with {len(states) - seen} requests unfinished")
        finally:
            self.client.abort([id for state in states for id in state.unfinished_ids])
        return [_served(states[index], done[index]) for index in range(len(states))]

    def _add(self, state: RequestState, prepared: Prepared, finished: Callable[[RequestOutput], object]) -> None:
        def deliver(output: Output, rank: int) -> None:
            if state.push(output, rank):
                self.client.abort([output.id])
            if state.finished and (final := state.take("final")) is not None:
                finished(final)

        for request in prepared.requests:
            self.client.add(request, deliver)

    def stats(self) -> list[RankStats]:
        """Return what the rank told last."""
        return self.client.stats

    def shutdown(self) -> None:
        """End the rank."""
        self.core.shut_down()
        for message in self.core.take():
            self.client.received(message)


class InThread:
    """Ranks in processes; an event loop in a thread talks to them."""

    def __init__(self, config: EngineConfig, build: str, tokenizer: Tokenizer) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="onbeat")
        self._thread.start()
        try:
            self._engine = self._wait(AsyncLLM.from_config(config, build=build, tokenizer=tokenizer))
        except BaseException:
            self._end_loop()
            raise

    def run(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], finished: OnFinished
    ) -> list[RequestOutput]:
        """Serve them all."""
        return self._wait(self._run(prompts, params, finished))

    async def _run(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], finished: OnFinished
    ) -> list[RequestOutput]:
        streams = [
            self._engine.generate(prompt, each, str(index), output_kind="final")
            for index, (prompt, each) in enumerate(zip(prompts, params, strict=True))
        ]
        outputs = []
        for stream in streams:
            output = await anext(stream)
            finished(output)
            outputs.append(_served(stream.state, output))
        return outputs

    def stats(self) -> list[RankStats]:
        """Return what each rank told last."""
        return self._engine.stats()

    def shutdown(self) -> None:
        """End all ranks."""
        if not self._loop.is_closed():
            self._wait(self._engine.shutdown())
            self._end_loop()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [[token for token in prompts if isinstance(token, int)]]
    return [prompt for prompt in prompts if not isinstance(prompt, int)]


def _served(state: RequestState, output: RequestOutput) -> RequestOutput:
    """Return an output that is one.

    Raises:
        BadRequest: the scheduler refused the request. EngineDead: it could not be finished.
    """
    if state.refused is not None:
        raise BadRequest(state.refused)
    failed = next((each.error for each in output.outputs if each.finish_reason == "error"), None)
    if failed is not None:
        raise EngineDead(failed)
    return output


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[OnFinished]:
    """Show how many requests have finished, and the rate at which tokens come."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[tokens]} tokens"),
    )
    with Progress(*columns, disable=not shown) as progress:
        task = progress.add_task("Requests", total=total, tokens=0)
        tokens = 0

        def finished(output: RequestOutput) -> None:
            nonlocal tokens
            tokens += sum(len(each.token_ids) for each in output.outputs)
            progress.update(task, advance=1, tokens=tokens)

        yield finished
