"""What all endpoints share: the engine, its names, prompts, and how a job's outputs go out."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onbeat_engine.server import errors
from onbeat_engine.server.engine import Engine, ServedChoice, ServedLogprobs, ServedOutput
from onbeat_engine.server.jobs import ClientGone, Job, Jobs
from onbeat_engine.server.metrics import ServerMetrics
from onbeat_engine.server.options import ServerConfig
from onbeat_engine.server.request_bodies import Message
from onbeat_engine.server.response_bodies import PromptTokensDetails, Usage
from onbeat_engine.wire.errors import BadRequest

Result = TypeVar("Result")

LONG_TEXT = 20_000
"""Characters from which on a text is tokenized beside the event loop, not in it."""
DONE = b"data: [DONE]\n\n"


class Serving:
    """The state of the server."""

    def __init__(self, engine: Engine, config: ServerConfig) -> None:
        self.engine = engine
        self.config = config
        self.model = config.served_model_names[0]
        self.metrics = ServerMetrics(engine, self.model)
        self.jobs = Jobs(engine, self.metrics, config.max_in_flight)
        self.metrics.watch("http_requests_in_flight", "HTTP requests that generate.", lambda: len(self.jobs.running))
        self.created = int(time.time())

    def check_model(self, name: str | None) -> None:
        """Raise ModelNotFound for a name that is not served; none at all means the only model."""
        if name is not None and name not in self.config.served_model_names:
            known = ", ".join(self.config.served_model_names)
            raise errors.ModelNotFound(f"there is no model {name!r} here; there is {known}", "model")

    async def encode(self, prompts: Sequence[str | list[int]], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Return the token ids of texts; what is ids already stays as it is.

        Raises:
            BadRequest: one has more than the model takes.
        """

        def encoded(prompt: str | list[int]) -> list[int]:
            if isinstance(prompt, list):
                return prompt
            limit = self.engine.max_model_len
            return self.engine.tokenizer.encode(prompt, add_special_tokens=add_special_tokens, max_tokens=limit)

        characters = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
        return await beside(lambda: [encoded(prompt) for prompt in prompts], characters)

    async def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the prompt that the chat template makes of messages.

        Raises:
            BadRequest: the template refuses them, or it has more tokens than the model takes.
        """
        if not messages:
            raise BadRequest("messages is empty", "messages")
        if add_generation_prompt and continue_final_message:
            raise BadRequest("continue_final_message excludes add_generation_prompt", "continue_final_message")
        plain = [message.model_dump(exclude_none=True) for message in messages]
        work = partial(
            self.engine.tokenizer.encode_chat,
            plain,
            max_tokens=self.engine.max_model_len,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=variables,
        )
        return await beside(work, sum(len(str(message.content)) for message in messages))


async def beside(work: Callable[[], Result], characters: int) -> Result:
    """Run work on so many characters: in the event loop if it is short, else beside it."""
    return work() if characters < LONG_TEXT else await asyncio.to_thread(work)


class UsageTally:
    """Tokens that a request took, counted as its outputs come."""

    def __init__(self, job: Job) -> None:
        self.prompt = sum(map(len, job.work.prompts))
        self.only_prompt = job.work.only_prompt
        self.completion = 0
        self.cached: dict[int, int] = {}

    def count(self, prompt: int, output: ServedOutput) -> None:
        """Count an output of the prompt with this index."""
        if not self.only_prompt:
            self.completion += sum(len(choice.token_ids) for choice in output.outputs)
        self.cached[prompt] = output.num_cached_tokens

    def usage(self) -> Usage:
        """Return the tokens so far."""
        return Usage(
            prompt_tokens=self.prompt,
            completion_tokens=self.completion,
            total_tokens=self.prompt + self.completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self.cached.values())),
        )


class Gathered:
    """One completion, whole: what its outputs brought, put together."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[ServedLogprobs] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    def add(self, choice: ServedChoice) -> None:
        """Add what is new."""
        self.texts.append(choice.text)
        self.token_ids += choice.token_ids
        self.logprobs += choice.logprobs or ()
        self.finish_reason = choice.finish_reason
        self.stop_reason = choice.stop_reason

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.texts)


@dataclass(slots=True)
class Whole:
    """All that a job brought."""

    choices: list[Gathered]
    """Choice k of prompt i at i * n + k."""
    prompt_logprobs: list[Sequence[ServedLogprobs | None] | None]
    """By prompt."""
    usage: Usage


async def gather(job: Job) -> Whole:
    """Wait for all of a job.

    Raises:
        OnbeatError: it failed.
        ClientGone: nobody waits any more.
    """
    n, prompts = job.work.params.n, len(job.work.prompts)
    whole = [Gathered() for _ in range(n * prompts)]
    prompt_logprobs: list[Sequence[ServedLogprobs | None] | None] = [None] * prompts
    tally = UsageTally(job)
    async with aclosing(job.outputs()) as outputs:
        async for i, output in outputs:
            tally.count(i, output)
            if output.prompt_logprobs is not None:
                prompt_logprobs[i] = output.prompt_logprobs
            for choice in output.outputs:
                whole[i * n + choice.index].add(choice)
    return Whole(whole, prompt_logprobs, tally.usage())


def event(chunk: Mapping[str, Any]) -> bytes:
    """Return a chunk as a server-sent event."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


class EventStream(Response):
    """A job's outputs as server-sent events.

    Whatever happens, its end is told: by a finish reason for each choice or an error event, and `[DONE]`.

    Args:
        chunks: makes the chunks of one choice's output from (its index in the answer, what is new).
        head: what every chunk begins with.
        include_usage: end with a chunk without choices that tells the usage (case B93).
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        job: Job,
        chunks: Callable[[int, ServedChoice], Sequence[Mapping[str, Any]]],
        *,
        head: Mapping[str, Any],
        include_usage: bool,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.job = job
        self.chunks = chunks
        self.head = head
        self.include_usage = include_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all of it."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with aclosing(self._events()) as events:
                async for content in events:
                    await send({"type": "http.response.body", "body": content, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await self.job.close()

    async def _events(self) -> AsyncGenerator[bytes]:
        n = self.job.work.params.n
        tally = UsageTally(self.job)
        try:
            async with aclosing(self.job.outputs()) as outputs:
                async for i, output in outputs:
                    tally.count(i, output)
                    for choice in output.outputs:
                        for chunk in self.chunks(i * n + choice.index, choice):
                            yield event({**self.head, "choices": [chunk]})
        except ClientGone:
            return
        except Exception as error:
            yield event(errors.body_of(error))
        else:
            if self.include_usage:
                yield event({**self.head, "choices": [], "usage": tally.usage().model_dump()})
        yield DONE
