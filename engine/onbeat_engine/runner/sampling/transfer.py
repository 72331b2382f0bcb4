"""Small copies between host and device that wait for nothing."""

from collections.abc import Sequence
from typing import Any

import torch


def to_device(values: Sequence[Any], dtype: Any, device: Any) -> Any:
    """Return a list as a tensor on the device; a CUDA stream is not waited for."""
    tensor = torch.tensor(values, dtype=dtype)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class OnHost:
    """Tensors on their way to the host; `wait` for them before reading."""

    __slots__ = ("_event", "_tensors")

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._event: Any = None
        if tensors and tensors[0].is_cuda:
            self._tensors = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
            for target, source in zip(self._tensors, tensors, strict=True):
                target.copy_(source, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._tensors = list(tensors)

    def wait(self) -> list[Any]:
        """Return them, once they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensors
