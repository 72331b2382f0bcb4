"""Ranks on one machine: tensors in shared memory, words and signals through Unix sockets.

On a CPU a layer's exchange is a few kilobytes, and gloo's threads cost more than the copy: 350 microseconds for an
expert layer of two ranks, against 150 here (benchmarks/coordination.py). A rank that dies closes its sockets, so it
is missed at once, and by name. Memory and sockets have no names that outlive the processes: nothing can leak.
"""

import mmap
import os
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from onbeat_engine.parallel.heart import LONGEST, NEVER, WORKS, processor_seconds

_PART = ("length", "at", "count")
"""What a rank says to another one of the bytes that it gives: of all, and which of them are for the other. The words
of a `Group` are more than three."""
_LARGEST = 1 << 14
"""Bytes of a message."""


class Memory:
    """A `Transport` between processes of one Linux machine, for tensors of the host.

    Args:
        pids: the ranks' processes, if their steps run on the CPU: one that does not come, but works, is waited for
            longer than the timeout (`heart.LONGEST` times). None: nobody is.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: float,
        start_timeout: float,
        *,
        pids: Sequence[int] | None = None,
    ) -> None:
        self.vouched = NEVER
        self._pids = pids
        self._rank = rank
        self._size = size
        # A rank overwrites what it gave in one collective only after the next one, and whoever takes part in that one
        # has read the first.
        self._mine = (_Region(os.memfd_create("onbeat")), _Region(os.memfd_create("onbeat")))
        self._theirs: list[tuple[_Region, _Region]] = [self._mine] * size
        self._peers: list[socket.socket | None] = [None] * size
        self._number = 0
        self._connect(store, start_timeout)
        self._limit = start_timeout
        self.words([rank])  # nobody goes on, or away with the store, before all have connected
        self._limit = timeout

    def _connect(self, store: Any, timeout: float) -> None:
        if self._rank == 0:
            store.set("memory", secrets.token_hex(16))
        secret = store.get("memory")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind(_name(secret, self._rank))
            server.listen(self._size)
            server.settimeout(timeout)
            store.set(f"listens/{self._rank}", "1")
            for other in range(self._rank):
                store.wait([f"listens/{other}"])
                peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                peer.settimeout(timeout)
                peer.connect(_name(secret, other))
                self._introduce(peer, secret)
            for _ in range(self._rank + 1, self._size):
                peer, _ = server.accept()
                peer.settimeout(timeout)
                self._introduce(peer, secret)

    def _introduce(self, peer: socket.socket, secret: bytes) -> None:
        mine = struct.pack("<q", self._rank) + secret
        socket.send_fds(peer, [mine], [region.file for region in self._mine])
        said, files, _, _ = socket.recv_fds(peer, len(mine), 2)
        if len(files) != 2 or said[8:] != secret:
            raise OSError("somebody else connected to a rank's socket")
        (other,) = struct.unpack_from("<q", said)
        self._peers[other] = peer
        self._theirs[other] = (_Region(files[0]), _Region(files[1]))

    def words(self, mine: Sequence[int]) -> list[list[int]]:
        """See `Transport`."""
        got = self._swap([mine] * self._size)
        return [list(words) for words in got]

    def all_to_all(self, out: Any, rows: Any, receive: Sequence[int], send: Sequence[int]) -> None:
        """See `Transport`."""
        width = rows.nbytes // len(rows) if len(rows) else 0
        ends = list(accumulate(send))
        parts = [((end - count) * width, count * width) for end, count in zip(ends, send, strict=True)]
        self._tensors(out, rows, receive, parts)

    def all_gather(self, out: Any, rows: Any, receive: Sequence[int]) -> None:
        """See `Transport`."""
        self._tensors(out, rows, receive, [(0, rows.nbytes)] * self._size)

    def _tensors(self, out: Any, rows: Any, receive: Sequence[int], parts: Sequence[tuple[int, int]]) -> None:
        which = self._number % 2
        given = rows.contiguous().view(-1).view(torch.uint8)
        wanted = out.view(-1).view(torch.uint8)
        self._mine[which].bytes(len(given)).copy_(given)
        got = self._swap([(len(given), at, count) for at, count in parts])
        width = wanted.numel() // len(out) if len(out) else 0
        to = 0
        for other, said in enumerate(got):
            if len(said) != len(_PART):
                raise RuntimeError(f"rank {other} is in another collective")
            whole, at, count = said
            if count != receive[other] * width:
                raise RuntimeError(f"rank {other} sent {count} bytes, not {receive[other]} rows of {width}")
            if count:
                source = given if other == self._rank else self._theirs[other][which].bytes(whole)
                wanted[to : to + count].copy_(source[at : at + count])
            to += count

    def _swap(self, words: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """Send each rank its words, and return those that came, by rank."""
        self._number += 1
        got: list[Sequence[int]] = [()] * self._size
        for other, peer in enumerate(self._peers):
            if peer is None:
                got[other] = words[other]
                continue
            try:
                peer.settimeout(self._limit)
                peer.send(struct.pack(f"<{len(words[other])}q", *words[other]))
            except OSError as error:
                raise OSError(f"rank {other}: {error}") from error
        end = time.monotonic() + self._limit
        for other, peer in enumerate(self._peers):
            if peer is not None:
                got[other] = self._receive(other, peer, end)
        return got

    def _receive(self, other: int, peer: socket.socket, end: float) -> Sequence[int]:
        last = time.monotonic() + LONGEST * self._limit
        half = max(end - time.monotonic(), self._limit / 4) / 2
        try:
            while (said := self._said(peer, half)) is None:
                before = self._worked(other)
                if (said := self._said(peer, half)) is not None:
                    break
                worked = self._worked(other) - before
                if worked < max(2e-2, WORKS * half) or time.monotonic() >= last:  # no less than two ticks of the clock
                    raise TimeoutError("it has sent nothing")
                self.vouched = time.monotonic()
        except OSError as error:
            raise OSError(f"rank {other}: {error}") from error
        if not said:
            raise OSError(f"rank {other} has closed its connection")
        return struct.unpack(f"<{len(said) // 8}q", said)

    def _said(self, peer: socket.socket, seconds: float) -> bytes | None:
        peer.settimeout(max(1e-3, seconds))
        try:
            return peer.recv(_LARGEST)
        except TimeoutError:
            return None

    def _worked(self, other: int) -> float:
        """Return the processor time of a rank; 0 if that says nothing."""
        return 0.0 if self._pids is None else processor_seconds(self._pids[other]) or 0.0

    def close(self) -> None:
        """See `Transport`."""
        for peer in self._peers:
            if peer is not None:
                peer.close()
        for pair in (self._mine, *self._theirs):
            for region in pair:
                region.close()


class _Region:
    """Memory that one rank writes and the others read. It grows when its writer needs more."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._view: Any = torch.empty(0, dtype=torch.uint8)

    def bytes(self, length: int) -> Any:
        """Return the first `length` bytes [length]."""
        if length > len(self._view):
            if os.fstat(self.file).st_size < length:
                os.ftruncate(self.file, 2 * length)
            self._view = torch.frombuffer(mmap.mmap(self.file, os.fstat(self.file).st_size), dtype=torch.uint8)
        return self._view[:length]

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _name(secret: bytes, rank: int) -> bytes:
    """Return an address without a file: it is gone with the socket."""
    return b"\0onbeat-" + secret + b"-%d" % rank
