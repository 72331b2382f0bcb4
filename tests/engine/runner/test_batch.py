"""How a step's rows are laid out."""

from itertools import pairwise

import pytest
import torch

from onbeat_engine.runner.batch import Batch, Inputs, Last, RunnerState
from onbeat_engine.runner.executor import BatchRow, EngineRequest
from tests.engine.runner.steps import request

CPU = torch.device("cpu")


def _inputs() -> Inputs:
    return Inputs(max_tokens=32, max_rows=4, max_blocks=8, block_size=4, scratch=99, device=CPU)


def _state(of: EngineRequest) -> RunnerState:
    assert isinstance(of.runner_state, RunnerState)
    return of.runner_state


def _tables(batch: Batch) -> list[list[int]]:
    starts = batch.table_starts.tolist()
    return [batch.table[a:b].tolist() for a, b in pairwise(starts)]


def test_decodes_come_first() -> None:
    chunk, decode, last = request("chunk", list(range(10, 20)), 5), request("decode", [1, 2, 3, 4, 5], 5), None
    rows = [BatchRow(chunk, 2, 5, False, [7, 3, 8]), BatchRow(decode, 4, 1, True, [5, 6])]
    batch = _inputs().fill(rows, last, 0)
    assert [row.request.id for row in batch.rows] == ["decode", "chunk"]
    assert (batch.num_decodes, batch.num_rows, batch.num_tokens, batch.longest_chunk) == (1, 2, 6, 5)
    assert batch.token_ids.tolist() == [5, 12, 13, 14, 15, 16]
    assert batch.positions.tolist() == [4, 2, 3, 4, 5, 6]
    assert batch.slot_blocks.tolist() == [6, 7, 7, 3, 3, 3]
    assert batch.slot_offsets.tolist() == [0, 2, 3, 0, 1, 2]
    assert batch.query_starts.tolist() == [0, 1, 6]
    assert batch.kv_lens.tolist() == [5, 7]
    assert _tables(batch) == [[5, 6], [7, 3]]
    assert batch.sample_at.tolist() == [0]
    assert [row.request.id for row in batch.sampling] == ["decode"]


def test_padding_uses_scratch_alone() -> None:
    batch = _inputs().fill([BatchRow(request("a", [1, 2, 3], 5), 2, 1, True, [5])], None, 0, 3)
    assert (batch.num_decodes, batch.num_rows, batch.padded) == (3, 3, True)
    assert batch.real.tolist() == [True, False, False]
    assert batch.slot_blocks.tolist() == [5, 99, 99]
    assert _tables(batch) == [[5], [99], [99]]
    assert batch.kv_lens.tolist() == [3, 1, 1]
    assert batch.sample_at.tolist() == [0]


def test_buffers_stay_where_they_are() -> None:
    inputs = _inputs()
    each = request("a", [1, 2, 3], 5)
    first = inputs.fill([BatchRow(each, 0, 3, True, [5])], None, 0)
    again = inputs.fill([BatchRow(each, 2, 1, True, [5])], None, 0)
    for name in ("token_ids", "positions", "slot_blocks", "slot_offsets", "query_starts", "kv_lens", "table"):
        assert getattr(first, name).data_ptr() == getattr(again, name).data_ptr()


def test_a_missing_token_is_taken_from_the_step_before() -> None:
    inputs = _inputs()
    first, second, third = (request(id, [1, 2, 3], 5) for id in "abc")
    inputs.fill([BatchRow(each, 0, 3, True, [block]) for block, each in enumerate((first, second, third))], None, 6)
    _state(second).last, _state(third).last = Last(7, 0), Last(7, 1)
    first.tokens.append(50)
    rows = [BatchRow(each, 3, 1, True, [block]) for block, each in enumerate((first, third, second))]
    batch = inputs.fill(rows, torch.tensor([60, 70]), 7)
    assert batch.token_ids.tolist() == [50, 70, 60]


def test_a_token_that_nobody_knows_is_an_error() -> None:
    inputs = _inputs()
    each = request("a", [1, 2, 3], 5)
    inputs.fill([BatchRow(each, 0, 3, True, [0])], None, 6)
    _state(each).last = Last(5, 0)
    with pytest.raises(AssertionError, match="a: its last token is neither known nor sampled"):
        inputs.fill([BatchRow(each, 3, 1, True, [0])], torch.tensor([1]), 7)


def test_a_block_table_grows_and_is_another_after_a_preemption() -> None:
    inputs = _inputs()
    each = request("a", list(range(12)), 5)
    inputs.fill([BatchRow(each, 0, 5, False, [3, 4])], None, 0)
    assert _tables(inputs.fill([BatchRow(each, 5, 5, False, [3, 4, 9])], None, 0)) == [[3, 4, 9]]
    each.num_preemptions += 1
    assert _tables(inputs.fill([BatchRow(each, 0, 5, False, [8, 1])], None, 0)) == [[8, 1]]
