"""Our kernels against float64: on a CPU in Triton's interpreter, on CUDA for real.

Whether a kernel is interpreted is settled when Triton is first imported, so `test_triton.py` runs these checks in a
process of their own.
"""

from pathlib import Path

import pytest
import torch

from benchmarks._attention import case, error
from onbeat_engine.runner.attention.triton import TritonAttention
from onbeat_engine.runner.attention.triton_decode import splits_for
from onbeat_engine.wire.config import EngineConfig
from tests.engine.runner.models import tiny
from tests.engine.runner.steps import drive, load_model, request, runner

torch.set_num_threads(1)

MIXED = [(0, 1), (40, 1), (0, 21), (33, 18), (16, 1), (7, 2)]
LONG_DECODES = [(130, 1), (5, 1), (64, 1)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"),
    [(9, 3, 64), (3, 1, 128), (4, 4, 64), (8, 2, 128), (6, 2, 12), (17, 1, 16)],
    ids=["SmolLM2", "group-3-dim-128", "group-1", "group-4", "dim-12", "group-17"],
)
def test_mixed_batches(heads: int, kv_heads: int, dim: int) -> None:
    step = case(MIXED, heads=heads, kv_heads=kv_heads, dim=dim)
    assert error(step, TritonAttention(step.kv, heads)) < 2e-6


@pytest.mark.parametrize("block_size", [1, 5, 32, 128])
def test_any_block_size(block_size: int) -> None:
    step = case(MIXED, heads=6, kv_heads=2, dim=16, block_size=block_size)
    assert error(step, TritonAttention(step.kv, 6)) < 2e-6


@pytest.mark.parametrize(("processors", "splits"), [(3, 2), (6, 4), (100, 32)])
def test_split_decodes(processors: int, splits: int) -> None:
    step = case(LONG_DECODES, heads=3, kv_heads=1, dim=16, block_size=8)
    backend = TritonAttention(step.kv, 3)
    backend._processors = processors
    assert error(step, backend) < 2e-6
    assert backend._splits == splits


def test_float16() -> None:
    """Not bfloat16: the interpreter multiplies its bit patterns. `benchmarks/gpu.py` checks that."""
    step = case([(70, 1), (20, 30), (0, 1)], heads=6, kv_heads=2, dim=64, dtype=torch.float16)
    backend = TritonAttention(step.kv, 6)
    backend._processors = 8
    assert error(step, backend) < 3e-3


def test_padding_rows_are_harmless() -> None:
    step = case(LONG_DECODES, heads=6, kv_heads=2, dim=16, pad_to=5)
    assert error(step, TritonAttention(step.kv, 6)) < 2e-6


def test_what_lies_behind_a_request_is_not_read() -> None:
    """Slots behind its last token may hold anything, also what is no number."""
    step = case([(17, 1), (18, 3)], heads=6, kv_heads=2, dim=16, block_size=16)
    for cache in step.kv.layers[0]:
        for row in step.batch.rows:
            cache[row.blocks[-1], :, (row.start + row.num_tokens) % 16 :] = torch.nan
    assert error(step, TritonAttention(step.kv, 6)) < 2e-6


def test_a_whole_model(tmp_path: Path) -> None:
    """The tokens of a run with chunks, one step ahead, in a tight pool are those of torch's operators."""
    tiny.llama(tmp_path, num_attention_heads=3, num_key_value_heads=1, head_dim=16)
    found = []
    for backend, budget, blocks in (("sdpa", 64, 64), ("triton", 12, 13)):
        config = EngineConfig(
            model=str(tmp_path),
            dtype="float32",
            attention_backend=backend,  # type: ignore[arg-type]  # one of its names
            max_num_seqs=3,
            max_num_batched_tokens=budget,
            num_gpu_blocks_override=blocks,
            block_size=4,
            async_scheduling=backend == "triton",
        )
        requests = [request(str(i), [(7 * i + j) % 300 for j in range(9 + 7 * i)], 6) for i in range(3)]
        ours = runner(load_model(config), config)
        run = drive(ours, config, {0: requests}, num_blocks=blocks)
        found.append(run.tokens)
    assert run.preemptions
    assert found[0] == found[1]


def test_splits_fill_the_processors() -> None:
    assert splits_for(1, 132) == 32
    assert splits_for(64, 132) == 8
    assert splits_for(1000, 132) == 1


def test_views_are_read_where_they_are() -> None:
    """Queries, keys and values are slices of one merged projection."""
    step = case(MIXED, heads=6, kv_heads=2, dim=16)
    merged = torch.cat((step.q, step.k, step.v), 1)
    step.q, step.k, step.v = merged.split((6, 2, 2), 1)
    assert not step.q.is_contiguous()
    assert error(step, TritonAttention(step.kv, 6)) < 2e-6
