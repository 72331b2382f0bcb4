"""A request's outputs as an asynchronous iterator."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from onbeat_engine.front.outputs import OutputKind, RequestOutput, RequestState
from onbeat_engine.wire.errors import BadRequest


class RequestStream(AsyncIterator[RequestOutput]):
    """The outputs of one request. What comes while nobody reads is merged, so a slow reader costs no memory.

    A task that is cancelled while it waits here aborts the request, and so does `aclose`, or letting go of the stream.

    Args:
        forget: told when nobody reads on.
        state: of the request.
        news: set when there is something new.
        kind: what each output holds.
    """

    def __init__(
        self, forget: Callable[[RequestState], None], state: RequestState, news: asyncio.Event, kind: OutputKind
    ) -> None:
        self.state = state
        self._forget = forget
        self._kind = kind
        self._news = news
        self._over = False

    async def __anext__(self) -> RequestOutput:
        """Return the next output.

        Raises:
            BadRequest: the scheduler refused the request: it can never fit.
        """
        if self._over:
            raise StopAsyncIteration
        while (output := self.state.take(self._kind)) is None:
            self._news.clear()
            try:
                await self._news.wait()
            except asyncio.CancelledError:
                self._end()
                raise
        if output.finished:
            self._end()
            if self.state.refused is not None:
                raise BadRequest(self.state.refused)
        return output

    async def aclose(self) -> None:
        """End it; a request that has not finished is aborted."""
        self._end()

    async def __aenter__(self) -> "RequestStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def __del__(self) -> None:
        if hasattr(self, "_over"):  # else it was never set up
            self._end()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._forget(self.state)
