"""A KV connector whose remote store has what a request's parameters say. Importing it imports vLLM."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA


class Store(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # vLLM is not type-checked: its classes are Any
    """Offers `tokens` once per request, to be loaded within the step or, with `landing`, beforehand."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.taken: set[str] = set()
        self.looked_up: list[str] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        self.looked_up.append(request.request_id)
        offer = request.kv_transfer_params
        if not offer or request.request_id in self.taken:
            return 0, False
        most = request.num_tokens - (0 if offer["landing"] else 1)
        more = max(0, min(offer["tokens"], most) - num_computed_tokens)
        return more, bool(more and offer["landing"])

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self.taken.add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    request_finished_all_groups = request_finished

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...
