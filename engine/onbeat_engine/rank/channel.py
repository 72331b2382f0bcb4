"""A rank's connection to the front end: messages both ways, and signs of life."""

import time

import msgspec
import zmq

from onbeat_engine.wire.errors import EngineDead
from onbeat_engine.wire.handshake import HEARTBEAT, RankSpec, Unwanted
from onbeat_engine.wire.messages import Alive, FromRank, Hello, RankOutputs, ToRankMessage
from onbeat_spec.errors import ConfigError

ANSWER = 600
"""Seconds that a rank which somebody else has started waits for the front end to start."""


class Channel:
    """A rank's connection to the front end.

    Args:
        address: where that listens.
        name: by which it knows this channel; None: any.

    Raises:
        ConfigError: nobody can listen there.
    """

    def __init__(self, address: str, name: bytes | None) -> None:
        self._address = address
        self._beside: zmq.Socket[bytes] | None = None
        self._context = zmq.Context(1)
        self._socket = self._context.socket(zmq.DEALER)
        if name is not None:
            self._socket.setsockopt(zmq.IDENTITY, name)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # nothing may be lost, and nobody blocked
        self._socket.setsockopt(zmq.RCVHWM, 0)
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(f"cannot connect to the front end: {error}; give tcp://host:port") from None
        self._encoder, self._encoder_beside = msgspec.msgpack.Encoder(), msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToRankMessage)
        self._told = self.heard = time.monotonic()

    def ask(self, rank: int) -> RankSpec:
        """Ask the front end, which may come later, what this rank is to do.

        Raises:
            EngineDead: there is none. ConfigError: it does not want this rank.
        """
        self.send(Hello(rank=rank))
        if not self._socket.poll(ANSWER * 1000):
            raise EngineDead(f"no front end has answered rank {rank} within {ANSWER} s")
        answer = msgspec.json.decode(self._socket.recv(), type=RankSpec | Unwanted)
        if isinstance(answer, Unwanted):
            raise ConfigError(answer.why)
        return answer

    def send(self, message: FromRank) -> None:
        """Send a message to the front end."""
        self._socket.send(self._encoder.encode(message))
        self._told = time.monotonic()

    def wait(self, seconds: float) -> None:
        """Wait until a message is there, but not for longer than this."""
        self._socket.poll(int(seconds * 1000))

    def receive(self) -> ToRankMessage | None:
        """Return the next message, if one is there."""
        try:
            message = self._decoder.decode(self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None
        self.heard = time.monotonic()
        return message

    def beat(self, rank: int) -> None:
        """Say that the rank lives, if it has told nothing for a while."""
        if time.monotonic() - self._told >= HEARTBEAT:
            self.send(RankOutputs(rank=rank))

    def beat_beside(self, rank: int, epoch: int) -> None:
        """Say so from another thread, always the same one: through a socket of its own, since none serves two."""
        if self._beside is None:
            self._beside = self._context.socket(zmq.DEALER)
            self._beside.connect(self._address)
        self._beside.send(self._encoder_beside.encode(Alive(rank=rank, epoch=epoch)))

    def close(self) -> None:
        """Send what is to be sent, and close."""
        if self._beside is not None:
            self._beside.close(linger=0)
        self._socket.close(linger=2000)
        self._context.term()
