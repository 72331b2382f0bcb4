"""One matrix product with weights that stay."""

import torch
import torch.nn.functional as F

_ROWS_EXPECTED = 32
"""Rows of x that packed weights are laid out for; any other number works too."""


class Linear:
    """x [T, in] -> [T, out]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = weight
        self.bias = bias
        self.packed = False

    @property
    def weight(self) -> torch.Tensor:
        """[out, in]; of packed weights a copy."""
        return self._weight.to_dense() if self.packed else self._weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b."""
        if self.packed:
            # oneDNN adds up a single row in another order than the same row among others.
            rows = x.expand(2, -1) if x.shape[0] == 1 else x
            y = torch.ops.mkldnn._linear_pointwise.default(rows, self._weight, self.bias, "none", [], "")
            return y[: x.shape[0]]
        return F.linear(x, self._weight, self.bias)

    def pack(self) -> None:
        """On a CPU, lay the weights out as oneDNN's kernels read them, where this build of torch can.

        What torch calls otherwise (MKL for float32) takes 2 to 3 times as long for the few rows of a decode batch on
        AMD's processors, and never less. The operators are torch's own (its compiler packs with them) but not public:
        so what they compute is compared once.
        """
        weight = self._weight
        if self.packed or weight.device.type != "cpu" or not _packs(weight.dtype):
            return
        try:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_EXPECTED)
            self.packed = True
            if not self._agrees(weight):
                self._weight, self.packed = weight, False
        except (RuntimeError, AttributeError, TypeError):  # an operator that is not there, or is another one now
            self._weight, self.packed = weight, False

    def _agrees(self, weight: torch.Tensor) -> bool:
        x = weight[:1] / weight[:1].abs().max().clamp(min=1e-6)
        right = F.linear(x, weight, self.bias)
        tolerance = (1e-5 if weight.dtype == torch.float32 else 2e-2) * float(right.abs().max())
        return float((self(x) - right).abs().max()) <= tolerance


def _packs(dtype: torch.dtype) -> bool:
    if dtype == torch.float32:
        return bool(torch.backends.mkldnn.is_available())
    return dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
