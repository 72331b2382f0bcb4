"""Stand-ins with the attributes of vLLM's requests, and a stock scheduler small enough to be read at a glance."""

from types import SimpleNamespace
from typing import Any

from onbeat_engine.vllm.cadenced import Cadenced


def request(id: str = "a", *, tokens: int = 8, computed: int = 0, prompt: int | None = None, **changes: Any) -> Any:
    """A request as vLLM has it: `tokens` known of which `computed` have their KV."""
    facts = {
        "request_id": id,
        "num_tokens": tokens,
        "num_prompt_tokens": tokens if prompt is None else prompt,
        "num_computed_tokens": computed,
        "num_output_placeholders": 0,
        "max_tokens": 16,
        "next_decode_eligible_step": 0,
        "status": SimpleNamespace(name="RUNNING"),
    }
    return Named(**{**facts, **changes})


class Named:
    """Attributes by name; equal to itself only, as vLLM's requests are."""

    def __init__(self, **facts: Any) -> None:
        self.__dict__.update(facts)


def decode(id: str = "d", **changes: Any) -> Any:
    """A running request with one token of work."""
    return request(id, tokens=9, computed=8, prompt=8, **changes)


def chunk(id: str = "c", **changes: Any) -> Any:
    """A running request with half its prompt left."""
    return request(id, tokens=8, computed=4, **changes)


class FakeStock:
    """Gives every eligible running request its work, then every waiting one that may be looked at; no limits."""

    def __init__(self, *, interval: int = 1, ranks: int = 1) -> None:
        self.scheduler_config = SimpleNamespace(prefill_schedule_interval=interval)
        self.parallel_config = SimpleNamespace(data_parallel_size=ranks)
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.kv_holding_waiting: list[Any] = []
        self.deferred_waiting: set[Any] = set()
        self.reset_preempted_req_ids: set[str] = set()
        self.finished_recving_kv_req_ids: set[str] = set()
        self.max_model_len = 64
        self.current_step = 0
        self.prefill_capacity_bound = False
        self.prefix_replay_tokens = 0
        self._pause_state = SimpleNamespace(name="UNPAUSED")
        self.hits: dict[str, int] = {}
        self.offers: dict[str, int] = {}
        self.stuck: set[str] = set()
        """Running requests that find no memory, and evict themselves."""
        self.in_transit: set[str] = set()
        """Waiting requests of which an encoder input is still on its way."""
        self.flags: list[bool] = []

    def put(self, *requests: Any, where: str) -> None:
        for each in requests:
            self.requests[each.request_id] = each
            getattr(self, where).append(each)
            each.status = SimpleNamespace(name="RUNNING" if where == "running" else "WAITING")

    def schedule(self, throttle_prefills: bool = False) -> Any:
        self.flags.append(throttle_prefills)
        self.current_step += 1
        given: dict[str, int] = {}
        preempted = False
        for each in list(self.running):
            if self.current_step < each.next_decode_eligible_step:
                continue
            if each.request_id in self.stuck:
                preempted = True
                self.running.remove(each)
                self.waiting.insert(0, each)
                each.status, each.num_computed_tokens = SimpleNamespace(name="PREEMPTED"), 0
                self.reset_preempted_req_ids.add(each.request_id)
                continue
            given[each.request_id] = each.num_tokens + each.num_output_placeholders - each.num_computed_tokens
        if not preempted:
            self._scan(given)
        self.prefill_capacity_bound = bool(self.waiting)
        before = {id: self.requests[id].num_computed_tokens for id in given}
        cached = self._make_cached_request_data([], [], given, {}, {})
        output = SimpleNamespace(
            num_scheduled_tokens=given,
            total_num_scheduled_tokens=sum(given.values()),
            scheduled_new_reqs=[],
            scheduled_cached_reqs=cached,
            preempted_req_ids=self.reset_preempted_req_ids,
        )
        cached.req_ids, cached.num_computed_tokens = list(given), [before[id] for id in given]
        cached.num_output_tokens = [self.requests[id].num_tokens - self.requests[id].num_prompt_tokens for id in given]
        self.reset_preempted_req_ids = set()
        for id, tokens in given.items():
            self.requests[id].num_computed_tokens += tokens
        return output

    def _scan(self, given: dict[str, int]) -> None:
        for queue in (self.kv_holding_waiting, self.waiting):
            for each in list(queue):
                if not self._handle_blocked_waiting_request(each):
                    self.deferred_waiting.add(each)
                    continue
                at_hand = each.num_computed_tokens
                if at_hand == 0:
                    at_hand = self._get_local_prefix_cache_hit(each)[1] + self.offers.get(each.request_id, 0)
                if self._ec_transfer_pending(each, at_hand):
                    self.deferred_waiting.add(each)
                    continue
                queue.remove(each)
                self.running.append(each)
                self.deferred_waiting.discard(each)
                each.status, each.num_computed_tokens = SimpleNamespace(name="RUNNING"), at_hand
                given[each.request_id] = each.num_tokens - at_hand

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        return True

    @staticmethod
    def _holds_kv_blocks(request: Any) -> bool:
        return bool(request.num_computed_tokens > 0)

    def _update_waiting_for_remote_kv(self, request: Any) -> None: ...

    def _get_local_prefix_cache_hit(self, request: Any, *limits: Any) -> Any:
        return None, self.hits.get(request.request_id, 0), 0, False

    def _ec_transfer_pending(self, request: Any, num_computed_tokens: int) -> bool:
        return request.request_id in self.in_transit

    def _make_cached_request_data(self, *parts: Any) -> Any:
        return SimpleNamespace()

    def add_request(self, request: Any) -> None:
        self.put(request, where="waiting")

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        return model_runner_output


class Fake(Cadenced, FakeStock):
    """The policy around the stand-in."""
