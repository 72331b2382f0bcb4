"""A request as the reference scheduler keeps it: the scheduling facts, its tokens, its blocks."""

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Literal

from onbeat_spec import records


class FinishReason(Enum):
    """Why a request ended; the values are OpenAI's, and `error` for one that could not go on."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Request(records.Request):
    """One request. The caller builds it; from `add_request` on the scheduler owns it.

    Args:
        id: unique among live requests.
        prompt: token ids, at least one.
        max_tokens: most tokens to sample, at least one.
        priority: smaller is served first (priority scheduling only).
        stop_token_ids: sampling one of these ends the request; the token is delivered.
        remote_tokens: leading prompt tokens whose KV a remote store offers.
        remote_mode: `async` loads before the request runs, `sync` within the step that admits it.
        cache_salt: keeps its prefix cache entries apart from those of other salts.
    """

    __slots__ = ("blocks", "cache_salt", "finish_reason", "hashes", "hits", "max_tokens", "stop_token_ids", "tokens")

    def __init__(
        self,
        id: str,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        priority: int = 0,
        stop_token_ids: Collection[int] = (),
        remote_tokens: int = 0,
        remote_mode: Literal["async", "sync"] = "async",
        cache_salt: str = "",
    ) -> None:
        super().__init__(id, len(prompt), len(prompt) + max_tokens, priority=priority, remote_tokens=remote_tokens)
        self.sync_load = remote_mode == "sync"
        self.tokens = list(prompt)
        """Known tokens: prompt, then what was delivered."""
        self.max_tokens = max_tokens
        self.stop_token_ids = frozenset(stop_token_ids)
        self.cache_salt = cache_salt
        self.blocks: list[int] = []
        """Block table: KV block ids in token order."""
        self.hashes: list[bytes] = []
        """Chain hash of each full block of known tokens, as far as anybody asked."""
        self.hits: list[int] = []
        """Cached blocks found by the latest look-up."""
        self.finish_reason: FinishReason | None = None
