"""Our Triton kernel for rows of one token: paged decode, split over the KV where rows are few.

One program attends for all query heads of one KV head, so that keys and values are read once. `tl.dot` wants at least
16 rows; smaller groups are padded, which costs nothing that a decode, bound by memory, would notice.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from onbeat_engine.runner.attention.tiles import LOG2_E, padded

MOST_SPLITS = 32


def _decode(  # noqa: PLR0917 - Triton binds a kernel's arguments by position
    q: Any,
    keys: Any,
    values: Any,
    out: Any,
    partial: Any,
    maxima: Any,
    sums: Any,
    table: Any,
    table_starts: Any,
    kv_lens: Any,
    scale: Any,
    q_row: Any,
    q_head: Any,
    kv_block: Any,
    kv_head: Any,
    kv_slot: Any,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """Grid: rows, KV heads, splits. `scale` holds log2(e) too: exponentials are powers of two."""
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_len = tl.load(kv_lens + row)
    blocks = table + tl.load(table_starts + row)
    share = tl.cdiv(tl.cdiv(kv_len, SPLITS), TILE) * TILE
    begin = split * share
    end = tl.minimum(begin + share, kv_len)
    members = tl.arange(0, GROUP_PAD)
    heads = head * GROUP + members
    dims = tl.arange(0, DIM_PAD)
    mine = (members < GROUP)[:, None] & (dims < DIM)[None, :]
    query = tl.load(q + row.to(tl.int64) * q_row + heads[:, None] * q_head + dims[None, :], mask=mine, other=0.0)
    most = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    acc = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    for at in range(begin, end, TILE):
        tokens = at + tl.arange(0, TILE)
        there = tokens < end
        block = tl.load(blocks + tokens // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
        place = block * kv_block + head * kv_head + (tokens % BLOCK_SIZE) * kv_slot
        where = place[:, None] + dims[None, :]
        used = there[:, None] & (dims < DIM)[None, :]
        k = tl.load(keys + where, mask=used, other=0.0)
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(there[None, :], scores, float("-inf"))
        new_most = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp2(scores - new_most[:, None])
        decay = tl.exp2(most - new_most)
        v = tl.load(values + where, mask=used, other=0.0)
        acc = acc * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * decay + tl.sum(weights, 1)
        most = new_most
    result = row.to(tl.int64) * tl.num_programs(1) * GROUP + heads
    if SPLITS == 1:
        value = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + result[:, None] * DIM + dims[None, :], value, mask=mine)
    else:
        each = result * SPLITS + split
        tl.store(partial + each[:, None] * DIM + dims[None, :], acc, mask=mine)
        tl.store(maxima + each, most, mask=members < GROUP)
        tl.store(sums + each, total, mask=members < GROUP)


def _combine(  # noqa: PLR0917 - as above
    partial: Any, maxima: Any, sums: Any, out: Any, DIM: tl.constexpr, DIM_PAD: tl.constexpr, SPLITS: tl.constexpr
) -> None:
    """Grid: rows x heads. A split without tokens has maximum -inf and weighs nothing."""
    result = tl.program_id(0).to(tl.int64)
    each = result * SPLITS + tl.arange(0, SPLITS)
    dims = tl.arange(0, DIM_PAD)
    most = tl.load(maxima + each)
    weights = tl.exp2(most - tl.max(most, 0))
    total = tl.sum(tl.load(sums + each) * weights, 0)
    parts = tl.load(partial + each[:, None] * DIM + dims[None, :], mask=(dims < DIM)[None, :], other=0.0)
    value = tl.sum(parts * weights[:, None], 0) / total
    tl.store(out + result * DIM + dims, value.to(out.dtype.element_ty), mask=dims < DIM)


decode_kernel = triton.jit(_decode)
combine_kernel = triton.jit(_combine)


def splits_for(programs: int, processors: int) -> int:
    """Return into how many parts, a power of two, the KV of each row is split, so that all processors have work."""
    splits = 1
    while splits < MOST_SPLITS and programs * splits < 2 * processors:
        splits *= 2
    return splits


def decode(
    q: Any, cache: tuple[Any, Any], out: Any, *, table: Any, table_starts: Any, kv_lens: Any, scale: float, splits: int
) -> None:
    """Attend for rows of one token.

    Args:
        q: [S, heads, head_dim]; its last dimension is contiguous.
        cache: keys and values [blocks, KV heads, block_size, head_dim], of the same strides.
        out: [S, heads, head_dim], contiguous.
        table: int32; row s has the blocks from `table[table_starts[s]]` on.
        kv_lens: [S] int32, each at least 1.
        splits: a power of two.
    """
    keys, values = cache
    rows, heads, dim = q.shape
    _blocks, kv_heads, block_size, _dim = keys.shape
    group = heads // kv_heads
    dim_pad = padded(dim)
    partial = maxima = sums = out  # not touched without splits
    if splits > 1:
        partial = torch.empty(rows, heads, splits, dim, dtype=torch.float32, device=q.device)
        maxima, sums = torch.empty(2, rows, heads, splits, dtype=torch.float32, device=q.device)
    decode_kernel[(rows, kv_heads, splits)](
        q,
        keys,
        values,
        out,
        partial,
        maxima,
        sums,
        table,
        table_starts,
        kv_lens,
        scale * LOG2_E,
        q.stride(0),
        q.stride(1),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        GROUP=group,
        GROUP_PAD=padded(group),
        DIM=dim,
        DIM_PAD=dim_pad,
        BLOCK_SIZE=block_size,
        TILE=64 if dim_pad <= 64 and keys.dtype.itemsize == 2 else 32,
        SPLITS=splits,
        num_warps=4,
    )
    if splits > 1:
        combine_kernel[(rows * heads,)](partial, maxima, sums, out, DIM=dim, DIM_PAD=dim_pad, SPLITS=splits)
