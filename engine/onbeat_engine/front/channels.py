"""The front end's socket: messages to and from the processes of ranks, each by the name of its channel."""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable

import msgspec
import zmq
import zmq.asyncio

from onbeat_engine.wire.messages import FromRankMessage
from onbeat_spec.errors import ConfigError

log = logging.getLogger("onbeat.processes")

LONGEST_FOLDER = 70
"""The path of a socket has at most 107 characters."""


class Channels:
    """The connections to all processes.

    Args:
        received: takes each message, and from which channel it came.
        listen: as of `Processes`.

    Attributes:
        folder: has the socket of the ranks that are started here.
    """

    def __init__(self, received: Callable[[bytes, FromRankMessage], None], listen: str | None) -> None:
        self.folder = ""
        self._received = received
        self._listen = listen
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._decoder = msgspec.msgpack.Decoder(FromRankMessage)

    @property
    def address(self) -> str:
        """Where ranks that are started here connect to."""
        return f"ipc://{self.folder}/ranks"

    def open(self) -> None:
        """Listen.

        Raises:
            ConfigError: nobody can connect to `listen`.
        """
        roomy = len(tempfile.gettempdir()) <= LONGEST_FOLDER
        self.folder = tempfile.mkdtemp(prefix="onbeat-", dir=None if roomy else "/tmp")
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # nothing may be lost: a gap in the log ends a group
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(self.address)
        if self._listen is not None:
            try:
                self._socket.bind(self._listen)
            except zmq.ZMQError as error:
                raise ConfigError(f"cannot listen for ranks at {self._listen}: {error}") from None

    def send(self, to: bytes, payload: bytes) -> None:
        """Send to a channel; what is sent to one keeps its order. Nothing is sent before `open` and after `close`."""
        if self._socket is None:
            return
        sent = asyncio.ensure_future(self._socket.send_multipart([to, payload]))
        sent.add_done_callback(lambda future: future.cancelled() or future.exception())  # a dead rank is seen elsewhere

    async def read(self) -> None:
        """Hand messages on, for ever."""
        assert self._socket is not None
        while True:
            sender, payload = await self._socket.recv_multipart()
            try:
                self._received(sender, self._decoder.decode(payload))
            except Exception:  # one bad message must not stop the others
                log.exception("a message of rank %s could not be handled", sender)
            await asyncio.sleep(0)  # what is there at once is no pause, and those who read outputs need one

    def close(self) -> None:
        """Close, and remove the folder; ranks elsewhere get what was sent."""
        if self._socket is not None and self._context is not None:
            self._socket.close(linger=0 if self._listen is None else 1000)
            self._context.term()
            self._socket = None
        shutil.rmtree(self.folder, ignore_errors=True)
