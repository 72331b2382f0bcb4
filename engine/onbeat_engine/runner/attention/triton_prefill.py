"""Our Triton kernel for rows of several tokens: causal attention over the paged prefix and the chunk itself.

The chunk's keys and values are in the cache already, so prefix and chunk are walked alike.
"""

from typing import Any

import triton
import triton.language as tl

from onbeat_engine.runner.attention.tiles import LOG2_E, padded


def _prefill(  # noqa: PLR0917 - Triton binds a kernel's arguments by position
    q: Any,
    keys: Any,
    values: Any,
    out: Any,
    query_starts: Any,
    table: Any,
    table_starts: Any,
    kv_lens: Any,
    scale: Any,
    q_token: Any,
    q_head: Any,
    kv_block: Any,
    kv_head: Any,
    kv_slot: Any,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Grid: tiles of a row's tokens, rows, heads. `scale` holds log2(e) too."""
    row, head = tl.program_id(1), tl.program_id(2)
    first = tl.load(query_starts + row)
    length = tl.load(query_starts + row + 1) - first
    at = tl.program_id(0) * QUERIES
    if at < length:
        kv_len = tl.load(kv_lens + row)
        start = kv_len - length
        blocks = table + tl.load(table_starts + row)
        queries = at + tl.arange(0, QUERIES)
        dims = tl.arange(0, DIM_PAD)
        mine = (queries < length)[:, None] & (dims < DIM)[None, :]
        token = (first + queries).to(tl.int64)
        query = tl.load(q + token[:, None] * q_token + head * q_head + dims[None, :], mask=mine, other=0.0)
        most = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        acc = tl.zeros([QUERIES, DIM_PAD], tl.float32)
        end = tl.minimum(start + at + QUERIES, kv_len)
        for low in range(0, end, TILE):
            tokens = low + tl.arange(0, TILE)
            there = tokens < end
            block = tl.load(blocks + tokens // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
            place = block * kv_block + (head // GROUP) * kv_head + (tokens % BLOCK_SIZE) * kv_slot
            where = place[:, None] + dims[None, :]
            used = there[:, None] & (dims < DIM)[None, :]
            k = tl.load(keys + where, mask=used, other=0.0)
            scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
            sees = there[None, :] & (tokens[None, :] <= start + queries[:, None])
            scores = tl.where(sees, scores, float("-inf"))
            new_most = tl.maximum(most, tl.max(scores, 1))
            weights = tl.exp2(scores - new_most[:, None])
            decay = tl.exp2(most - new_most)
            v = tl.load(values + where, mask=used, other=0.0)
            acc = acc * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            total = total * decay + tl.sum(weights, 1)
            most = new_most
        result = token * tl.num_programs(2) + head
        value = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + result[:, None] * DIM + dims[None, :], value, mask=mine)


prefill_kernel = triton.jit(_prefill)


def prefill(
    q: Any,
    cache: tuple[Any, Any],
    out: Any,
    *,
    query_starts: Any,
    table: Any,
    table_starts: Any,
    kv_lens: Any,
    longest: int,
    scale: float,
) -> None:
    """Attend for rows of any number of tokens, each token over its row's tokens up to itself.

    Args:
        q: [T, heads, head_dim]; its last dimension is contiguous.
        cache: keys and values [blocks, KV heads, block_size, head_dim], of the same strides.
        out: [T, heads, head_dim], contiguous.
        query_starts: [S + 1] int32 into q and out; they need not begin at 0.
        table: int32; row s has the blocks from `table[table_starts[s]]` on.
        kv_lens: [S] int32: tokens of each row, those in q included.
        longest: most tokens of a row.
    """
    keys, values = cache
    _tokens, heads, dim = q.shape
    _blocks, kv_heads, block_size, _dim = keys.shape
    short = keys.dtype.itemsize == 2
    queries = min(128 if short else 32, padded(longest))
    prefill_kernel[(triton.cdiv(longest, queries), len(kv_lens), heads)](
        q,
        keys,
        values,
        out,
        query_starts,
        table,
        table_starts,
        kv_lens,
        scale * LOG2_E,
        q.stride(0),
        q.stride(1),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        GROUP=heads // kv_heads,
        DIM=dim,
        DIM_PAD=padded(dim),
        BLOCK_SIZE=block_size,
        QUERIES=queries,
        TILE=64 if short else 32,
        num_warps=8 if queries == 128 and dim > 64 else 4,
    )
