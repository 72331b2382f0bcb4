"""A server in a thread, over any engine, and clients of it."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

from onbeat_engine.server.engine import Engine
from onbeat_engine.server.options import ServerConfig
from onbeat_engine.server.run import GracefulShutdown, open_socket, serve
from onbeat_engine.server.serving import Serving

MODEL = "tiny"
PATIENCE = 20.0


@dataclass
class Live:
    """A server that runs in a thread."""

    port: int
    thread: threading.Thread | None = None
    loop: asyncio.AbstractEventLoop | None = None
    serving: Serving | None = None
    shutdown: GracefulShutdown | None = None
    started: threading.Event = field(default_factory=threading.Event)
    failed: BaseException | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine(self) -> Any:
        assert self.serving is not None
        return self.serving.engine

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, **options)

    def openai(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE)

    def request_shutdown(self) -> None:
        """Do what the first signal does, and at the second call what the second does."""
        assert self.loop is not None
        assert self.shutdown is not None
        self.loop.call_soon_threadsafe(self.shutdown.request)

    def join(self) -> None:
        assert self.thread is not None
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the server has not ended"
        if self.failed is not None:
            raise self.failed

    def raw(self, body: bytes, path: str = "/v1/completions", headers: str = "") -> socket.socket:
        """Send a POST over a socket of one's own, and read nothing yet."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return connection


@contextlib.contextmanager
def live(load: Callable[[], Awaitable[Any]], **config: Any) -> Iterator[Live]:
    """Serve what LOAD returns; at the end the server is shut down, unless the test has done that."""
    settings = ServerConfig(port=0, served_model_names=(MODEL,), log_level="warning", **config)
    opened = open_socket(settings)
    server = Live(opened.getsockname()[1])

    def started(serving: Serving, shutdown: GracefulShutdown) -> None:
        server.serving, server.shutdown = serving, shutdown
        server.started.set()

    async def run() -> None:
        server.loop = asyncio.get_running_loop()
        await serve(load, settings, opened, started=started)

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            server.failed = error
            server.started.set()

    server.thread = threading.Thread(target=main, daemon=True)
    server.thread.start()
    assert server.started.wait(PATIENCE), "the server has not started"
    try:
        yield server
    finally:
        if server.failed is None and server.thread.is_alive():
            server.request_shutdown()
        server.join()


@contextlib.contextmanager
def over(engine: Engine, **config: Any) -> Iterator[Live]:
    """Serve an engine that is there already."""

    async def load() -> Engine:
        return engine

    with live(load, **config) as server:
        yield server


def until(holds: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait until something holds; tell whether it did."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def events(text: str) -> list[str]:
    """Return the data of the server-sent events in a text."""
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line]
