"""Which backend is taken."""

import pytest
import torch

from onbeat_engine.runner import attention
from onbeat_engine.runner.attention import make
from onbeat_engine.runner.attention.sdpa import SdpaAttention
from onbeat_engine.runner.kv import KVCache, KVShape
from onbeat_spec.errors import ConfigError

KV = KVCache(KVShape(1, 1, 16, 4, torch.float32), 2, torch.device("cpu"))


def test_a_cpu_has_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(attention, "find_spec", lambda name: object())
    assert isinstance(make("auto", KV, 3, torch.float32, most_entries=8), SdpaAttention)
    with pytest.raises(ConfigError, match="'triton' needs CUDA"):
        make("triton", KV, 3, torch.float32, most_entries=8)
    with pytest.raises(ConfigError, match="'flashinfer' needs CUDA, a 16-bit dtype"):
        make("flashinfer", KV, 3, torch.float32, most_entries=8)


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="'flashinfer', which is not installed"):
        make("flashinfer", KV, 3, torch.float32, most_entries=8)


@pytest.mark.parametrize(
    ("dtype", "dim", "installed", "chosen"),
    [
        (torch.bfloat16, 128, {"flashinfer", "triton"}, "flashinfer"),
        (torch.bfloat16, 96, {"flashinfer", "triton"}, "triton"),
        (torch.bfloat16, 64, {"triton"}, "triton"),
        (torch.float32, 64, {"flashinfer", "triton"}, "triton"),
        (torch.float64, 64, {"flashinfer", "triton"}, "sdpa"),
        (torch.bfloat16, 64, set(), "sdpa"),
    ],
)
def test_what_cuda_gets(
    dtype: object, dim: int, installed: set[str], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "find_spec", lambda name: name if name in installed else None)
    assert attention._automatic(True, dtype, dim) == chosen
