"""What the kernels' launchers share."""

from math import e, log2

LOG2_E = log2(e)
LEAST = 16
"""Least rows, columns and depth of `tl.dot`."""


def padded(size: int) -> int:
    """Return the power of two that `tl.dot` is given for a dimension."""
    return max(LEAST, 1 << (size - 1).bit_length())
