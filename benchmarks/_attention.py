"""Batches of random KV, and the attention over them in float64, one token after the other; tests use them too."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from onbeat_engine.runner.attention import Backend
from onbeat_engine.runner.batch import Batch, Inputs
from onbeat_engine.runner.executor import BatchRow, EngineRequest
from onbeat_engine.runner.kv import KVCache, KVShape
from onbeat_engine.wire.params import SamplingParams

CPU = torch.device("cpu")


@dataclass
class Case:
    """A step over a cache of random content; each request's own tokens are known beside it."""

    kv: KVCache
    batch: Batch
    q: Any
    k: Any
    v: Any
    keys: list[Any]
    """Of each row: [kv_len, KV heads, head_dim], this step's included; values likewise."""
    values: list[Any]


def case(
    rows: list[tuple[int, int]],
    *,
    heads: int,
    kv_heads: int,
    dim: int,
    block_size: int = 16,
    dtype: Any = torch.float32,
    device: Any = CPU,
    shuffled: bool = True,
    shared: int = 0,
    pad_to: int = 0,
    seed: int = 0,
) -> Case:
    """Build a step.

    Args:
        rows: tokens before the step, and in it, of each request.
        shuffled: blocks lie anywhere; else in order.
        shared: leading blocks that all requests have in common (they all must have computed them before).
    """
    generator = torch.Generator().manual_seed(seed)

    def randn(*size: int) -> Any:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    counts = [-(-(start + count) // block_size) - shared for start, count in rows]
    num_blocks = sum(counts) + shared + 3
    kv = KVCache(KVShape(1, kv_heads, dim, block_size, dtype), num_blocks, device)
    keys_cache, values_cache = kv.layers[0]
    keys_cache.copy_(randn(*keys_cache.shape))
    values_cache.copy_(randn(*values_cache.shape))
    ids = np.random.default_rng(seed).permutation(num_blocks) if shuffled else np.arange(num_blocks)
    common, ids = ids[:shared].tolist(), ids[shared:]
    engine_rows: list[BatchRow] = []
    keys: list[Any] = []
    values: list[Any] = []
    q, k, v = [], [], []
    for index in sorted(range(len(rows)), key=lambda i: rows[i][1] != 1):
        start, count = rows[index]
        own = ids[sum(counts[:index]) : sum(counts[: index + 1])].tolist()
        blocks = common + own
        request = EngineRequest(str(index), [0] * (start + count), 1, SamplingParams(), seed=0)
        engine_rows.append(BatchRow(request, start, count, True, blocks))
        q.append(randn(count, heads, dim))
        k.append(randn(count, kv_heads, dim))
        v.append(randn(count, kv_heads, dim))
        for cache, new, rows_of_cache in ((keys_cache, k[-1], keys), (values_cache, v[-1], values)):
            before = cache[blocks].cpu().transpose(1, 2).flatten(0, 1)[:start]
            rows_of_cache.append(torch.cat((before, new)))
    padding = max(0, pad_to - len(rows))
    for tensors, number in ((q, heads), (k, kv_heads), (v, kv_heads)):
        tensors.append(randn(padding, number, dim))
    inputs = Inputs(
        max_tokens=sum(count for _, count in rows) + padding,
        max_rows=len(rows) + padding,
        max_blocks=num_blocks,
        block_size=block_size,
        scratch=kv.scratch,
        device=device,
    )
    batch = inputs.fill(engine_rows, None, -1, pad_to)
    return Case(kv, batch, torch.cat(q).to(device), torch.cat(k).to(device), torch.cat(v).to(device), keys, values)


def right(case: Case) -> Any:
    """Return the attention of the rows without padding, [T, heads, head_dim] float64."""
    out, at = [], 0
    group = case.q.shape[1] // case.k.shape[1]
    for row, keys, values in zip(case.batch.rows, case.keys, case.values, strict=True):
        queries = case.q[at : at + row.num_tokens].double().cpu()
        at += row.num_tokens
        k = keys.double().repeat_interleave(group, 1)
        v = values.double().repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", queries, k) / queries.shape[2] ** 0.5
        later = torch.arange(len(k)) > torch.arange(row.start, row.start + row.num_tokens)[:, None]
        out.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(later, -torch.inf).softmax(-1), v))
    return torch.cat(out)


def error(case: Case, backend: Backend) -> float:
    """Return a backend's largest difference from float64."""
    expected = right(case)
    with torch.inference_mode():
        backend.plan(case.batch)
        output = backend(0, case.q, case.k, case.v)
    assert output.shape == case.q.shape
    assert output.dtype == case.q.dtype
    return float((output[: len(expected)].double().cpu() - expected).abs().max())
