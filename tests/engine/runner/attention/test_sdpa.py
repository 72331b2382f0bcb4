"""Attention with torch's operators, against float64, for blocks that lie in every way."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks._attention import CPU, case, error
from onbeat_engine.runner.attention.sdpa import SdpaAttention, lay_out

torch.set_num_threads(1)

MIXED = [(0, 1), (40, 1), (0, 21), (33, 18), (16, 1), (7, 2)]


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (3, 1, 128), (4, 4, 64), (6, 2, 12)])
@pytest.mark.parametrize("shuffled", [True, False])
def test_mixed_batches(heads: int, kv_heads: int, dim: int, shuffled: bool) -> None:
    step = case(MIXED, heads=heads, kv_heads=kv_heads, dim=dim, shuffled=shuffled)
    assert error(step, SdpaAttention(step.kv, heads)) < 2e-6


@settings(max_examples=60, deadline=None)
@given(
    starts=st.lists(st.integers(24, 150), min_size=1, max_size=6),
    chunk=st.integers(0, 9),
    block_size=st.sampled_from([1, 2, 3, 8]),
    shared=st.sampled_from([0, 0, 1, 3]),
    shuffled=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_layout(*, starts: list[int], chunk: int, block_size: int, shared: int, shuffled: bool, seed: int) -> None:
    """Runs used in place, gaps, lone blocks, and blocks that several requests share."""
    rows = [(start, 1) for start in starts] + ([(30, chunk)] if chunk else [])
    options: dict[str, Any] = {"block_size": block_size, "shared": shared, "shuffled": shuffled, "seed": seed}
    step = case(rows, heads=3, kv_heads=1, dim=4, dtype=torch.float64, **options)
    assert error(step, SdpaAttention(step.kv, 3)) < 1e-12


def test_blocks_in_order_are_used_in_place() -> None:
    step = case([(100, 1), (60, 1)], heads=3, kv_heads=1, dim=4, block_size=4, shuffled=False)
    backend = SdpaAttention(step.kv, 3)
    assert error(step, backend) < 2e-6
    assert backend._layout is not None
    assert [part.blocks for part in backend._layout.parts] == [slice(0, 42)]


def test_runs_gaps_and_lone_blocks() -> None:
    """Blocks 0-9 but 4 are a run with a gap; block 2 is shared; block 40 lies alone."""
    tables = torch.tensor([0, 1, 2, 3, 5, 2, 6, 7, 8, 9, 40], dtype=torch.int32).numpy()
    starts = torch.tensor([0, 5, 11]).numpy()
    lens = torch.tensor([10, 11]).numpy()
    layout = lay_out(starts, tables, lens, 2, CPU)
    run, rest = layout.parts
    assert run.blocks == slice(0, 10)
    assert not isinstance(rest.blocks, slice)
    assert sorted(rest.blocks.tolist()) == [2, 40]
    assert layout.owners.tolist() == [0, 0, 0, 0, 2, 0, 1, 1, 1, 1, 1, 1]
    assert layout.width == 6
    assert [int(layout.entries[cell]) for cell in (0, 4, 7, 8)] == [0, 5, 6, 7]
    assert (~layout.masked).sum().item() == 21


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types_are_computed_in_float32(dtype: Any) -> None:
    step = case(MIXED, heads=6, kv_heads=2, dim=16)
    step.q, step.k, step.v = (tensor.to(dtype) for tensor in (step.q, step.k, step.v))
    rounded = case(MIXED, heads=6, kv_heads=2, dim=16)
    rounded.q, rounded.k, rounded.v = (tensor.float() for tensor in (step.q, step.k, step.v))
    backend, other = SdpaAttention(step.kv, 6), SdpaAttention(rounded.kv, 6)
    with torch.inference_mode():
        backend.plan(step.batch)
        other.plan(rounded.batch)
        found = backend(0, step.q, step.k, step.v)
        assert found.dtype == dtype
        assert torch.equal(found, other(0, rounded.q, rounded.k, rounded.v).to(dtype))


def test_padding_rows_are_harmless() -> None:
    step = case([(130, 1), (5, 1)], heads=6, kv_heads=2, dim=16, pad_to=4)
    assert error(step, SdpaAttention(step.kv, 6)) < 2e-6


@pytest.mark.parametrize("rows", [[(16, 1), (40, 1)], [(0, 5), (16, 9), (32, 1)]], ids=["decodes", "chunks"])
def test_what_overflowed_in_a_block_does_not_reach_its_next_request(rows: list[tuple[int, int]]) -> None:
    """Slots behind a request's last token weigh 0; 0 times infinity would be no number."""
    step = case(rows, heads=6, kv_heads=2, dim=16)
    for row in step.batch.rows:
        if row.start % 16 == 0:
            for cache in step.kv.layers[0]:
                cache[row.blocks[row.start // 16]] = torch.inf
    assert error(step, SdpaAttention(step.kv, 6)) < 2e-6
