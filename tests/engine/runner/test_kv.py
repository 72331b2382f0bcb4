"""KV tensors, and how many blocks fit."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from onbeat_engine.runner import kv
from onbeat_engine.runner.kv import KVCache, KVShape, available_memory, blocks_on_cpu, blocks_on_cuda, kv_dtype
from onbeat_spec.errors import ConfigError

CPU = torch.device("cpu")
SHAPE = KVShape(num_layers=2, num_kv_heads=3, head_dim=4, block_size=8, dtype=torch.float32)


def test_block_bytes() -> None:
    cache = KVCache(SHAPE, 5, CPU)
    keys, values = cache.layers[0]
    assert keys.shape == values.shape == (6, 3, 8, 4)
    assert SHAPE.block_bytes == 2 * 2 * keys[0].numel() * 4


def test_tokens_go_to_their_slots_and_nowhere_else() -> None:
    cache = KVCache(SHAPE, 5, CPU)
    k, v = torch.ones(2, 3, 4), torch.full((2, 3, 4), 2.0)
    cache.write(1, k, v, torch.tensor([4, 0]), torch.tensor([7, 1]))
    keys, values = cache.layers[1]
    assert keys.nonzero()[:, [0, 2]].unique(dim=0).tolist() == [[0, 1], [4, 7]]
    assert torch.equal(values, 2 * keys)
    assert not cache.layers[0][0].any()


def test_memory_comes_and_goes() -> None:
    cache = KVCache(SHAPE, 5, CPU)
    cache.free()
    assert cache.layers == []
    cache.allocate()
    before = cache.layers[0][0]
    cache.allocate()
    assert cache.layers[0][0] is before


def test_dtype_on_a_cpu_and_elsewhere() -> None:
    assert kv_dtype(torch.bfloat16, CPU) == torch.float32
    assert kv_dtype(torch.float64, CPU) == torch.float64
    assert kv_dtype(torch.bfloat16, torch.device("cuda")) == torch.bfloat16


def test_a_cpu_gives_a_share() -> None:
    block = SHAPE.block_bytes
    assert blocks_on_cpu(SHAPE, most=1000, available=20 * block) == 10
    assert blocks_on_cpu(SHAPE, most=7, available=20 * block) == 7
    assert blocks_on_cpu(SHAPE, most=1 << 40, available=1 << 50) == kv.CPU_MOST // block
    with pytest.raises(ConfigError, match="no memory for the KV cache: one block takes 1536 bytes and 768"):
        blocks_on_cpu(SHAPE, most=7, available=block)


def test_available_memory_heeds_the_limit_of_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/sys/fs/cgroup/memory.max": "30000\n",
        "/sys/fs/cgroup/memory.current": "10000\n",
        "/sys/fs/cgroup/memory.stat": "anon 7000\nfile 3000\ninactive_file 1000\nactive_file 1500\n",
    }

    def read(path: Path) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=40 * 1024))
    assert available_memory() == 22500
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert available_memory() == 40 * 1024
    del files["/sys/fs/cgroup/memory.max"]
    assert available_memory() == 40 * 1024


def test_a_large_cache_takes_memory_as_it_is_used() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    cache = KVCache(SHAPE, (256 << 20) // SHAPE.block_bytes, CPU)
    assert resident() - before < 64 << 20
    assert not cache.layers[1][1][-1].any()


def test_cuda_gets_what_the_largest_step_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1000 blocks' worth of memory: 90 % may be used, 300 are taken by weights, 100 by the largest step."""
    block = SHAPE.block_bytes
    ran: list[bool] = []
    for name in ("empty_cache", "synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _device: 250 * block)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: 350 * block if ran else 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (700 * block, 1000 * block))
    device = torch.device("cuda")
    assert blocks_on_cuda(SHAPE, device, 0.9, lambda: ran.append(True), most=10_000) == 500
    assert blocks_on_cuda(SHAPE, device, 0.9, lambda: None, most=7) == 7
    with pytest.raises(ConfigError, match="raise gpu_memory_utilization"):
        blocks_on_cuda(SHAPE, device, 0.3, lambda: None, most=7)


def test_values_of_one_block_are_cleared_in_all_layers() -> None:
    cache = KVCache(SHAPE, 5, CPU)
    for keys, values in cache.layers:
        keys.fill_(1.0)
        values.fill_(1.0)
    cache.clear_values(3)
    for keys, values in cache.layers:
        assert keys.all()
        assert values.flatten(1).any(1).tolist() == [True, True, True, False, True, True]
