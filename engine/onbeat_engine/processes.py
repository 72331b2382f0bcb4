"""The front end's side of the ranks' processes: starts them, talks to them, notices that one is gone, ends them."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import zmq
import zmq.asyncio

from onbeat_engine.config import EngineConfig
from onbeat_engine.errors import EngineDead
from onbeat_engine.messages import Ended, FromRank, Hello, Ping, Ready, Shutdown, ToRank
from onbeat_engine.parallel.place import free_port
from onbeat_engine.process import PING, FromRankMessage, RankSpec
from onbeat_spec.errors import ConfigError

log = logging.getLogger("onbeat.processes")

WATCH_EVERY = 0.1
"""Seconds between two looks at the processes."""
HANGS_AFTER = 2.0
"""A rank that has told nothing for so many times `collective_timeout` hangs, and is killed."""
LONGEST_FOLDER = 70
"""The path of a socket has at most 107 characters."""


@dataclass(slots=True)
class RankInfo:
    """A rank's process."""

    rank: int
    pid: int = 0
    alive: bool = True
    why: str = ""
    """Why it has ended."""


class Processes:
    """The processes of all ranks.

    Args:
        config: the deployment's.
        build: `module:function` that builds a rank.
        received: takes each message from a rank, once all are ready.
        died: told which rank is gone, and why.
        listen: where ranks that somebody else starts connect to, such as `tcp://0.0.0.0:7000`. Whoever can reach that
            can pose as a rank: it belongs on a private network.
        local_ranks: ranks 0 .. local_ranks - 1 are started here, the others elsewhere; None: all are.
    """

    def __init__(
        self,
        config: EngineConfig,
        build: str,
        received: Callable[[FromRank], None],
        died: Callable[[int, str], None],
        *,
        listen: str | None = None,
        local_ranks: int | None = None,
    ) -> None:
        self.config = config
        self.listen = listen
        self.local_ranks = config.data_parallel_size if local_ranks is None else local_ranks
        if listen is None and self.local_ranks < config.data_parallel_size:
            raise ConfigError(
                f"{self.local_ranks} of {config.data_parallel_size} ranks are started here, and there is no address "
                "that the others could connect to"
            )
        self.build = build
        self.infos = [RankInfo(rank) for rank in range(config.data_parallel_size)]
        self._received = received
        self._died = died
        self._folder = ""
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._heard: dict[int, float] = {}
        self._ready: dict[int, Ready] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromRankMessage)

    async def start(self) -> list[Ready]:
        """Start all ranks, and wait until they have loaded the model.

        Raises:
            EngineDead: one could not start; none is left running.
        """
        roomy = len(tempfile.gettempdir()) <= LONGEST_FOLDER
        self._folder = tempfile.mkdtemp(prefix="onbeat-", dir=None if roomy else "/tmp")
        address = f"ipc://{self._folder}/ranks"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # nothing may be lost: a gap in the log ends a group
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        try:
            self._meet()
            if self.listen is not None:
                self._bind(self._socket, self.listen)
            for info in self.infos[: self.local_ranks]:
                self._spawn(info, address)
            await self._loaded(self._socket)
        except BaseException:
            await self.stop(0.0)
            raise
        self._heard = dict.fromkeys(range(len(self.infos)), time.monotonic())
        self._tasks = [asyncio.create_task(self._read(self._socket)), asyncio.create_task(self._watch())]
        return [self._ready[rank] for rank in sorted(self._ready)]

    def send(self, rank: int, message: ToRank) -> None:
        """Send a message to a rank; messages to one rank keep their order."""
        if self._socket is not None:
            sent = asyncio.ensure_future(self._socket.send_multipart([b"%d" % rank, self._encoder.encode(message)]))
            sent.add_done_callback(lambda future: future.cancelled() or future.exception())  # `_watch` sees a dead rank

    def kill(self, rank: int) -> None:
        """Kill a rank's process."""
        child = self._children.get(rank)
        if child is not None and child.poll() is None:
            child.kill()

    async def stop(self, timeout: float) -> None:
        """End all ranks: ask, and after `timeout` seconds kill. Nothing of them is left."""
        self._closing = True
        for info in self.infos:
            self.send(info.rank, Shutdown())
        until = time.monotonic() + timeout
        while time.monotonic() < until and any(child.poll() is None for child in self._children.values()):
            await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for child in self._children.values():
            if child.poll() is None:
                child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()
        for info in self.infos:
            self._gone(info.rank, "the engine was shut down")
        if self._socket is not None and self._context is not None:
            self._socket.close(linger=0 if self.listen is None else 1000)
            self._context.term()
            self._socket = None
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- Inside ------------------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Say where ranks that share collectives meet, unless the configuration does."""
        if self.config.data_parallel_size > 1 and not self.config.data_parallel_port:
            port = free_port(self.config.data_parallel_address)
            self.config = dataclasses.replace(self.config, data_parallel_port=port)

    def _bind(self, socket: zmq.asyncio.Socket, address: str) -> None:
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot listen for ranks at {address}: {error}") from None

    def _spec(self, rank: int, address: str) -> bytes:
        return msgspec.json.encode(RankSpec(config=self.config, rank=rank, address=address, build=self.build))

    def _spawn(self, info: RankInfo, address: str) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        child = subprocess.Popen(
            [sys.executable, "-m", "onbeat_engine.process"],
            stdin=subprocess.PIPE,
            stdout=2,  # what a rank prints is no output of the front end's
            env={**os.environ, "PYTHONPATH": path},
        )
        assert child.stdin is not None
        self._children[info.rank] = child
        info.pid = child.pid
        with contextlib.suppress(BrokenPipeError):  # it ended at once: seen when it is waited for
            child.stdin.write(self._spec(info.rank, address) + b"\n")
            child.stdin.flush()

    async def _loaded(self, socket: zmq.asyncio.Socket) -> None:
        while len(self._ready) < len(self.infos):
            if await socket.poll(int(WATCH_EVERY * 1000)):
                sender, payload = await socket.recv_multipart()
                message = self._decoder.decode(payload)
                if isinstance(message, Ready):
                    self._ready[message.rank] = message
                    self.infos[message.rank].pid = message.pid
                elif isinstance(message, Hello) and self.local_ranks <= message.rank < len(self.infos):
                    await socket.send_multipart([sender, self._spec(message.rank, self.listen or "")])
                elif isinstance(message, Ended):
                    raise EngineDead(f"rank {message.rank} could not start: {message.why}")
                continue
            for rank, child in self._children.items():
                if child.poll() is not None:
                    raise EngineDead(f"rank {rank} could not start: {_exit(child.returncode)}")

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            sender, payload = await socket.recv_multipart()
            self._heard[int(sender)] = time.monotonic()
            try:
                message = self._decoder.decode(payload)
                if isinstance(message, Ended):
                    self._gone(message.rank, message.why)
                self._received(message)
            except Exception:  # one bad message must not stop the others
                log.exception("a message of rank %s could not be handled", sender)

    async def _watch(self) -> None:
        patience = HANGS_AFTER * self.config.collective_timeout
        last = pinged = time.monotonic()
        ended = set[int]()
        while True:
            await asyncio.sleep(WATCH_EVERY)
            now = time.monotonic()
            if now - last > patience / 2:  # it was us who slept: what ranks have told is still to be read
                self._heard = dict.fromkeys(self._heard, now)
            last = now
            if now - pinged >= PING:
                pinged = now
                for info in self.infos[self.local_ranks :]:
                    self.send(info.rank, Ping())
            for info in self.infos:
                rank, child = info.rank, self._children.get(info.rank)
                if not info.alive or self._closing:
                    continue
                if child is not None and child.poll() is not None:
                    if rank in ended:
                        self._lost(rank, f"its process ended: {_exit(child.returncode)}")
                    ended.add(rank)  # its last words may be in the socket: they are read until the next look
                elif now - self._heard[rank] > patience:
                    self.kill(rank)
                    self._lost(rank, f"it hung: nothing was heard of it for {patience:g} s")

    def _lost(self, rank: int, why: str) -> None:
        if self.infos[rank].alive:
            log.error("rank %d is gone: %s", rank, why)
            self._gone(rank, why)
            self._died(rank, why)

    def _gone(self, rank: int, why: str) -> None:
        info = self.infos[rank]
        if info.alive:
            info.alive, info.why = False, why


def _exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
