"""These tests drive vLLM's own schedulers; they run where vLLM is installed: `make vllm-test VERSION=...`."""

from importlib.util import find_spec

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs vLLM where there is none."""
    if find_spec("vllm") is None:
        skip = pytest.mark.skip(reason="vLLM is not installed here; make vllm-test VERSION=0.33.0 runs this with it")
        for item in items:
            if "tests/proofs/vllm/" in item.path.as_posix():
                item.add_marker(skip)
