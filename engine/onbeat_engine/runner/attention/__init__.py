"""Attention over the paged KV cache: one small interface, three backends.

`sdpa` is plain torch, for CPUs and for float64; `triton` has our kernels, for CUDA; `flashinfer` uses that library.
"""

from importlib.util import find_spec
from os import environ
from typing import Any, Literal, Protocol

import torch

from onbeat_engine.runner.batch import Batch
from onbeat_engine.runner.kv import KVCache
from onbeat_spec.errors import ConfigError

Name = Literal["auto", "flashinfer", "triton", "sdpa"]
FLASHINFER_DIMS = (64, 128, 256)
"""Head dims that its kernels are made for."""


class Backend(Protocol):
    """Attends for one rank, step after step."""

    capturable: bool
    """What a CUDA graph recorded of it holds for any later step of as many rows that was planned."""

    def plan(self, batch: Batch) -> None:
        """Prepare for a step: whatever is the same for all its layers."""
        ...

    def __call__(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        """Write the step's KV into the cache, then attend.

        Args:
            layer: whose cache.
            q: [T, heads, head_dim].
            k: [T, KV heads, head_dim]; v likewise.

        Returns:
            [T, heads, head_dim]: each token over its request's tokens up to itself.
        """
        ...


def make(name: Name, kv: KVCache, num_heads: int, dtype: Any, most_entries: int) -> Backend:
    """Return a backend; `auto` takes FlashInfer where it is installed, else our kernels, on a CPU torch's own.

    Args:
        num_heads: query heads.
        dtype: of queries and outputs.
        most_entries: most block ids in the tables of one step.

    Raises:
        ConfigError: the backend named cannot run here.
    """
    cuda = kv.device.type == "cuda"
    dim = kv.shape.head_dim
    chosen = _automatic(cuda, dtype, dim) if name == "auto" else name
    if chosen == "sdpa":
        from onbeat_engine.runner.attention.sdpa import SdpaAttention  # noqa: PLC0415 - only what is used is imported

        return SdpaAttention(kv, num_heads)
    if find_spec(chosen) is None:
        raise ConfigError(f"attention_backend is {chosen!r}, which is not installed; install it, or use 'auto'")
    if chosen == "flashinfer":
        if not cuda or dtype.itemsize != 2 or dim not in FLASHINFER_DIMS:
            raise ConfigError(
                f"attention_backend 'flashinfer' needs CUDA, a 16-bit dtype (not {dtype}) and a head_dim of "
                f"{FLASHINFER_DIMS} (not {dim}); use 'auto'"
            )
        from onbeat_engine.runner.attention.flashinfer import FlashInferAttention  # noqa: PLC0415 - may be absent

        return FlashInferAttention(kv, num_heads, dtype, most_entries)
    if not cuda and environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError("attention_backend 'triton' needs CUDA, or TRITON_INTERPRET=1; use 'auto'")
    from onbeat_engine.runner.attention.triton import TritonAttention  # noqa: PLC0415 - may be absent

    return TritonAttention(kv, num_heads)


def _automatic(cuda: bool, dtype: Any, dim: int) -> Name:
    """Neither FlashInfer nor the tensor cores of `tl.dot` serve float64; FlashInfer serves 16 bits alone."""
    if not cuda or dtype == torch.float64:
        return "sdpa"
    if dtype.itemsize == 2 and dim in FLASHINFER_DIMS and find_spec("flashinfer") is not None:
        return "flashinfer"
    return "triton" if find_spec("triton") is not None else "sdpa"
