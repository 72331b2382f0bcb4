"""The paged KV tensors of one rank, and how many blocks fit into its memory."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from onbeat_spec.errors import ConfigError

CPU_SHARE = 0.5
"""Part of the free memory that KV may take on a CPU, where it is shared with everything else."""
CPU_MOST = 4 << 30
"""Most bytes of KV on a CPU, unless the number of blocks is given."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """The sizes of a KV cache, without the number of its blocks."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: Any

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, keys and values of all layers."""
        per_token = 2 * self.num_layers * self.num_kv_heads * self.head_dim
        return per_token * self.block_size * int(self.dtype.itemsize)


def kv_dtype(dtype: Any, device: Any) -> Any:
    """Return the type KV is kept in: the model's, but at least float32 on a CPU, which attends in that."""
    return torch.float32 if device.type == "cpu" and dtype.itemsize < 4 else dtype


class KVCache:
    """Keys and values: `[layers, 2, num_blocks + 1, kv heads, block_size, head_dim]`.

    The block after the last is scratch: padding rows write there, and nobody reads it.
    """

    def __init__(self, shape: KVShape, num_blocks: int, device: Any) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.device = device
        self.layers: list[tuple[Any, Any]] = []
        """Keys and values of each layer."""
        self._data: Any = None
        """All of them."""
        self.allocate()

    @property
    def scratch(self) -> int:
        """Id of the scratch block."""
        return self.num_blocks

    def allocate(self) -> None:
        """Take the memory, unless it is there. It is zeroed: what a mask leaves out must at least be a number."""
        if self.layers:
            return
        shape = self.shape
        size = (shape.num_layers, 2, self.num_blocks + 1, shape.num_kv_heads, shape.block_size, shape.head_dim)
        if self.device.type == "cpu":  # numpy's zeros take no memory until they are written to, torch's do
            data = torch.from_numpy(np.zeros(prod(size) * shape.dtype.itemsize, dtype=np.uint8))
            data = data.view(shape.dtype).view(size)
        else:
            data = torch.zeros(size, dtype=shape.dtype, device=self.device)
        self._data = data
        self.layers = [(layer[0], layer[1]) for layer in data]

    def free(self) -> None:
        """Give the memory up, and all that is in it."""
        self.layers, self._data = [], None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def clear_values(self, block: int) -> None:
        """Zero a block's values in all layers: what overflowed in one request must not reach the next one there."""
        self._data[:, 1, block] = 0

    def write(self, layer: int, k: Any, v: Any, blocks: Any, offsets: Any) -> None:
        """Store `k` and `v` [T, kv heads, head_dim]; token t goes to slot `offsets[t]` of block `blocks[t]`."""
        keys, values = self.layers[layer]
        keys[blocks, :, offsets] = k.to(keys.dtype)
        values[blocks, :, offsets] = v.to(values.dtype)


def available_memory() -> int:
    """Return the bytes of main memory that may still be taken, this process's limit included."""
    free: int = psutil.virtual_memory().available
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        stat = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
    except OSError:
        return free
    # Files that were read, such as the weights, count as used, and go when memory is wanted.
    used -= int(stat.get("active_file", 0)) + int(stat.get("inactive_file", 0))
    return free if limit == "max" else min(free, int(limit) - used)


def blocks_on_cpu(shape: KVShape, *, most: int, available: int | None = None) -> int:
    """Return how many KV blocks a CPU rank gets: a share of the free memory, and no more than it can use.

    Args:
        most: blocks that `max_num_seqs` requests of `max_model_len` tokens would hold.
        available: bytes; None: ask the system.

    Raises:
        ConfigError: not one block fits.
    """
    if available is None:
        available = available_memory()
    return _blocks(shape, min(int(available * CPU_SHARE), CPU_MOST), most)


def blocks_on_cuda(shape: KVShape, device: Any, utilization: float, profile: Callable[[], None], *, most: int) -> int:
    """Return how many KV blocks a CUDA rank gets: what `utilization` of the memory leaves beside the largest step.

    Args:
        profile: runs the largest step, without KV.

    Raises:
        ConfigError: not one block fits.
    """
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    profile()
    torch.cuda.synchronize(device)
    activations = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return _blocks(shape, int(total * utilization) - (total - free) - activations, most)


def _blocks(shape: KVShape, room: int, most: int) -> int:
    blocks = min(room // shape.block_bytes, most)
    if blocks < 1:
        raise ConfigError(
            f"no memory for the KV cache: one block takes {shape.block_bytes} bytes and {max(room, 0)} may be taken; "
            "free memory, raise gpu_memory_utilization, or lower block_size"
        )
    return blocks
