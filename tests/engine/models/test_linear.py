"""Packed weights compute the same."""

import pytest
import torch
import torch.nn.functional as F

from onbeat_engine.models.linear import Linear


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
