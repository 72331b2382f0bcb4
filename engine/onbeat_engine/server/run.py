"""A server's life: its socket, its signals, its end in two phases (case B105)."""

import asyncio
import contextlib
import errno
import logging
import resource
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator

import uvicorn

from onbeat_engine.server.app import build
from onbeat_engine.server.connection import patient
from onbeat_engine.server.engine import Engine
from onbeat_engine.server.options import ServerConfig
from onbeat_engine.server.serving import Serving
from onbeat_engine.wire.errors import TryLater
from onbeat_spec.errors import ConfigError

log = logging.getLogger("onbeat.server")

LAST_WORDS = 5.0
"""Seconds that aborted requests have to tell their clients."""
POLL = 0.02
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def open_socket(config: ServerConfig) -> socket.socket:
    """Return a socket bound to the configured address. Nobody can connect until the server listens on it.

    Raises:
        ConfigError: the address is in use, or not ours.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"the host {config.host!r} cannot be used: {error.strerror or error}") from error
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Connections inherit it: the kernel ends one whose client takes nothing, which then is a disconnect like any.
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(config.client_timeout * 1000))
    try:
        opened.bind(address)
    except OSError as error:
        opened.close()
        why = "is in use; choose another --port" if error.errno == errno.EADDRINUSE else f"fails: {error.strerror}"
        raise ConfigError(f"{config.host}:{config.port} {why}") from error
    return opened


class Server(uvicorn.Server):
    """uvicorn's, which leaves the signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install nothing."""
        yield


class GracefulShutdown:
    """Refuse what is new, finish what runs until the drain's timeout, abort the rest, each with a terminal event."""

    def __init__(self, serving: Serving, server: uvicorn.Server) -> None:
        self.serving = serving
        self.server = server
        self.at_once = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Begin; a second call ends the first phase."""
        if self.task is None:
            self.task = asyncio.create_task(self._run())
        else:
            self.at_once.set()

    async def _run(self) -> None:
        jobs, timeout = self.serving.jobs, self.serving.config.drain_timeout
        jobs.draining = True
        if jobs.running:
            log.info("shutting down; %d completions have %g s to finish", jobs.in_flight, timeout)
        await self._until_idle(timeout, self.at_once)
        if jobs.running:
            log.info("aborting %d completions", jobs.in_flight)
            jobs.end_all(TryLater("the server is shutting down, the request was aborted; send it elsewhere"))
            await self._until_idle(LAST_WORDS)
        self.server.should_exit = True

    async def _until_idle(self, timeout: float, cut_short: asyncio.Event | None = None) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self.serving.jobs.running and loop.time() < deadline and not (cut_short and cut_short.is_set()):
            await asyncio.sleep(POLL)


async def serve(
    load: Callable[[], Awaitable[Engine]],
    config: ServerConfig,
    opened: socket.socket,
    *,
    started: Callable[[Serving, GracefulShutdown], None] | None = None,
) -> None:
    """Load the engine, then serve it until a signal, or `GracefulShutdown.request`, ends that.

    Args:
        started: called once requests can come.

    Raises:
        OnbeatError: the engine could not be loaded.
    """
    raise_file_limit()
    loading = asyncio.ensure_future(load())
    stop: Callable[[], object] = loading.cancel

    def signalled() -> None:
        stop()

    with signals(signalled):  # until the engine has ended: a signal that comes then must not cut that short
        try:
            engine = await loading
        except BaseException as error:
            opened.close()
            if isinstance(error, asyncio.CancelledError):  # by a signal: there is nothing yet that has to end well
                return
            raise
        try:
            app, serving = build(engine, config)
            server = Server(
                uvicorn.Config(
                    app,
                    http=patient(config.client_timeout),
                    lifespan="off",
                    ws="none",
                    log_level=config.log_level,
                    access_log=False,
                    timeout_graceful_shutdown=int(LAST_WORDS),
                    server_header=False,
                )
            )
            shutdown = GracefulShutdown(serving, server)
            stop = shutdown.request
            serving_task = asyncio.create_task(server.serve([opened]))
            while not server.started and not serving_task.done():
                await asyncio.sleep(POLL)
            if started is not None and server.started:
                started(serving, shutdown)
            try:
                await serving_task
            except OSError as error:  # somebody else was bound to the address too, and was the first to listen
                raise ConfigError(f"{config.host}:{config.port} fails: {error.strerror or error}") from error
        finally:
            opened.close()
            await engine.shutdown()


@contextlib.contextmanager
def signals(handler: Callable[[], object]) -> Iterator[None]:
    """Have signals that end a process call a handler; they can only be had in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def raise_file_limit() -> None:
    """Allow as many connections as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
