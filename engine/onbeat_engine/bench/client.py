"""Sends planned requests to an OpenAI-compatible server, on time whatever the server does, and notes what came when."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from onbeat_engine.bench.prompts import Planned
from onbeat_spec.errors import OnbeatError

HEAD_START = 0.05
"""Seconds between the planning of all requests and the start."""


class Unreachable(OnbeatError):
    """No server answered at the given address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTarget:
    """Where requests go, and what they ask for beside prompt and length."""

    base_url: str
    model: str
    chat: bool = False
    endpoint: str | None = None
    """None: the OpenAI path of completions or chat completions."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every request."""
    timeout: float = 600.0
    """Seconds after which a request counts as failed."""

    @property
    def url(self) -> str:
        """The address of every request."""
        path = self.endpoint or ("/v1/chat/completions" if self.chat else "/v1/completions")
        return self.base_url.rstrip("/") + path


@dataclass(slots=True)
class RequestResult:
    """What became of one request. Times are seconds after the start."""

    planned: Planned
    sent: float = 0.0
    lateness: float = 0.0
    """Seconds between the moment it was due and the moment this client got to it: the client's own delay."""
    chunks: list[float] = field(default_factory=list)
    """When each chunk that carried text came."""
    ended: float = 0.0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """As the server counted; None: it did not say."""
    error: str = ""

    @property
    def ok(self) -> bool:
        """It came to its regular end."""
        return not self.error

    @property
    def tokens(self) -> int:
        """Output tokens; the chunks, if the server did not count."""
        return len(self.chunks) if self.output_tokens is None else self.output_tokens


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


async def models(base_url: str, headers: Mapping[str, str], *, timeout: float = 10.0) -> list[str]:
    """Return the models that a server serves.

    Raises:
        Unreachable: it does not answer, or not as an OpenAI-compatible server does.
    """
    url = base_url.rstrip("/") + "/v1/models"
    try:
        async with httpx.AsyncClient(timeout=timeout, headers=dict(headers)) as client:
            answer = await client.get(url)
        answer.raise_for_status()
        return [str(model["id"]) for model in answer.json()["data"]]
    except httpx.HTTPStatusError as error:
        raise Unreachable(f"{url} answered {error.response.status_code}; give the right --base-url and key") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unreachable(
            f"{url} cannot be reached ({_said(error)}); start the server, or give its --base-url"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Unreachable(f"{url} gives no list of models; is an OpenAI-compatible server there?") from error


async def drive(
    target: ServerTarget,
    planned: Sequence[Planned],
    *,
    max_concurrency: int | None = None,
    progress: Callable[[RequestResult], None] | None = None,
) -> tuple[list[RequestResult], float]:
    """Send every request when it is due; return what became of each, in order, and the seconds until the last ended.

    Args:
        max_concurrency: most requests under way at once; those that are due wait, and their times count from when
            they are sent. This is no open loop any more.
        progress: told of each request that has ended.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else None
    timeout = httpx.Timeout(target.timeout, pool=None)
    async with httpx.AsyncClient(limits=limits, timeout=timeout, headers=dict(target.headers)) as client:
        start = time.perf_counter() + HEAD_START

        async def one(each: Planned) -> RequestResult:
            outcome = RequestResult(each)
            await asyncio.sleep(max(0.0, start + each.at - time.perf_counter()))
            outcome.lateness = max(0.0, time.perf_counter() - start - each.at)
            if gate is None:
                await _send(client, target, outcome, start)
            else:
                async with gate:
                    await _send(client, target, outcome, start)
            if progress is not None:
                progress(outcome)
            return outcome

        outcomes = await asyncio.gather(*(one(each) for each in planned))
    return outcomes, max((outcome.ended for outcome in outcomes), default=0.0)


async def _send(client: httpx.AsyncClient, target: ServerTarget, outcome: RequestResult, start: float) -> None:
    """Send one request, and read its stream to the end; whatever goes wrong is noted."""
    content = msgspec.json.encode(_body(target, outcome.planned))
    headers = {"content-type": "application/json"}
    outcome.sent = time.perf_counter() - start
    try:
        async with asyncio.timeout(target.timeout):
            async with client.stream("POST", target.url, content=content, headers=headers) as answer:
                if answer.status_code != 200:
                    text = (await answer.aread())[:200].decode("utf-8", "replace")
                    outcome.error = f"status {answer.status_code}: {' '.join(text.split())}"
                else:
                    await _read(answer, outcome, start)
    except TimeoutError:
        outcome.error = f"timed out after {target.timeout:g} s"
    except httpx.HTTPError as error:
        outcome.error = _said(error)
    except msgspec.DecodeError as error:
        outcome.error = f"a chunk is not what it should be: {error}"
    outcome.ended = time.perf_counter() - start


def _body(target: ServerTarget, planned: Planned) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": target.model,
        "max_tokens": planned.output_len,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.chat:
        asked["messages"] = [{"role": "user", "content": planned.prompt}]
    else:
        asked["prompt"] = planned.prompt
    return {**asked, **target.body}


async def _read(answer: httpx.Response, outcome: RequestResult, start: float) -> None:
    """Read server-sent events; those that come in one read have come at one time."""
    rest = b""
    done = finished = False
    async for raw in answer.aiter_bytes():
        now = time.perf_counter() - start
        *lines, rest = (rest + raw).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                done = True
                continue
            chunk = _decode(data)
            if chunk.error is not None:
                outcome.error = f"the server sent an error: {str(chunk.error)[:200]}"
            if chunk.usage is not None:
                outcome.prompt_tokens = chunk.usage.prompt_tokens
                outcome.output_tokens = chunk.usage.completion_tokens
            if any(map(_carries, chunk.choices)):
                outcome.chunks.append(now)
            for choice in chunk.choices:
                finished = finished or bool(choice.finish_reason)
                if choice.finish_reason in ("abort", "error"):
                    outcome.error = f"the server ended it: {choice.finish_reason}"
    if not outcome.error and not (finished or done):
        outcome.error = "the stream ended early"
    elif not outcome.error and not outcome.chunks:
        outcome.error = "no text came"


def _carries(choice: _Choice) -> bool:
    """Whether a chunk brings text: the first one of a chat names the role alone."""
    delta = choice.delta
    return bool(choice.text or (delta and (delta.content or delta.reasoning or delta.reasoning_content)))


def _said(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
