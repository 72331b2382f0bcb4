"""One rank's configuration. Names and defaults are those of the scenario format."""

from dataclasses import dataclass, fields
from typing import Literal

from onbeat_spec.errors import ConfigError


def require(config: object, holds: bool, name: str, rule: str) -> None:
    """See that a configuration keeps a rule.

    Args:
        config: a configuration; its field `name` is shown in the message.
        holds: whether the rule is kept.
        name: the field that it is about.
        rule: what the value must be, in words.

    Raises:
        ConfigError: it does not hold.
    """
    if not holds:
        raise ConfigError(f"{name} is {getattr(config, name)!r}; it must be {rule}")


@dataclass(frozen=True, slots=True)
class Config:
    """What a scheduler is built from. Token counts are tokens, block counts are KV blocks.

    Raises:
        ConfigError: a value is out of range, or two values exclude each other.
    """

    policy: str = "onbeat"
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    block_size: int = 16
    num_blocks: int = 10_000
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_model_len: int = 131_072
    enable_prefix_caching: bool = False
    long_prefill_token_threshold: int = 0
    """Most prefill tokens of one request in one step; 0 = no cap."""
    num_draft_tokens: int = 0
    async_depth: Literal[1, 2] = 1
    """Steps that may be in flight at once: 2 schedules one step ahead of the outputs."""
    prefill_schedule_interval: int = 1
    data_parallel_size: int = 1
    remote_load_timeout: int = 0
    """Steps after which a remote KV load counts as failed; 0 = never."""
    max_hold_steps: int = 64
    """No hold lasts longer than this many steps in a row, whatever the flag says (case B08)."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            require(self, getattr(self, name) >= 1, name, "at least 1")
        for name in _AT_LEAST_ZERO:
            require(self, getattr(self, name) >= 0, name, "0 or more")
        require(self, self.scheduling in ("fcfs", "priority"), "scheduling", "'fcfs' or 'priority'")
        require(self, self.async_depth in (1, 2), "async_depth", "1 or 2")
        require(
            self,
            self.prefill_schedule_interval <= self.max_hold_steps + 1,
            "prefill_schedule_interval",
            f"at most max_hold_steps + 1 = {self.max_hold_steps + 1}, or the hard bound would cut every hold short",
        )

    @property
    def prefill_cap(self) -> int:
        """Most prefill tokens of one request in one step."""
        return self.long_prefill_token_threshold or self.max_num_batched_tokens

    @property
    def capacity(self) -> int:
        """Tokens whose KV the whole pool can hold."""
        return self.num_blocks * self.block_size

    @property
    def longest_request(self) -> int:
        """Most tokens that a request may ever know; a prompt is shorter, since a request samples (B44).

        The last token needs no KV, hence one more than the pool can hold.
        """
        return min(self.max_model_len, self.capacity + 1)

    def fits(self, num_prompt: int) -> bool:
        """Whether a prompt of so many tokens can ever be served; one that cannot is refused when it comes (B44)."""
        return num_prompt < self.longest_request


_AT_LEAST_ONE = (
    "block_size",
    "num_blocks",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "prefill_schedule_interval",
    "data_parallel_size",
    "max_hold_steps",
)
_AT_LEAST_ZERO = ("long_prefill_token_threshold", "num_draft_tokens", "remote_load_timeout")
CONFIG_KEYS = tuple(f.name for f in fields(Config))
