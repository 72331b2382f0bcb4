"""Where the ranks of a group meet, and what they make sure of before they begin."""

import contextlib
import json
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from onbeat_engine.wire.errors import EngineDead
from onbeat_engine.wire.ports import LOOPBACK
from onbeat_spec.errors import ConfigError
from onbeat_spec.protocol import GroupSettings, common

Shared = Mapping[str, str | int | float | list[int] | None]
"""What must be the same on every rank, by name."""

_SIOCGIFADDR = 0x8915
"""Asks Linux for the address of an interface."""


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """One rank's place in a group of `size`; rank 0 keeps the store, at `host`:`port`, unless somebody else does."""

    rank: int
    size: int
    host: str = LOOPBACK
    port: int = 0
    attempt: int = 0
    """Counts the starts of a group, where one store outlives several."""
    listening: int | None = None
    """For rank 0: a socket's file descriptor that listens at the port already; see `listen`."""
    store_elsewhere: bool = False
    """`torchrun` itself keeps the store."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"rank {self.rank} is not one of {self.size}; ranks count from 0")
        if self.size > 1 and not 0 < self.port < 1 << 16:
            raise ConfigError(f"port {self.port} cannot be met at; give one from 1 to 65535")

    @property
    def keeps_store(self) -> bool:
        """Whether this rank is the one that the others connect to."""
        return self.rank == 0 and not self.store_elsewhere

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "GroupPlace":
        """Return the place that `torchrun` gave this process (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

        Raises:
            ConfigError: one of them is missing or no number.
        """
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
        if missing:
            raise ConfigError(f"{', '.join(missing)} not set; start the ranks with torchrun, or set them")
        try:
            rank, size, port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
            attempt = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
        except ValueError as error:
            raise ConfigError(f"RANK, WORLD_SIZE and MASTER_PORT must be numbers: {error}") from error
        elsewhere = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return cls(rank, size, environment["MASTER_ADDR"], port, attempt, store_elsewhere=elsewhere)


def machine() -> str:
    """Name this machine, and its name spaces of networks and processes: alike where processes see each other."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("net", "pid")]
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()}/{boot}/{spaces[0]}/{spaces[1]}"


def interface_towards(host: str) -> str | None:
    """Name the network interface through which packets to a host leave; None: it cannot be told."""
    with contextlib.suppress(OSError, ImportError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        import fcntl  # noqa: PLC0415  not on every system

        probe.connect((host, 9))  # sends nothing
        address = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                said = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if said[20:24] == address:
                    return name
    return None


def meet(place: GroupPlace, timeout: float) -> Any:
    """Return the group's store (a torch `Store`), once it is there.

    Raises:
        EngineDead: nobody keeps a store at that address within `timeout` seconds, or the port is taken.
    """
    import torch.distributed as dist  # noqa: PLC0415  takes seconds, and whoever only reads addresses needs none of it

    try:
        store = dist.TCPStore(
            place.host,
            place.port,
            is_master=place.keeps_store,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            master_listen_fd=place.listening,
        )
    except RuntimeError as error:  # DistError and its kind are RuntimeErrors
        what = "keep the store of the group" if place.keeps_store else "reach rank 0"
        raise EngineDead(
            f"rank {place.rank} could not {what} at {place.host}:{place.port} within {timeout:g} s: {_first(error)}"
        ) from error
    return dist.PrefixStore(f"onbeat/{place.attempt}", store)


def agree(
    place: GroupPlace, store: Any, settings: GroupSettings, shared: Shared, timeout: float, *, device: str = "cpu"
) -> list[dict[str, Any]]:
    """Make sure that all ranks were started alike; every rank raises if they were not (case B81).

    Args:
        shared: what else must be equal: model, dtype, block size, how experts are split, ...
        device: `cpu`, or a GPU, such as `cuda:1`, which no other rank may have.

    Returns:
        What each rank said of itself, by rank: `pid`, `machine`, `device`, ...

    Raises:
        ConfigError: ranks differ, or share a GPU; the message has the values by rank.
        EngineDead: a rank did not come within `timeout` seconds.
    """
    mine = {"settings": list(settings), "shared": dict(shared), "pid": os.getpid(), "machine": machine()}
    mine |= {"device": device, "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}
    store.set(f"rank/{place.rank}", json.dumps(mine))
    said = [json.loads(_get(store, place, f"rank/{rank}", f"rank {rank}", timeout)) for rank in range(place.size)]
    # Who keeps the store goes last: the others have yet to read why they are refused.
    store.set(f"read/{place.rank}", "1")
    if place.keeps_store:
        for rank in range(place.size):
            _get(store, place, f"read/{rank}", f"rank {rank}", timeout)
    common([GroupSettings(*one["settings"]) for one in said])
    for name in sorted({name for one in said for name in one["shared"]}):
        values = [one["shared"].get(name) for one in said]
        if any(value != values[0] for value in values):
            text = ", ".join(f"rank {rank}: {value!r}" for rank, value in enumerate(values))
            raise ConfigError(f"ranks of a group differ in {name} ({text}); start all with the same")
    _one_gpu_each(said)
    return said


def _one_gpu_each(said: list[dict[str, Any]]) -> None:
    """Refuse what NCCL would fail at, in the first step and less clearly."""
    ranks: dict[tuple[str | None, ...], int] = {}
    for rank, one in enumerate(said):
        other = ranks.setdefault((one["machine"], one["visible"], one["device"]), rank)
        if other != rank and one["device"].startswith("cuda"):
            raise ConfigError(
                f"ranks {other} and {rank} of a group share {one['device']}; start no more ranks on a machine than it "
                "has GPUs"
            )


def _get(store: Any, place: GroupPlace, key: str, whose: str, timeout: float) -> bytes:
    try:
        store.wait([key], timedelta(seconds=timeout))
        return bytes(store.get(key))
    except RuntimeError as error:
        raise EngineDead(
            f"rank {place.rank} of {place.size} waited {timeout:g} s for {whose} to start, in vain ({_first(error)}); "
            f"look at what that rank says"
        ) from error


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
