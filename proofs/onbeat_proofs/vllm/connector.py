"""A KV connector in vLLM's interface: the remote store of a test. Imported by vLLM, by name.

It offers what it was told to offer, once for each request, and moves nothing.
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


class Store(KVConnectorBase_V1):  # type: ignore[misc]  # vLLM has no types here: it is not installed where this is checked
    """The store, as the scheduler sees it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.offers: dict[str, tuple[int, bool]] = {}
        """For each request, leading tokens that the store has, and whether they are loaded ahead of its first step."""
        self.taken: dict[str, int] = {}
        """Leading tokens that a load gives, or gave, to each request in its present allocation."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return the tokens beyond those computed, and whether they are loaded asynchronously."""
        tokens, ahead = self.offers.get(request.request_id, (0, False))
        if not ahead:
            tokens = min(tokens, request.num_tokens - 1)
        more = tokens - num_computed_tokens
        return (more, ahead) if more > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: object, num_external_tokens: int) -> None:
        """A load starts: the offer is used up."""
        offer = self.offers.pop(request.request_id, None)
        if num_external_tokens > 0 and offer is not None:
            self.taken[request.request_id] = offer[0] if offer[1] else min(offer[0], request.num_tokens - 1)

    def build_connector_meta(self, scheduler_output: object) -> Any:
        """Nothing is to be told to workers."""
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: object) -> tuple[bool, None]:
        """Blocks may go at once."""
        self.offers.pop(request.request_id, None)
        self.taken.pop(request.request_id, None)
        return False, None

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: object, attn_metadata: object, **kwargs: object) -> None: ...

    def wait_for_save(self) -> None: ...
