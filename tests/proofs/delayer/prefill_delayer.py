"""Stands for SGLang's file: the names, imports and calls of its interface, around a rule of our own."""

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found]  # the loader gives it a stand-in, and there need be none
from sglang.srt.runtime_context import get_parallel, get_schedule  # type: ignore[import-not-found]  # as torch


@dataclass(frozen=True)
class _State:
    delayed_count: int
    start_time: float


class Output(NamedTuple):
    next_state: _State | None
    output_allow: bool


class PrefillDelayer:
    def __init__(self, max_delay_passes: int, token_usage_low_watermark: float | None) -> None:
        self._max_delay_passes = max_delay_passes
        self._watermark = token_usage_low_watermark
        self._limit = get_schedule().prefill_delayer_max_delay_ms / 1000.0
        self._global_info_buffer = torch.empty((get_parallel().num_dp_ranks, 1, 6), dtype=torch.int64)
        self._curr_state: _State | None = None
        self.skip_first_delayer = False

    def _gather_info(self, **row: Any) -> Any:
        raise AssertionError("ranks exchange rows by what the audit puts here")

    def _negotiate_should_allow_prefill_pure(  # noqa: PLR0917  # SGLang's signature
        self,
        prev_state: _State | None,
        local_prefillable: bool,
        token_usage: float,
        running_batch: int = 0,
        max_prefill_bs: int = 0,
        max_running_requests: int = 0,
    ) -> Output:
        late = prev_state is not None and time.perf_counter() - prev_state.start_time >= self._limit
        table = self._gather_info(
            local_prefillable=local_prefillable,
            local_token_watermark_force_allow=self._watermark is not None and token_usage < self._watermark,
            running_batch=running_batch,
            max_prefill_bs=max_prefill_bs,
            queue_timeout_expired=late,
        )
        count = 0 if prev_state is None else prev_state.delayed_count
        # WAIT
        wait = table[:, 0].max().item() > 0 and int(table[:, 2].max().item()) > 0
        if not wait or count >= self._max_delay_passes:
            return Output(None, True)
        start = time.perf_counter() if prev_state is None else prev_state.start_time
        return Output(_State(count + 1, start), False)


class PrefillDelayerSinglePassExecutor:
    def __init__(self, prefill_delayer: PrefillDelayer, token_usage: float) -> None:
        self._delayer = prefill_delayer
        self._usage = token_usage
        self._result: Output | None = None

    @property
    def _called(self) -> bool:
        return self._result is not None

    def negotiate_should_allow_prefill(self, local_prefillable: bool, **given: int) -> bool:
        self._result = self._delayer._negotiate_should_allow_prefill_pure(
            self._delayer._curr_state, local_prefillable=local_prefillable, token_usage=self._usage, **given
        )
        self._delayer._curr_state = self._result.next_state
        return self._result.output_allow

    def finalize(self, *, actual_prefill: bool) -> None:
        if not self._called:
            self.negotiate_should_allow_prefill(local_prefillable=False)
