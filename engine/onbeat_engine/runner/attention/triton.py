"""Attention with our Triton kernels."""

from typing import Any

import torch

from onbeat_engine.runner.attention.triton_decode import decode, splits_for
from onbeat_engine.runner.attention.triton_prefill import prefill
from onbeat_engine.runner.batch import Batch
from onbeat_engine.runner.kv import KVCache
from onbeat_spec.errors import ConfigError


class TritonAttention:
    """Our kernels: on CUDA, or on a CPU in Triton's interpreter."""

    capturable = True

    def __init__(self, kv: KVCache, num_heads: int) -> None:
        if kv.shape.dtype.itemsize > 4:
            raise ConfigError(f"attention_backend 'triton' serves no {kv.shape.dtype}; use 'auto' or 'sdpa'")
        self.kv = kv
        self.scale = kv.shape.head_dim**-0.5
        cuda = kv.device.type == "cuda"
        self._processors = torch.cuda.get_device_properties(kv.device).multi_processor_count if cuda else 1
        self._batch: Batch | None = None
        self._splits = 1

    def plan(self, batch: Batch) -> None:
        """Choose the splits; they depend on the number of rows alone, as a graph has them for good."""
        self._batch = batch
        self._splits = splits_for(batch.num_decodes * self.kv.shape.num_kv_heads, self._processors)

    def __call__(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        """See `Backend`."""
        batch = self._batch
        assert batch is not None, "plan() comes before the forward"
        self.kv.write(layer, k, v, batch.slot_blocks, batch.slot_offsets)
        cache = self.kv.layers[layer]
        q = q.to(cache[0].dtype)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        decodes = batch.num_decodes
        if decodes:
            decode(
                q[:decodes],
                cache,
                out[:decodes],
                table=batch.table,
                table_starts=batch.table_starts[: decodes + 1],
                kv_lens=batch.kv_lens[:decodes],
                scale=self.scale,
                splits=self._splits,
            )
        if decodes < batch.num_rows:
            prefill(
                q,
                cache,
                out,
                query_starts=batch.query_starts[decodes:],
                table=batch.table,
                table_starts=batch.table_starts[decodes:],
                kv_lens=batch.kv_lens[decodes:],
                longest=batch.longest_chunk,
                scale=self.scale,
            )
        return out.to(k.dtype)
