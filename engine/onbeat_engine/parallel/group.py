"""A group of ranks: bounded collectives, and the exchange of votes.

Votes and sizes are a few integers that every rank gives to every rank. No arithmetic is done on the way: all see every
vote, and `protocol.tally` says what they come to. They stay on the host, whatever the tensors go through.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import psutil
import torch

from onbeat_engine.parallel.memory import Memory
from onbeat_engine.parallel.place import GroupPlace, Shared, agree, interface_towards, machine, meet
from onbeat_engine.parallel.transport import Gloo, Nccl, Transport
from onbeat_engine.wire.errors import EngineDead
from onbeat_spec.protocol import Agreement, GroupSettings, Vote, tally

_EXCHANGE, _FORWARD, _COUNTS = 1, 2, 3
_KINDS = {_EXCHANGE: "an exchange", _FORWARD: "a forward", _COUNTS: "a layer of a forward"}


Through = Literal["auto", "memory", "gloo"]


class TokensByRank(NamedTuple):
    """What the ranks know of each other's part in a forward: all know the same."""

    tokens: tuple[int, ...]
    """By rank; 0 where a dummy runs."""
    replays: bool
    """Every rank can replay a graph, since none has a prefill in it: all do, or none does."""

    @property
    def padded(self) -> int:
        """The most tokens of any rank: all replay the graph that holds so many."""
        return max(self.tokens)


class Group:
    """This process among the ranks that share its collectives. One per process, since torch's groups are global.

    A collective that fails, or takes longer than the timeout, raises EngineDead, and so does every later one. On one
    machine, on CPUs, a rank that is late because it works is waited for longer; see `Memory`. Elsewhere nobody can see
    whether it does: the timeout has to be longer than one layer of the longest step.
    """

    def __init__(self, rank: int, transport: Transport, peers: Sequence[dict[str, Any]], timeout: float) -> None:
        self.rank = rank
        self.size = len(peers)
        self.exchanges = 0
        self.forwards = 0
        self._transport = transport
        self._peers = peers
        self._timeout = timeout
        self._turns = 0
        self._broken = ""
        self._open = True

    @classmethod
    def join(
        cls,
        place: GroupPlace,
        settings: GroupSettings,
        shared: Shared,
        *,
        device: str = "cpu",
        through: Through = "auto",
        timeout: float = 30.0,
        start_timeout: float = 300.0,
    ) -> "Group":
        """Meet the other ranks, make sure that all were started alike, and connect.

        Args:
            shared: what must be equal on all ranks, beside the settings.
            device: `cpu` or `cuda...`: where the tokens live.
            through: what words go through, and tensors of the host; auto: shared memory if all are on one machine.
            timeout: of a collective, in seconds.
            start_timeout: seconds to wait for the other ranks to start; they may have a model to load.

        Raises:
            ConfigError: the ranks differ; raised on all.
            EngineDead: a rank did not come.
        """
        kind = torch.device(device).type
        store = meet(place, start_timeout)
        alike = {**shared, "device": kind, "through": through}
        peers = agree(place, store, settings, alike, start_timeout, device=device)
        together = len({peer["machine"] for peer in peers}) == 1 and hasattr(os, "memfd_create")
        in_memory = through == "memory" or (through == "auto" and together)
        where = store, place.rank, place.size, timeout
        try:
            with _gloo_interface(place.host):
                pids = [int(peer["pid"]) for peer in peers] if kind == "cpu" else None
                transport: Transport = Memory(*where, start_timeout, pids=pids) if in_memory else Gloo(*where)
                if kind == "cuda":
                    transport = Nccl(transport, *where)
        except (RuntimeError, OSError) as error:
            raise EngineDead(f"rank {place.rank} could not connect to the {place.size - 1} others: {error}") from error
        return cls(place.rank, transport, peers, timeout)

    @property
    def vouched(self) -> float:
        """See `Exchange`."""
        return self._transport.vouched

    def exchange(self, vote: Vote) -> Agreement:
        """Exchange votes with all ranks; the same answer on all.

        Raises:
            EngineDead: as for all collectives; also when another rank is not in an exchange.
        """
        self.exchanges += 1
        return tally([Vote(read, bool(work)) for read, work in self._gather(_EXCHANGE, [vote.read, vote.work])])

    def forward_shape(self, tokens: int, replays: bool = False) -> TokensByRank:
        """Tell all ranks what this one brings to a forward, and learn what they bring: before every forward, once.

        Args:
            tokens: 0 in a dummy.
            replays: it could replay a graph.
        """
        self.forwards += 1
        rows = self._gather(_FORWARD, [tokens, replays])
        return TokensByRank(tuple(row[0] for row in rows), all(row[1] for row in rows))

    def counts(self, send: Sequence[int]) -> list[int]:
        """Tell each rank how many rows it will get; return how many come from each."""
        return [row[self.rank] for row in self._gather(_COUNTS, send)]

    def _gather(self, kind: int, words: Sequence[int]) -> list[list[int]]:
        """Return the words of every rank, by rank. All must be in the same collective: what differs is an error."""
        self._turns += 1
        mine = [kind, self._turns, *words]
        with self._bounded(_KINDS[kind]):
            rows = self._transport.words(mine)
        for rank, row in enumerate(rows):
            if row[:2] != mine[:2]:
                self._broken = (
                    f"rank {rank} is in {_KINDS.get(row[0], 'another collective')}, its number {row[1]}, "
                    f"rank {self.rank} in {_KINDS[kind]}, its number {mine[1]}"
                )
                raise EngineDead(self._broken)
        return [row[2:] for row in rows]

    def all_to_all(self, out: Any, rows: Any, receive: Sequence[int], send: Sequence[int]) -> None:
        """Send `rows[0 : send[0]]` to rank 0, the next `send[1]` to rank 1, ...; `out` has what came, by rank."""
        with self._bounded("an all-to-all"):
            self._transport.all_to_all(out, rows, receive, send)

    def all_gather(self, out: Any, rows: Any, receive: Sequence[int]) -> None:
        """Send `rows` [T, ...] to all; `out` [sum(receive), ...] has those of all, by rank."""
        with self._bounded("an all-gather"):
            self._transport.all_gather(out, rows, receive)

    def close(self) -> None:
        """Leave the group; waits for nobody, and may be called twice."""
        if self._open:
            self._open = False
            self._transport.close()

    @contextlib.contextmanager
    def _bounded(self, what: str) -> Iterator[None]:
        if self._broken:
            raise EngineDead(self._broken)
        began = time.monotonic()
        try:
            yield
        except (RuntimeError, OSError) as error:
            self._broken = self._failure(what, time.monotonic() - began, error)
            raise EngineDead(self._broken) from error

    def _failure(self, what: str, seconds: float, error: Exception) -> str:
        if seconds < 0.9 * self._timeout:
            time.sleep(0.1)  # who is killed closes its connections first, and is gone then
        gone = [f"rank {rank} (process {peer['pid']})" for rank, peer in enumerate(self._peers) if not _alive(peer)]
        if gone:
            why = f"{', '.join(gone)} is gone"
        elif seconds >= 0.9 * self._timeout:
            why = f"a rank does not answer (the limit is {self._timeout:g} s)"
        else:
            why = "it went wrong"
        said = (str(error).splitlines() or [type(error).__name__])[0][:160]
        return f"{what} of rank {self.rank} with {self.size - 1} others failed after {seconds:.1f} s: {why} [{said}]"


def _alive(peer: dict[str, Any]) -> bool:
    """Whether a peer lives; one on another machine counts as alive, since it cannot be seen from here."""
    if peer["machine"] != machine():
        return True
    try:
        return psutil.Process(peer["pid"]).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # another user's
        return True


@contextlib.contextmanager
def _gloo_interface(host: str) -> Iterator[None]:
    """Make gloo use the interface that leads to where the group meets; else it picks one by this machine's name."""
    name = "GLOO_SOCKET_IFNAME"
    interface = interface_towards(host) if name not in os.environ else None
    if interface is None:
        yield
        return
    os.environ[name] = interface
    try:
        yield
    finally:
        del os.environ[name]
