"""What tests need that is not there everywhere."""

from importlib.util import find_spec

import pytest


def needs_vllm() -> None:
    """Skip the calling test module where vLLM is not installed; called before anything that imports vLLM."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed in this environment", allow_module_level=True)
