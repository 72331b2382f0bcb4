"""Attention with FlashInfer's wrappers over the paged cache."""

from typing import Any

import flashinfer
import torch

from onbeat_engine.runner.batch import Batch
from onbeat_engine.runner.kv import KVCache

WORKSPACE_BYTES = 384 << 20
"""Enough for the split decodes of 512 rows with 64 heads of 128."""
LAYOUT = "HND"
"""FlashInfer's name for blocks of [KV heads, block_size, head_dim]."""


class FlashInferAttention:
    """FlashInfer, for 16-bit types on CUDA. Decodes use its tensor-core kernels, which serve any group size."""

    capturable = True

    def __init__(self, kv: KVCache, num_heads: int, dtype: Any, most_entries: int) -> None:
        self.kv = kv
        self.num_heads = num_heads
        self.dtype = dtype
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=kv.device)
        self._prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace, LAYOUT)
        self._eager = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self._workspace, LAYOUT, use_tensor_cores=True)
        self._table = self._integers(most_entries)
        self._of_graphs: dict[int, Any] = {}
        """One decode wrapper for each captured size: a graph knows the addresses of its wrapper's buffers."""
        self._decode: Any = self._eager
        self._batch: Batch | None = None
        self._planned = torch.cuda.Event()
        """The wrappers copy their plans from pinned memory of their own, which the next plan overwrites."""

    def plan(self, batch: Batch) -> None:
        """Plan the decodes and the chunks."""
        self._batch = batch
        self._planned.synchronize()
        size, decodes = self.kv.shape.block_size, batch.num_decodes
        starts = torch.from_numpy(batch.host_table_starts.copy())
        last = torch.from_numpy((batch.host_kv_lens - 1) % size + 1)
        sizes = self.num_heads, self.kv.shape.num_kv_heads, self.kv.shape.head_dim, size
        types = {"q_data_type": self.dtype, "kv_data_type": self.kv.shape.dtype}
        if decodes:
            self._decode = self._graph_wrapper(decodes) if batch.padded else self._eager
            until = int(starts[decodes])
            self._decode.plan(starts[: decodes + 1], batch.table[:until], last[:decodes], *sizes, **types)
        if decodes < batch.num_rows:
            queries = torch.from_numpy(batch.host_query_starts[decodes:] - batch.host_query_starts[decodes])
            from_here = starts[decodes:] - starts[decodes]
            table = batch.table[int(starts[decodes]) :]
            self._prefill.plan(queries, from_here, table, last[decodes:], *sizes, causal=True, **types)
        self._planned.record()

    def __call__(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        """See `Backend`."""
        batch = self._batch
        assert batch is not None, "plan() comes before the forward"
        self.kv.write(layer, k, v, batch.slot_blocks, batch.slot_offsets)
        q, cache, decodes = q.contiguous(), self.kv.layers[layer], batch.num_decodes
        if decodes == batch.num_rows:
            return self._decode.run(q, cache)
        if not decodes:
            return self._prefill.run(q, cache)
        return torch.cat((self._decode.run(q[:decodes], cache), self._prefill.run(q[decodes:], cache)))

    def _graph_wrapper(self, rows: int) -> Any:
        wrapper = self._of_graphs.get(rows)
        if wrapper is None:
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                self._workspace,
                LAYOUT,
                use_cuda_graph=True,
                use_tensor_cores=True,
                paged_kv_indptr_buffer=self._integers(rows + 1),
                paged_kv_indices_buffer=self._table,
                paged_kv_last_page_len_buffer=self._integers(rows),
            )
            self._of_graphs[rows] = wrapper
        return wrapper

    def _integers(self, count: int) -> Any:
        return torch.zeros(count, dtype=torch.int32, device=self.kv.device)
