"""Requests to sample for."""

from collections.abc import Sequence
from typing import Any

from onbeat_engine.runner.executor import EngineRequest
from onbeat_engine.wire.params import SamplingParams

PROMPT = (5, 6, 7)


def request(
    id: str = "r", *, prompt: Sequence[int] = PROMPT, seed: int = 0, stop: Sequence[int] = (), **params: Any
) -> EngineRequest:
    """Return a request; `params` are its sampling parameters."""
    params.setdefault("max_tokens", 1000)
    return EngineRequest(id, prompt, 1000, SamplingParams(**params), seed=seed, stop_token_ids=stop)
