"""One matrix product with weights that stay."""

import torch
import torch.nn.functional as F


class Linear:
    """x [.., in] -> [.., out]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        """[out, in]"""
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b."""
        return F.linear(x, self.weight, self.bias)
