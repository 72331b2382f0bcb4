"""Packed weights compute the same."""

import pytest
import torch
import torch.nn.functional as F

from onbeat_engine.runner.models.linear import Linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("rows", [0, 1, 16, 200])
def test_packed_equals_plain(dtype: torch.dtype, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(40, 24, generator=generator).to(dtype)
    bias = torch.randn(40, generator=generator).to(dtype)
    x = torch.randn(rows, 24, generator=generator).to(dtype)
    linear = Linear(weight, bias)
    linear.pack()
    found, right = linear(x), F.linear(x, weight, bias)
    assert found.dtype == dtype
    assert torch.allclose(found.double(), right.double(), rtol=0, atol=1e-5 if dtype.itemsize >= 4 else 0.1)
    assert torch.equal(linear.weight, weight)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="seen to hold on AVX-512 kernels only")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("out", "width"), [(48, 80), (576, 1536), (960, 576)])
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype, out: int, width: int) -> None:
    """Bit for bit: so a request's tokens cannot depend on the company that it is computed in."""
    generator = torch.Generator().manual_seed(out)
    linear = Linear(torch.randn(out, width, generator=generator).to(dtype))
    linear.pack()
    x = torch.randn(130, width, generator=generator).to(dtype)
    whole = linear(x)
    assert linear.packed
    for count in (1, 2, 3, 16, 17, 33, 64, 129):
        assert torch.equal(linear(x[:count]), whole[:count])


def test_operators_that_compute_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no public interface of torch: a release may change them."""
    weight = torch.randn(40, 24)
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", lambda weight, rows: (2 * weight).to_mkldnn())
    linear = Linear(weight)
    linear.pack()
    assert not linear.packed
    assert linear.weight is weight


def test_without_the_operators_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*arguments: object) -> None:
        raise AttributeError("no such operator")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", gone)
    linear = Linear(torch.randn(40, 24))
    linear.pack()
    assert not linear.packed
    assert linear(torch.randn(3, 24)).shape == (3, 40)
