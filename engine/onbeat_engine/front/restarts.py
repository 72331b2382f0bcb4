"""Starts groups of ranks again that have died."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from onbeat_engine.front.client import Client
from onbeat_engine.front.supervision import Processes
from onbeat_spec.errors import OnbeatError

log = logging.getLogger("onbeat.engine")

RESTART_AFTER = (0.0, 1.0, 5.0)
"""Seconds before each try to start ranks again; after the last one they are given up."""


class Restarts:
    """The groups that are being started again.

    Args:
        client: told when a group has joined again, or is given up.
        processes: of the ranks.
        started: called with the ranks of a group that runs again, before the client is told.
    """

    def __init__(self, client: Client, processes: Processes, started: Callable[[Sequence[int]], None]) -> None:
        self._client = client
        self._processes = processes
        self._started = started
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, group: int) -> None:
        """Start a group again that has died, unless that is under way."""
        if group not in self._client.recovering:
            self._client.recovering.add(group)
            task = asyncio.create_task(self._restart(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _restart(self, group: int) -> None:
        members = self._client.fronts[group].members
        for wait in RESTART_AFTER:
            await asyncio.sleep(wait)
            try:
                await self._processes.restart(members)
            except OnbeatError as error:
                log.error("ranks %s could not be started again: %s", members, error)
            except Exception:  # as above, and whoever waits for it must not wait for ever
                log.exception("ranks %s could not be started again", members)
            else:
                self._started(members)
                self._client.joined(group, self._processes.infos[members[0]].epoch)
                log.warning("ranks %s were started again", members)
                return
        self._client.given_up(group)
