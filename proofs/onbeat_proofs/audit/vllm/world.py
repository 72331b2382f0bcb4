"""A real scheduler with requests coming, steps, and outputs going back. Pasted into test files after `harness`."""

from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from onbeat_proofs.audit.vllm.harness import Store, make_request, report_load, runner_output

STOP = 1 << 40
"""Token ids from here on end the request that they are for."""


class World:
    """Drives one scheduler; `depth` 1 hands the outputs of each step back at once."""

    def __init__(self, scheduler: Any, depth: int = 1) -> None:
        self.scheduler = scheduler
        self.depth = depth
        self.flights: list[tuple[Any, dict[str, list[int]]]] = []
        self.stopping: dict[str, int] = {}
        self.count = 0
        self.got: dict[str, int] = {}
        """Tokens of the latest step."""

    @property
    def live(self) -> set[str]:
        """Requests that have not ended."""
        return set(self.scheduler.requests)

    @property
    def flag(self) -> bool:
        """The saturation flag."""
        return bool(self.scheduler.prefill_capacity_bound)

    def add(
        self,
        id: str,
        prompt: int,
        max_tokens: int,
        *,
        priority: int = 0,
        prefix: tuple[str, int] = ("", 0),
        remote: tuple[int, str] = (0, "async"),
    ) -> None:
        """A request comes; its first `prefix[1]` tokens are those of a common text, `remote` is what the store has."""
        self.count += 1
        own, text = self.count << 20, sum(map(ord, prefix[0])) << 50
        tokens = [text + place if place < prefix[1] else own + place for place in range(prompt)]
        connector = self.scheduler.connector
        if remote[0] and isinstance(connector, Store):
            connector.offers[id] = remote[0], remote[1] == "async"
        caching = self.scheduler.cache_config.enable_prefix_caching
        self.scheduler.add_request(
            make_request(
                id,
                tokens,
                min(max_tokens, self.scheduler.max_model_len - prompt),
                arrival=self.count,
                priority=priority,
                stop=[STOP + self.count],
                block_size=self.scheduler.block_size if caching else 0,
            )
        )
        self.stopping[id] = 0

    def step(self, throttle: bool, budget: int | None = None) -> dict[str, int]:
        """One step, its flag passed by position as the engine does; return the tokens that it scheduled."""
        usual = self.scheduler.max_num_scheduled_tokens
        if budget is not None:
            self.scheduler.max_num_scheduled_tokens = min(usual, budget)
        try:
            output = self.scheduler.schedule(throttle)
        finally:
            self.scheduler.max_num_scheduled_tokens = usual
        sampled: dict[str, list[int]] = {}
        for id in output.num_scheduled_tokens:
            request = self.scheduler.requests[id]
            sampled[id] = [] if request.is_prefill_chunk else [request.num_tokens]
        self.flights.append((output, sampled))
        if self.depth == 1:
            self.deliver()
        self.got = dict(output.num_scheduled_tokens)
        return self.got

    def deliver(self, count: int = 1) -> None:
        """The outputs of the oldest steps come back."""
        for _ in range(count):
            output, sampled = self.flights.pop(0)
            for id, tokens in sampled.items():
                if tokens and self.stopping.get(id):
                    tokens[0] = self.stopping[id]
            self.scheduler.update_from_output(output, runner_output(sampled))

    def stop(self, id: str) -> None:
        """The next token of a request ends it."""
        self.stopping[id] = next(iter(self.scheduler.requests[id].sampling_params.stop_token_ids))

    def abort(self, id: str) -> None:
        """The client goes away."""
        self.scheduler.finish_requests(id, RequestStatus.FINISHED_ABORTED)

    def remote_done(self, id: str) -> None:
        """A load has landed."""
        report_load(self.scheduler, id)

    def remote_failed(self, id: str, from_block: int) -> None:
        """A load ended, and brought nothing valid from this block on."""
        report_load(self.scheduler, id, self.scheduler.kv_cache_manager.get_block_ids(id)[0][from_block:])

    def pause(self, mode: str) -> None:
        """Admission (`new`) or everything (`all`) stops."""
        self.scheduler.set_pause_state(PauseState[f"PAUSED_{mode.upper()}"])

    def resume(self) -> None:
        """The pause ends."""
        self.scheduler.set_pause_state(PauseState.UNPAUSED)

    def reset_prefix_cache(self) -> None:
        """Everything cached is forgotten, and what runs is preempted."""
        self.scheduler.reset_prefix_cache(reset_running_requests=True)
