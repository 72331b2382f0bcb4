"""The engine's public names, and that nothing is loaded for them before they are asked for."""

import subprocess
import sys

import pytest

import onbeat_engine

HEAVY = ("torch", "fastapi", "zmq", "msgspec", "httpx", "numpy", "psutil", "rich", "vllm")


def test_every_public_name_is_the_one_of_its_module() -> None:
    from onbeat_engine.front.async_llm import AsyncLLM
    from onbeat_engine.front.outputs import RequestOutput
    from onbeat_engine.llm import LLM
    from onbeat_engine.wire.config import EngineConfig
    from onbeat_engine.wire.params import SamplingParams

    given = [getattr(onbeat_engine, name) for name in onbeat_engine.__all__]
    assert given == [LLM, AsyncLLM, EngineConfig, RequestOutput, SamplingParams]
    assert set(onbeat_engine.__all__) <= set(dir(onbeat_engine))


def test_another_name_is_none() -> None:
    with pytest.raises(AttributeError, match="'onbeat_engine' has no attribute 'Llm'"):
        onbeat_engine.Llm  # noqa: B018 - asking is the test


def test_the_package_and_what_runs_inside_vllm_load_no_library_of_the_engine() -> None:
    script = f"""
import sys
import onbeat_engine, onbeat_engine.vllm, onbeat_engine.vllm.recorder
print(*({set(HEAVY)!r} & sys.modules.keys()))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []


def test_a_vllm_user_s_first_line_works() -> None:
    script = "from onbeat_engine import LLM, AsyncLLM, SamplingParams; print(LLM.__module__, AsyncLLM.__module__)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.split() == ["onbeat_engine.llm", "onbeat_engine.front.async_llm"], run.stderr
