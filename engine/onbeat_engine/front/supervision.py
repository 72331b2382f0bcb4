"""The front end's side of the ranks: starts them, talks to them, notices that one is gone, ends them."""

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from onbeat_engine.front.channels import Channels
from onbeat_engine.front.children import Children
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.errors import EngineDead
from onbeat_engine.wire.handshake import HEARTBEAT, PING, RankSpec, Unwanted, identity
from onbeat_engine.wire.messages import Alive, Ended, FromRank, FromRankMessage, Hello, Ping, Ready, Shutdown, ToRank
from onbeat_engine.wire.ports import free_port
from onbeat_spec.errors import ConfigError

log = logging.getLogger("onbeat.processes")

WATCH_EVERY = 0.1
"""Seconds between two looks at the processes."""
HANGS_AFTER = 2.0
"""A rank that has told nothing for so many times `collective_timeout` hangs, and is killed; see `parallel/heart.py`."""
LEAST_PATIENCE = 4 * HEARTBEAT
"""Seconds that a rank may be silent at least: one that is idle, or works, may take two heartbeats to be heard."""


@dataclass(slots=True)
class RankInfo:
    """A rank's process."""

    rank: int
    pid: int = 0
    alive: bool = True
    why: str = ""
    """Why it has ended."""
    epoch: int = 0
    """How often it was started again."""


class Processes:
    """The processes of all ranks.

    Args:
        config: the deployment's.
        build: `module:function` that builds a rank.
        received: takes each message from a rank that is ready.
        died: told which rank is gone, and why; not of one that never was ready.
        listen: where ranks that somebody else starts connect to, such as `tcp://0.0.0.0:7000`. Whoever can reach that
            can pose as a rank: it belongs on a private network.
        local_ranks: ranks 0 .. local_ranks - 1 are started here, the others elsewhere; None: all are.

    Raises:
        ConfigError: some are started elsewhere, and cannot connect.
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
        self.build = build
        self.listen = listen
        self.local_ranks = config.data_parallel_size if local_ranks is None else local_ranks
        if listen is None and self.local_ranks < config.data_parallel_size:
            raise ConfigError(
                f"{self.local_ranks} of {config.data_parallel_size} ranks are started here, and there is no address "
                "that the others could connect to"
            )
        self._patience = max(HANGS_AFTER * config.collective_timeout, LEAST_PATIENCE)
        """Seconds that a rank may be silent."""
        self.infos = [RankInfo(rank) for rank in range(config.data_parallel_size)]
        self._received = received
        self._died = died
        self._started = config
        """The configuration that ranks are given: with the port where they meet."""
        self._name = os.urandom(4).hex()
        self._channels = Channels(self._take, listen)
        self._children = Children()
        self._ready: dict[int, Ready] = {}
        self._up: dict[int, float] = {}
        """Ranks that serve, and when they were heard of last."""
        self._awaited: set[int] = set()
        """Ranks that are starting."""
        self._callers: dict[int, bytes] = {}
        """Ranks started elsewhere that ask for their configuration: where the answer goes."""
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._encoder = msgspec.msgpack.Encoder()

    async def start(self) -> list[Ready]:
        """Start all ranks, and wait until they have loaded the model.

        Raises:
            EngineDead: one could not start; none is left running. ConfigError: nobody can connect to `listen`.
        """
        try:
            self._channels.open()
            self._tasks = [asyncio.create_task(self._channels.read()), asyncio.create_task(self._watch())]
            return await self._launch(range(len(self.infos)))
        except BaseException:
            await self.stop(0.0)
            raise

    async def restart(self, ranks: Sequence[int]) -> list[Ready]:
        """End what is left of these ranks, and start them again.

        Raises:
            EngineDead: one could not start; none of them is left running.
        """
        await self._end(ranks)
        for rank in ranks:
            self.infos[rank] = RankInfo(rank, epoch=self.infos[rank].epoch + 1)
        try:
            return await self._launch(ranks)
        except EngineDead:
            await self._end(ranks)
            raise

    def send(self, rank: int, message: ToRank) -> None:
        """Send a message to a rank; messages to one rank keep their order."""
        self._channels.send(identity(rank, self._group(rank)), self._encoder.encode(message))

    async def stop(self, timeout: float) -> None:
        """End all ranks: ask, and after `timeout` seconds kill. Nothing of them is left."""
        self._closing = True
        for info in self.infos:
            self.send(info.rank, Shutdown())
        until = time.monotonic() + timeout
        while time.monotonic() < until and self._children.reap():
            await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end(range(len(self.infos)))
        for info in self.infos:
            self._gone(info.rank, "the engine was shut down")
        self._channels.close()

    # --- Starting and ending -----------------------------------------------------------------------------------------

    async def _launch(self, ranks: Sequence[int]) -> list[Ready]:
        self._meet()
        for rank in ranks:
            self._ready.pop(rank, None)
            if rank < self.local_ranks:
                self.infos[rank].pid = self._children.start(rank, self._spec(rank))
            elif rank in self._callers:
                self._channels.send(self._callers.pop(rank), self._spec(rank))
        self._awaited.update(ranks)
        if elsewhere := [rank for rank in ranks if rank >= self.local_ranks]:
            log.info("waiting for ranks %s, started elsewhere with --connect %s", elsewhere, self.listen)
        try:
            while not all(rank in self._ready for rank in ranks):
                for rank in ranks:
                    if not self.infos[rank].alive:
                        raise EngineDead(f"rank {rank} could not start: {self.infos[rank].why}")
                await asyncio.sleep(0.01)
        finally:
            self._awaited.difference_update(ranks)
        self._up.update(dict.fromkeys(ranks, time.monotonic()))
        return [self._ready[rank] for rank in ranks]

    def _meet(self) -> None:
        """Say where ranks that share collectives meet, unless the configuration does."""
        if self.config.data_parallel_size > 1 and not self.config.data_parallel_port:
            address = self.config.data_parallel_address
            try:
                port = free_port(address)
            except OSError as error:
                raise ConfigError(
                    f"data_parallel_address {address} is not of this machine ({error}); if rank 0 is elsewhere, "
                    f"give data_parallel_port too"
                ) from None
            self._started = dataclasses.replace(self.config, data_parallel_port=port)

    def _spec(self, rank: int) -> bytes:
        address = self._channels.address if rank < self.local_ranks else ""
        epoch = self.infos[rank].epoch
        spec = RankSpec(
            config=self._started,
            rank=rank,
            epoch=epoch,
            group=self._group(rank),
            address=address,
            build=self.build,
        )
        return msgspec.json.encode(spec)

    def _group(self, rank: int) -> str:
        return f"{self._name}.{self.infos[rank].epoch}"  # all ranks of a group are started again together

    async def _end(self, ranks: Sequence[int]) -> None:
        """Kill what is left of these ranks."""
        for rank in ranks:
            self._up.pop(rank, None)
        await self._children.end(ranks)

    # --- Messages, and the lack of them ------------------------------------------------------------------------------

    def _take(self, sender: bytes, message: FromRankMessage) -> None:
        rank = message.rank
        if isinstance(message, Hello):
            self._greeted(rank, sender)
            return
        if not 0 <= rank < len(self.infos):
            return
        if isinstance(message, Alive):
            if message.epoch == self.infos[rank].epoch and rank in self._up:
                self._up[rank] = time.monotonic()
            return
        if sender != identity(rank, self._group(rank)):  # of one that was started before
            return
        if isinstance(message, Ready):
            self._ready[rank] = message
            self.infos[rank].pid = message.pid
        if isinstance(message, Ended):
            self._gone(rank, message.why)
        if rank in self._up:
            self._up[rank] = time.monotonic()
            self._received(message)

    def _greeted(self, rank: int, sender: bytes) -> None:
        """A process that was started elsewhere asks what it is to do."""
        if not self.local_ranks <= rank < len(self.infos):
            here = f", of which 0 to {self.local_ranks - 1} are started by the front end" if self.local_ranks else ""
            why = f"RANK is {rank}; there are {len(self.infos)} ranks, from 0 on{here}"
            log.warning("a process asked to be a rank: %s", why)
            self._channels.send(sender, msgspec.json.encode(Unwanted(why)))
        elif rank in self._awaited:
            self._channels.send(sender, self._spec(rank))
        else:
            self._callers[rank] = sender
            self._lost(rank, "another process has come in its place")

    async def _watch(self) -> None:
        last = pinged = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_EVERY)
            now = time.monotonic()
            if now - last > self._patience / 2:
                self._up = dict.fromkeys(self._up, now)  # it was us who slept: what ranks have told is still to be read
            last = now
            if now - pinged >= PING:
                pinged = now
                for info in self.infos[self.local_ranks :]:
                    self.send(info.rank, Ping())
            self._children.reap()  # whoever said why it ends is waited for no more, and would stay in the process table
            for info in self.infos:
                if info.alive and not self._closing:
                    try:
                        self._look(info.rank, now)
                    except Exception:  # nobody else looks after the other ranks
                        log.exception("the end of rank %d could not be handled", info.rank)

    def _look(self, rank: int, now: float) -> None:
        """See whether a rank lives."""
        how = self._children.ended(rank)
        if how:
            self._lost(rank, f"its process ended: {how}")
        elif how is None and now - self._up.get(rank, now) > self._patience:
            self._children.kill(rank)
            self._lost(rank, f"it hung: nothing was heard of it for {self._patience:g} s")

    def _lost(self, rank: int, why: str) -> None:
        if self.infos[rank].alive and (rank in self._up or rank in self._children):
            log.error("rank %d is gone: %s", rank, why)
            self._gone(rank, why)
            if rank in self._up:
                self._died(rank, why)

    def _gone(self, rank: int, why: str) -> None:
        info = self.infos[rank]
        if info.alive:
            info.alive, info.why = False, why
