"""A small OpenAI-compatible server whose timings are known: it runs in a thread, on loopback."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Behaviour:
    """How it answers. Times are seconds."""

    first: float = 0.05
    """Until the first text."""
    gap: float = 0.01
    """Between two texts."""
    heard: Callable[[], int] | None = None
    """How many texts the client has noted: each but the first is written only a gap after those before it were."""
    together: int = 0
    """Nobody is answered before so many requests are there."""
    tokens_per_chunk: int = 1
    usage: bool = True
    fault: str = ""
    """`status`, `error`, `cut`, `garbage`, `silent` or `hang`: what goes wrong with every third request."""
    models: tuple[str, ...] = ("fake",)


@dataclass
class FakeServer:
    """Use as a context; `url` is its address."""

    behaviour: Behaviour = field(default_factory=Behaviour)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each request had been read: `time.perf_counter()`, the client's clock."""
    written: list[float] = field(default_factory=list)
    """When each text was written, by the same clock."""
    most: int = 0
    """Requests that were under way at once."""
    url: str = ""
    _now: int = 0

    def __enter__(self) -> "FakeServer":
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(started)))
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _main(self, started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            pairs = [line.split(": ", 1) for line in head.split("\r\n")[1:] if line]
            headers = {name.lower(): value for name, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if head.startswith("GET /v1/models"):
                data = {"object": "list", "data": [{"id": name} for name in self.behaviour.models]}
                self._plain(writer, "200 OK", json.dumps(data))
            else:
                await self._complete(writer, head.split(" ")[1], headers, json.loads(body))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _complete(
        self, writer: asyncio.StreamWriter, path: str, headers: dict[str, str], asked: dict[str, Any]
    ) -> None:
        self.times.append(time.perf_counter())
        self.requests.append({"path": path, **asked})
        self.headers.append(headers)
        fault = self.behaviour.fault if len(self.requests) % 3 == 0 else ""
        if fault == "status":
            self._plain(writer, "503 Service Unavailable", '{"error": "full"}')
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            async for data in self._chunks(path.endswith("chat/completions"), asked, fault):
                writer.write(f"data: {data}\n\n".encode())
                await writer.drain()
        finally:
            self._now -= 1

    async def _chunks(self, chat: bool, asked: dict[str, Any], fault: str) -> AsyncIterator[str]:
        how, tokens = self.behaviour, asked["max_tokens"]
        if chat:
            yield json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        await asyncio.sleep(how.first if fault != "hang" else 60)
        while len(self.requests) < how.together:
            await asyncio.sleep(0.001)
        sent = 0
        while sent < tokens:
            if sent:
                while how.heard is not None and how.heard() < sent:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(how.gap)
            if sent and fault == "cut":
                return
            if sent and fault == "error":
                yield json.dumps({"error": {"message": "rank 1 died"}})
                return
            if sent and fault == "garbage":
                yield "{"
                return
            sent += how.tokens_per_chunk
            text = "" if fault == "silent" else " tok"
            end = ("abort" if fault == "abort" else "length") if sent >= tokens else None
            choice = {"delta": {"content": text}} if chat else {"text": text}
            self.written.append(time.perf_counter())
            yield json.dumps({"choices": [{"index": 0, "finish_reason": end, **choice}]})
        if how.usage:
            words = len(asked["prompt"]) if isinstance(asked.get("prompt"), list) else 7
            yield json.dumps({"choices": [], "usage": {"prompt_tokens": words, "completion_tokens": tokens}})
        yield "[DONE]"

    def _plain(self, writer: asyncio.StreamWriter, status: str, text: str) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(text)}\r\n\r\n{text}".encode())
