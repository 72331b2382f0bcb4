"""Onbeat's policy inside vLLM: `vllm serve --scheduler-cls onbeat_engine.vllm.OnbeatAsyncScheduler`.

The two classes subclass whatever vLLM is installed, so they are made when first asked for. Nothing here imports vLLM
before that.
"""

from importlib import import_module
from typing import Any

from onbeat_engine.vllm.releases import UnsupportedVllm, require

__all__ = ["OnbeatScheduler", "OnbeatAsyncScheduler", "UnsupportedVllm"]


def __getattr__(name: str) -> Any:
    """Make `OnbeatScheduler` or `OnbeatAsyncScheduler`.

    Raises:
        UnsupportedVllm: there is no vLLM, or one that these classes do not fit.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require()
    return getattr(import_module("onbeat_engine.vllm.scheduler"), name)
