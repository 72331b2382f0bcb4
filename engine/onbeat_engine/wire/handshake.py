"""How a rank and the front end find each other: what the rank is told, how its channel is named, signs of life."""

import msgspec

from onbeat_engine.wire.config import EngineConfig

HEARTBEAT = 0.5
"""Seconds after which a rank that has nothing to tell says that it lives."""
PING = 1.0
"""Seconds between two signs of life of the front end."""


class Unwanted(msgspec.Struct, frozen=True, tag=True):
    """What a process is told that is no rank of this deployment, or not one that is started elsewhere."""

    why: str


class RankSpec(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the process of a rank is told."""

    config: EngineConfig
    rank: int
    epoch: int = 0
    """How often this rank was started again."""
    group: str = ""
    """Names the deployment and this start in it: of a group, the same on all its ranks."""
    address: str
    """Where the front end listens, as ZeroMQ writes it; empty: where the rank has asked."""
    build: str
    """`module:function`, see `onbeat_engine.rank.parts.Build`."""


def identity(rank: int, group: str) -> bytes:
    """Return the name of a rank's channel.

    What is sent to one that died never reaches its successor, and a front end that comes after another one does not
    speak to the ranks of that: they have to miss it.
    """
    return f"{rank}.{group}".encode()
