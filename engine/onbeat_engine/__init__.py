"""The data-parallel serving engine that runs the policy.

`LLM`, `AsyncLLM`, `SamplingParams` and their like are imported when first asked for: what runs inside vLLM needs none
of the engine's libraries.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onbeat_engine.front.async_llm import AsyncLLM
    from onbeat_engine.front.outputs import RequestOutput
    from onbeat_engine.llm import LLM
    from onbeat_engine.wire.config import EngineConfig
    from onbeat_engine.wire.params import SamplingParams

__all__ = ["LLM", "AsyncLLM", "EngineConfig", "RequestOutput", "SamplingParams"]

_HOMES = {
    "LLM": "llm",
    "AsyncLLM": "front.async_llm",
    "EngineConfig": "wire.config",
    "RequestOutput": "front.outputs",
    "SamplingParams": "wire.params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
