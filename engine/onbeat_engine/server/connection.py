"""Ends connections that are of no use: uvicorn's own limits begin with the end of the first answer."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """One connection; it is ended if no request is under way on it, and none comes, for `patience` seconds."""

    patience = 60.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._look: asyncio.TimerHandle | None = None
        self._idle_since: object = self
        """The request whose end the last look saw; None: none had come by then; itself: one was under way."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """It begins."""
        super().connection_made(transport)
        self._look = self.loop.call_later(self.patience, self._looks)
        self._idle_since = None

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def _looks(self) -> None:
        cycle: Any = self.cycle  # None at first
        idle = cycle is None or cycle.response_complete
        if idle and self._idle_since is cycle:
            self.transport.abort()
            return
        self._idle_since = cycle if idle else self
        self._look = self.loop.call_later(self.patience, self._looks)


def patient(seconds: float) -> type[Connection]:
    """Return the class of connections that wait for so long."""
    return type("Patient", (Connection,), {"patience": seconds})
