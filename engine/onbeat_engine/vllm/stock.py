"""What the schedulers rely on of vLLM's own: the whole surface between the two, by name."""

from typing import TYPE_CHECKING, Any

Vllm = Any
"""An object of vLLM's: a request, a scheduler output, a queue."""

OVERRIDDEN = (
    "schedule",
    "update_from_output",
    "add_request",
    "reset_prefix_cache",
    "_ec_transfer_pending",
    "_get_local_prefix_cache_hit",
    "_handle_blocked_waiting_request",
    "_holds_kv_blocks",
    "_make_cached_request_data",
    "_update_waiting_for_remote_kv",
)
"""Methods that ours override."""

if TYPE_CHECKING:

    class Stock:
        """vLLM's `Scheduler`, as far as ours build on it."""

        scheduler_config: Vllm
        parallel_config: Vllm
        requests: dict[str, Vllm]
        running: list[Vllm]
        waiting: Vllm
        kv_holding_waiting: Vllm
        deferred_waiting: set[Vllm]
        reset_preempted_req_ids: set[str]
        max_model_len: int
        current_step: int
        prefill_capacity_bound: bool
        prefix_replay_tokens: int
        local_prefill_interval: int
        _pause_state: Vllm

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def schedule(self, throttle_prefills: bool = False) -> Vllm: ...
        def update_from_output(self, scheduler_output: Vllm, model_runner_output: Vllm) -> Vllm: ...
        def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Vllm: ...
        def add_request(self, request: Vllm) -> None: ...
        def _ec_transfer_pending(self, request: Vllm, num_computed_tokens: int) -> bool: ...
        def _get_local_prefix_cache_hit(self, request: Vllm, *limits: Any) -> Vllm: ...
        def _handle_blocked_waiting_request(self, request: Vllm) -> bool: ...
        @staticmethod
        def _holds_kv_blocks(request: Vllm) -> bool: ...
        def _make_cached_request_data(
            self, running: Vllm, resumed: Vllm, num_scheduled_tokens: dict[str, int], *rest: Any
        ) -> Vllm: ...
        def _update_waiting_for_remote_kv(self, request: Vllm) -> None: ...

else:
    Stock = object
