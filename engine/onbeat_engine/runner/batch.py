"""One step's batch, flattened to tokens, in buffers that stay where they are from step to step.

Rows of one token come first, so that decodes and chunks are two slices. Block tables are laid end to end: those of
row r are `table[table_starts[r] : table_starts[r + 1]]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from onbeat_engine.runner.executor import BatchRow, EngineRequest


class Last(NamedTuple):
    """Where a request's latest sampled token is on the device: which step's tensor, and where in it."""

    step: int
    at: int


NOWHERE = Last(-1, -1)


@dataclass(slots=True, eq=False)
class RunnerState:
    """What the runner keeps for a request, at `EngineRequest.runner_state`."""

    table: Any
    """Block table, int32 numpy; `num_blocks` of it are set, and hold until the next preemption."""
    num_blocks: int = 0
    num_preemptions: int = 0
    last: Last = NOWHERE


@dataclass(slots=True, eq=False)
class Batch:
    """A step's inputs: tensors on the device, and the numpy arrays they were copied from. T tokens, S rows."""

    num_decodes: int
    """Rows of one token; they come first."""
    num_rows: int
    num_tokens: int
    token_ids: Any
    """[T] int64."""
    positions: Any
    """[T] int64."""
    slot_blocks: Any
    """[T] int64: the block each token's KV goes to."""
    slot_offsets: Any
    """[T] int64: and where in it."""
    query_starts: Any
    """[S + 1] int32."""
    kv_lens: Any
    """[S] int32: tokens to attend to, those of this step included."""
    table_starts: Any
    """[S + 1] int32."""
    table: Any
    """Block ids, int32."""
    host_query_starts: Any
    host_kv_lens: Any
    host_table_starts: Any
    host_table: Any
    sample_at: Any
    """[n] int64: the tokens whose logits are sampled from."""
    rows: list[BatchRow] = field(default_factory=list)
    """In the order of the batch; without padding."""
    sampling: list[BatchRow] = field(default_factory=list)
    """Those that sample, in the same order."""
    real: Any = None
    """Of a batch filled up to a size that a graph was captured for: [num_tokens] bool, False for padding. Else None."""

    @property
    def padded(self) -> bool:
        """Filled up to a size that a graph was captured for."""
        return self.real is not None

    @property
    def longest_chunk(self) -> int:
        """Most tokens of one row that is no decode."""
        lengths = np.diff(self.host_query_starts[self.num_decodes :])
        return int(lengths.max()) if len(lengths) else 0


class Buffer:
    """A persistent device tensor, and the host array that is copied into it; on a CPU they are one."""

    def __init__(self, size: int, dtype: Any, device: Any) -> None:
        pinned = device.type == "cuda"
        # Two host arrays in turn: the copy of the step before may still be under way.
        hosts = [torch.zeros(size, dtype=dtype, pin_memory=pinned) for _ in range(2 if pinned else 1)]
        self.device = torch.zeros(size, dtype=dtype, device=device) if pinned else hosts[0]
        self._hosts = [(host, host.numpy()) for host in hosts]

    @property
    def host(self) -> Any:
        """The numpy array to fill now."""
        return self._hosts[0][1]

    def send(self, count: int) -> Any:
        """Copy the first `count` elements to the device, without waiting; return them there."""
        tensor = self._hosts[0][0]
        if tensor is not self.device:
            self.device[:count].copy_(tensor[:count], non_blocking=True)
            self._hosts.reverse()
        return self.device[:count]


class Inputs:
    """The persistent buffers, and how a step's rows get into them.

    Args:
        max_tokens: most tokens of a step.
        max_rows: most rows of a step.
        max_blocks: most blocks of one request.
        scratch: the block that padding rows use.
    """

    def __init__(
        self, *, max_tokens: int, max_rows: int, max_blocks: int, block_size: int, scratch: int, device: Any
    ) -> None:
        self.block_size = block_size
        self.max_blocks = max_blocks
        self.scratch = scratch
        self.token_ids = Buffer(max_tokens, torch.int64, device)
        self.positions = Buffer(max_tokens, torch.int64, device)
        self.slot_blocks = Buffer(max_tokens, torch.int64, device)
        self.slot_offsets = Buffer(max_tokens, torch.int64, device)
        self.query_starts = Buffer(max_rows + 1, torch.int32, device)
        self.kv_lens = Buffer(max_rows, torch.int32, device)
        self.table_starts = Buffer(max_rows + 1, torch.int32, device)
        self.table = Buffer(max_rows * max_blocks, torch.int32, device)
        self.real = Buffer(max_rows, torch.bool, device)
        self.sample_at = Buffer(max_rows, torch.int64, device)
        self._from = Buffer(max_rows, torch.int64, device)
        self._to = Buffer(max_rows, torch.int64, device)
        self._sent = [torch.cuda.Event() for _ in range(2)] if device.type == "cuda" else []
        """When the copies from each of the two sets of host arrays have ended: a step without samples is never
        waited for, so that nothing else tells."""

    def fill(self, rows: Sequence[BatchRow], previous: Any, step: int, pad_to: int = 0) -> Batch:
        """Lay out a step.

        Args:
            previous: the tokens sampled by the step before, on the device; None: there was none.
            step: number of the step before, as in `RunnerState.last`.
            pad_to: add rows of one token that write and read scratch, up to so many rows (only to decodes).
        """
        if self._sent:
            self._sent.reverse()
            self._sent[0].synchronize()
        ordered = sorted(rows, key=lambda row: row.num_tokens != 1)
        num_rows = max(len(ordered), pad_to)
        lengths = np.ones(num_rows, dtype=np.int64)
        starts = np.zeros(num_rows, dtype=np.int64)
        tables = []
        missing: list[tuple[int, int]] = []
        token_ids, at, num_decodes = self.token_ids.host, 0, num_rows - len(ordered)
        for index, row in enumerate(ordered):
            request, start, count = row.request, row.start, row.num_tokens
            lengths[index], starts[index] = count, start
            num_decodes += count == 1
            tokens = request.tokens
            end = start + count
            if end > len(tokens):
                missing.append((at + count - 1, self._sampled(request, step)))
                end = len(tokens)
            if count == 1:
                if end > start:
                    token_ids[at] = tokens[start]
            else:
                token_ids[at : at + end - start] = tokens[start:end]
            at += count
            tables.append(self._table_of(row))
        padding = num_rows - len(ordered)
        token_ids[at : at + padding] = 0
        tables.extend([np.full(1, self.scratch, dtype=np.int32)] * padding)
        batch = self._arrange(ordered, starts, lengths, tables, int(num_decodes))
        if pad_to > 0:
            self.real.host[: len(ordered)] = True
            self.real.host[len(ordered) : num_rows] = False
            batch.real = self.real.send(num_rows)
        if missing:
            self._patch(missing, previous)
        if self._sent:
            self._sent[0].record()
        return batch

    def _arrange(self, rows: list[BatchRow], starts: Any, lengths: Any, tables: list[Any], num_decodes: int) -> Batch:
        """Derive everything but token ids, and send it."""
        num_rows, num_tokens, size = len(lengths), int(lengths.sum()), self.block_size
        query_starts = self.query_starts.host[: num_rows + 1]
        query_starts[1:] = np.cumsum(lengths)
        kv_lens = self.kv_lens.host[:num_rows]
        kv_lens[:] = starts + lengths
        table_starts = self.table_starts.host[: num_rows + 1]
        table_starts[1:] = np.cumsum((kv_lens + size - 1) // size)
        num_entries = int(table_starts[-1])
        table = self.table.host[:num_entries]
        np.concatenate(tables, out=table)
        row_of = np.repeat(np.arange(num_rows), lengths)
        positions = self.positions.host[:num_tokens]
        positions[:] = np.arange(num_tokens) - query_starts[row_of] + starts[row_of]
        self.slot_blocks.host[:num_tokens] = table[table_starts[row_of] + positions // size]
        self.slot_offsets.host[:num_tokens] = positions % size
        sampling = [index for index, row in enumerate(rows) if row.samples]
        self.sample_at.host[: len(sampling)] = query_starts[1:][sampling] - 1
        return Batch(
            num_decodes=num_decodes,
            num_rows=num_rows,
            num_tokens=num_tokens,
            host_query_starts=query_starts,
            host_kv_lens=kv_lens,
            host_table_starts=table_starts,
            host_table=table,
            token_ids=self.token_ids.send(num_tokens),
            positions=self.positions.send(num_tokens),
            slot_blocks=self.slot_blocks.send(num_tokens),
            slot_offsets=self.slot_offsets.send(num_tokens),
            query_starts=self.query_starts.send(num_rows + 1),
            kv_lens=self.kv_lens.send(num_rows),
            table_starts=self.table_starts.send(num_rows + 1),
            table=self.table.send(num_entries),
            sample_at=self.sample_at.send(len(sampling)),
            rows=rows,
            sampling=[rows[index] for index in sampling],
        )

    def _table_of(self, row: BatchRow) -> Any:
        """Return the blocks of a row's tokens, known and new, as int32."""
        request = row.request
        state = state_of(request, self.max_blocks)
        if state.num_preemptions != request.num_preemptions:
            state.num_blocks, state.num_preemptions = 0, request.num_preemptions
        needed = -(-(row.start + row.num_tokens) // self.block_size)
        if needed > state.num_blocks:
            state.table[state.num_blocks : needed] = row.blocks[state.num_blocks : needed]
            state.num_blocks = needed
        return state.table[:needed]

    def _sampled(self, request: EngineRequest, step: int) -> int:
        """Where in the tokens of the step before this request's is."""
        last = state_of(request, self.max_blocks).last
        if last.step != step:
            raise AssertionError(f"{request.id}: its last token is neither known nor sampled by the step in flight")
        return last.at

    def _patch(self, missing: list[tuple[int, int]], previous: Any) -> None:
        """Take tokens that the host does not know yet from the step before, on the device."""
        count = len(missing)
        self._to.host[:count], self._from.host[:count] = zip(*missing, strict=True)
        to, source = self._to.send(count), self._from.send(count)
        self.token_ids.device.index_copy_(0, to, previous.to(torch.int64).index_select(0, source))


def state_of(request: EngineRequest, max_blocks: int) -> RunnerState:
    """Return what the runner keeps for a request."""
    state = request.runner_state
    if not isinstance(state, RunnerState):
        state = RunnerState(np.zeros(max_blocks, dtype=np.int32), num_preemptions=request.num_preemptions)
        request.runner_state = state
    return state
