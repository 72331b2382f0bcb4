"""What tests need that is not there everywhere."""

import warnings
from importlib import import_module
from importlib.util import find_spec

import pytest

from onbeat_engine.vllm.releases import UnsupportedVllm, check


def needs_vllm() -> None:
    """Skip the calling test module where no vLLM is installed that the schedulers fit.

    Called before anything else that imports vLLM.
    """
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed in this environment", allow_module_level=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own imports use what others have deprecated
        version = str(import_module("vllm").__version__)
    try:
        check(version)
    except UnsupportedVllm as error:
        pytest.skip(str(error), allow_module_level=True)
