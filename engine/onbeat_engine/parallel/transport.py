"""How words and tensors get from rank to rank. Every call is a collective: all ranks make it, in the same order."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from onbeat_engine.parallel.heart import NEVER


class Transport(Protocol):
    """Carries what ranks exchange.

    A call that fails, or takes longer than the timeout, raises RuntimeError or OSError.
    """

    @property
    def vouched(self) -> float:
        """See `Exchange.vouched`."""
        ...

    def words(self, mine: Sequence[int]) -> list[list[int]]:
        """Give each rank the same few integers; return those of all ranks, by rank."""
        ...

    def all_to_all(self, out: Any, rows: Any, receive: Sequence[int], send: Sequence[int]) -> None:
        """Send `rows[0 : send[0]]` to rank 0, the next `send[1]` to rank 1, ...; `out` has what came, by rank."""
        ...

    def all_gather(self, out: Any, rows: Any, receive: Sequence[int]) -> None:
        """Send `rows` [T, ...] to all; `out` [sum(receive), ...] has those of all, by rank."""
        ...

    def close(self) -> None:
        """Leave; waits for nobody."""
        ...


class Gloo:
    """Through torch's gloo, on the host.

    Everything is an all-to-all: on gloo it takes half of the time of a reduction or an all-gather.
    """

    vouched = NEVER

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
        self._size = size
        self.words([rank])  # connections are made by the first collective, not in the first request's time

    def words(self, mine: Sequence[int]) -> list[list[int]]:
        """See `Transport`."""
        send = torch.tensor([*mine] * self._size, dtype=torch.int64)
        got = torch.empty_like(send)
        dist.all_to_all_single(got, send)
        return [list(row) for row in got.view(self._size, -1).tolist()]

    def all_to_all(self, out: Any, rows: Any, receive: Sequence[int], send: Sequence[int]) -> None:
        """See `Transport`."""
        dist.all_to_all_single(out, rows, list(receive), list(send))

    def all_gather(self, out: Any, rows: Any, receive: Sequence[int]) -> None:
        """See `Transport`."""
        copies = rows.repeat(self._size, *(1 for _ in rows.shape[1:]))
        dist.all_to_all_single(out, copies, list(receive), [len(rows)] * self._size)

    def close(self) -> None:
        """See `Transport`."""
        dist.destroy_process_group()


class Nccl:
    """Tensors through NCCL, on the GPUs; words by `host`. The default process group is there already, or is made."""

    vouched = NEVER

    def __init__(self, host: Transport, store: Any, rank: int, size: int, timeout: float) -> None:
        self.words = host.words
        self._host = host
        limit = timedelta(seconds=timeout)
        if dist.is_initialized():
            self._group = dist.new_group(backend="nccl", timeout=limit)
        else:
            dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=limit)
            self._group = dist.group.WORLD

    def all_to_all(self, out: Any, rows: Any, receive: Sequence[int], send: Sequence[int]) -> None:
        """See `Transport`."""
        dist.all_to_all_single(out, rows, list(receive), list(send), group=self._group)

    def all_gather(self, out: Any, rows: Any, receive: Sequence[int]) -> None:
        """See `Transport`."""
        if len(set(receive)) == 1:
            dist.all_gather_into_tensor(out, rows, group=self._group)
        else:
            dist.all_gather(list(out.split(list(receive))), rows, group=self._group)

    def close(self) -> None:
        """See `Transport`. A peer may be gone: nothing is waited for."""
        dist.distributed_c10d._abort_process_group()
        if not isinstance(self._host, Gloo):  # its group has just been ended with the others
            self._host.close()
