"""Attention with torch's own operators.

Decodes attend without copying KV: a batched matrix product runs over the cache's blocks where they lie, one product
per block and KV head. What is gathered and scattered is queries, scores and outputs, a few per cent of the bytes.
Blocks that lie alone among other requests' blocks, or are shared by several, are copied first.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from onbeat_engine.runner.batch import Batch
from onbeat_engine.runner.kv import KVCache

SHORTEST_RUN = 8
"""Blocks; a shorter run costs more in calls of its own than in copying."""
WIDEST_GAP = 1
"""Unused blocks between two used ones that a run may span: their products are wasted."""


@dataclass(slots=True, eq=False)
class DecodePart:
    """Entries `first .. last` of a layout; their blocks are a slice of the cache, or ids to be gathered."""

    first: int
    last: int
    blocks: slice | Any

    def of(self, cache: Any) -> Any:
        """Return the blocks' keys or values [n, KV heads, block_size, head_dim]."""
        if isinstance(self.blocks, slice):
            return cache[self.blocks]
        return cache.index_select(0, self.blocks)


@dataclass(slots=True, eq=False)
class Layout:
    """How the blocks of the decodes are walked: E entries, W the most blocks of one row, S rows."""

    parts: list[DecodePart]
    owners: Any
    """[E]: whose query; an unused block's is S, which is nobody."""
    cells: Any
    """[E]: row * W + the block's number within the row."""
    entries: Any
    """[S * W]: the entry of each cell, whatever for cells that are not used."""
    masked: Any
    """[S, 1, 1, W * block_size]: slots beyond a row's tokens."""
    width: int


def lay_out(table_starts: Any, table: Any, kv_lens: Any, block_size: int, device: Any) -> Layout:
    """Split the blocks of the decodes into runs that are used in place, and the rest.

    Args:
        table_starts: [S + 1]; table: block ids, end to end; kv_lens: [S]. All numpy.
    """
    counts = np.diff(table_starts)
    num_rows, width = len(counts), int(counts.max())
    owner = np.repeat(np.arange(num_rows), counts)
    cell = owner * width + np.arange(len(table)) - table_starts[owner]
    order = np.argsort(table, kind="stable")
    ids = table[order]
    once = np.ones(len(ids), dtype=bool)
    once[1:] = ids[1:] != ids[:-1]
    order, again = order[once], order[~once]
    ids = ids[once]
    breaks = np.flatnonzero(np.diff(ids) > 1 + WIDEST_GAP) + 1
    firsts, lasts = np.append(0, breaks), np.append(breaks, len(ids))
    long = lasts - firsts >= SHORTEST_RUN
    parts: list[DecodePart] = []
    owners, cells, at = [], [], 0
    for first, last in zip(firsts[long], lasts[long], strict=True):
        run, run_ids = order[first:last], ids[first:last]
        low, high = int(run_ids[0]), int(run_ids[-1]) + 1
        run_owners = np.full(high - low, num_rows)
        run_cells = np.zeros(high - low, dtype=np.int64)
        run_owners[run_ids - low], run_cells[run_ids - low] = owner[run], cell[run]
        owners.append(run_owners)
        cells.append(run_cells)
        parts.append(DecodePart(at, at + high - low, slice(low, high)))
        at += high - low
    left = np.concatenate((again, order[np.repeat(~long, lasts - firsts)]))
    if len(left):
        owners.append(owner[left])
        cells.append(cell[left])
        blocks = torch.from_numpy(table[left].astype(np.int64)).to(device)
        parts.append(DecodePart(at, at + len(left), blocks))
    all_owners, all_cells = np.concatenate(owners), np.concatenate(cells)
    entries = np.zeros(num_rows * width, dtype=np.int64)
    used = all_owners < num_rows
    entries[all_cells[used]] = np.flatnonzero(used)
    masked = np.arange(width * block_size) >= kv_lens[:, None]
    return Layout(
        parts=parts,
        owners=torch.from_numpy(all_owners).to(device),
        cells=torch.from_numpy(all_cells).to(device),
        entries=torch.from_numpy(entries).to(device),
        masked=torch.from_numpy(masked).to(device)[:, None, None, :],
        width=width,
    )


@dataclass(slots=True, eq=False)
class PrefillChunk:
    """One request's tokens `first .. last` of the batch, the last of its `kv_len`."""

    first: int
    last: int
    kv_len: int
    blocks: Any
    """Block ids on the device; None: the chunk is all there is."""
    mask: Any
    """[tokens, kv_len]: what each may see; None: plain causal."""


class SdpaAttention:
    """Torch's operators; on any device, in any floating type."""

    capturable = False

    def __init__(self, kv: KVCache, num_heads: int) -> None:
        self.kv = kv
        self.num_heads = num_heads
        self.scale = kv.shape.head_dim**-0.5
        self._batch: Batch | None = None
        self._layout: Layout | None = None
        self._chunks: list[PrefillChunk] = []

    def plan(self, batch: Batch) -> None:
        """Lay out the decodes, and look up the chunks' blocks."""
        decodes, device, size = batch.num_decodes, self.kv.device, self.kv.shape.block_size
        self._batch = batch
        self._layout = None
        self._chunks = []
        if decodes:
            starts = batch.host_table_starts[: decodes + 1]
            table = batch.host_table[: starts[-1]]
            self._layout = lay_out(starts, table, batch.host_kv_lens[:decodes], size, device)
        # Slots that a mask leaves out weigh 0, and 0 times what is no number is none: a block that is begun in this
        # step, and not filled, must not hold what another request has left there. Nobody else reads it yet.
        ends, query_starts = batch.host_kv_lens, batch.host_query_starts
        begun = (ends % size > 0) & (ends % size <= np.diff(query_starts))
        for last in batch.host_table_starts[1:][begun]:
            self.kv.clear_values(int(batch.host_table[last - 1]))
        for row in range(decodes, batch.num_rows):
            first, last = (int(n) for n in batch.host_query_starts[row : row + 2])
            kv_len = int(batch.host_kv_lens[row])
            blocks = mask = None
            if kv_len > last - first:
                low, high = batch.host_table_starts[row : row + 2]
                blocks = batch.table[int(low) : int(high)].to(torch.int64)
                ends = torch.arange(kv_len - (last - first), kv_len, device=device)
                mask = torch.arange(kv_len, device=device) <= ends[:, None]
            self._chunks.append(PrefillChunk(first, last, kv_len, blocks, mask))

    def __call__(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        """See `Backend`."""
        batch = self._batch
        assert batch is not None, "plan() comes before the forward"
        self.kv.write(layer, k, v, batch.slot_blocks, batch.slot_offsets)
        keys, values = self.kv.layers[layer]
        queries = q.to(keys.dtype)
        out = torch.empty_like(queries)
        if self._layout is not None:
            out[: batch.num_decodes] = self._decode(self._layout, queries[: batch.num_decodes], keys, values)
        for chunk in self._chunks:
            span = slice(chunk.first, chunk.last)
            if chunk.blocks is None:
                seen = k[span].to(keys.dtype).transpose(0, 1), v[span].to(keys.dtype).transpose(0, 1)
            else:
                seen = self._gather(keys, chunk), self._gather(values, chunk)
            out[span] = scaled_dot_product_attention(
                queries[span].transpose(0, 1)[None],
                seen[0][None],
                seen[1][None],
                attn_mask=chunk.mask,
                is_causal=chunk.mask is None,
                enable_gqa=True,
            )[0].transpose(0, 1)
        return out.to(q.dtype)

    def _gather(self, cache: Any, chunk: PrefillChunk) -> Any:
        """Return a request's keys or values [KV heads, kv_len, head_dim]."""
        blocks = cache.index_select(0, chunk.blocks).transpose(0, 1)
        return blocks.flatten(1, 2)[:, : chunk.kv_len]

    def _decode(self, layout: Layout, q: Any, keys: Any, values: Any) -> Any:
        """Attend for rows of one token: q [S, heads, head_dim] -> the same."""
        rows, heads, dim = q.shape
        _blocks, kv_heads, size, _dim = keys.shape
        group, width, num_entries = heads // kv_heads, layout.width, len(layout.owners)
        padded = torch.cat(((q * self.scale).view(rows, heads * dim), q.new_zeros(1, heads * dim)))
        queries = padded.index_select(0, layout.owners).view(num_entries * kv_heads, group, dim)
        scores = q.new_empty(num_entries * kv_heads, group, size)
        for part in layout.parts:
            span = slice(part.first * kv_heads, part.last * kv_heads)
            block_keys = part.of(keys).flatten(0, 1)
            torch.bmm(queries[span], block_keys.transpose(1, 2), out=scores[span])
        by_row = scores.view(num_entries, heads * size).index_select(0, layout.entries)
        by_row = by_row.view(rows, width, heads, size).transpose(1, 2).reshape(rows, kv_heads, group, width * size)
        weights = by_row.masked_fill_(layout.masked, float("-inf")).softmax(-1)
        weights = weights.view(rows, heads, width, size).transpose(1, 2).reshape(rows * width, heads * size)
        weights = weights.index_select(0, layout.cells).view(num_entries * kv_heads, group, size)
        partial = q.new_empty(num_entries * kv_heads, group, dim)
        for part in layout.parts:
            span = slice(part.first * kv_heads, part.last * kv_heads)
            torch.bmm(weights[span], part.of(values).flatten(0, 1), out=partial[span])
        summed = q.new_zeros(rows + 1, heads * dim)
        summed.index_add_(0, layout.owners, partial.view(num_entries, heads * dim))
        return summed[:rows].view(rows, heads, dim)
