"""The front end's side of the ranks' processes: starts them, talks to them, notices that one is gone, ends them."""

import asyncio
import contextlib
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
from onbeat_engine.messages import Ended, FromRank, Ready, Shutdown, ToRank
from onbeat_engine.process import FromRankMessage, RankSpec

log = logging.getLogger("onbeat.processes")

WATCH_EVERY = 0.1
"""Seconds between two looks at the processes."""
HANGS_AFTER = 2.0
"""A rank that has told nothing for so many times `collective_timeout` hangs, and is killed."""


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
    """

    def __init__(
        self,
        config: EngineConfig,
        build: str,
        received: Callable[[FromRank], None],
        died: Callable[[int, str], None],
    ) -> None:
        self.config = config
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
        self._folder = tempfile.mkdtemp(prefix="onbeat-")
        address = f"ipc://{self._folder}/ranks"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # nothing may be lost: a gap in the log ends a group
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        try:
            for info in self.infos:
                self._spawn(info, address)
            await self._loaded(self._socket)
        except BaseException:
            await self.stop(0.0)
            raise
        self._heard = dict.fromkeys(self._children, time.monotonic())
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
        for rank in self._children:
            self.send(rank, Shutdown())
        until = time.monotonic() + timeout
        while time.monotonic() < until and any(child.poll() is None for child in self._children.values()):
            await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for rank, child in self._children.items():
            if child.poll() is None:
                child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()
            self._gone(rank, "the engine was shut down")
        if self._socket is not None and self._context is not None:
            self._socket.close(linger=0)
            self._context.term()
            self._socket = None
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- Inside ------------------------------------------------------------------------------------------------------

    def _spawn(self, info: RankInfo, address: str) -> None:
        spec = RankSpec(config=self.config, rank=info.rank, address=address, build=self.build)
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
            child.stdin.write(msgspec.json.encode(spec) + b"\n")
            child.stdin.flush()

    async def _loaded(self, socket: zmq.asyncio.Socket) -> None:
        while len(self._ready) < len(self.infos):
            if await socket.poll(int(WATCH_EVERY * 1000)):
                message = self._decoder.decode((await socket.recv_multipart())[1])
                if isinstance(message, Ready):
                    self._ready[message.rank] = message
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
        last = time.monotonic()
        ended = set[int]()
        while True:
            await asyncio.sleep(WATCH_EVERY)
            now = time.monotonic()
            if now - last > patience / 2:  # it was us who slept: what ranks have told is still to be read
                self._heard = dict.fromkeys(self._heard, now)
            last = now
            for rank, child in self._children.items():
                if not self.infos[rank].alive or self._closing:
                    continue
                if child.poll() is not None and rank not in ended:
                    ended.add(rank)  # its last words may be in the socket: they are read until the next look
                elif child.returncode is not None:
                    self._lost(rank, f"its process ended: {_exit(child.returncode)}")
                elif now - self._heard[rank] > patience:
                    child.kill()
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
