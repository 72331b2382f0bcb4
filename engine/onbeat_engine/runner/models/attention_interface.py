"""The one interface between a decoder and the attention backends."""

from typing import Protocol

import torch


class Attention(Protocol):
    """Causal attention over a paged KV cache, of the batch whose metadata were set before the forward."""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Write `k` and `v` into the layer's cache, then attend with scale 1 / sqrt(D).

        Args:
            layer: 0 .. num_layers - 1.
            q: [T, Hq, D], rotated. Query head h reads KV head h // (Hq // Hkv).
            k: [T, Hkv, D], rotated. Like `q` and `v` it may be a view: its last dimension is contiguous.
            v: [T, Hkv, D].

        Returns:
            [T, Hq, D].
        """
        ...
