"""What the server is configured by, beside the engine's own configuration."""

from dataclasses import dataclass

from onbeat_engine.wire.config import LONGEST_TIMEOUT
from onbeat_spec.config import require


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Address, names, keys and limits. All times are seconds.

    Raises:
        ConfigError: a value is out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    """Any of these opens everything but health, metrics and version; none: no key is asked for."""
    served_model_names: tuple[str, ...] = ("model",)
    """Names that requests may call the model by; answers carry the first."""
    max_in_flight: int = 2048
    """Most completions at once, each choice of each prompt counted; more are refused with 503."""
    max_body_size: int = 4 << 20
    """Most bytes of a request's body."""
    drain_timeout: float = 10.0
    """At shutdown: how long what runs may go on before it is aborted."""
    progress_timeout: float = 60.0
    """Without a token for so long while work is unfinished, the server is not ready any more."""
    client_timeout: float = 60.0
    """A client that takes nothing of what it is sent for so long has its connection, and its request, ended; so has
    one whose request does not come within it."""
    log_level: str = "info"

    def __post_init__(self) -> None:
        require(self, 0 <= self.port < 1 << 16, "port", "between 0 and 65535")
        require(self, all(self.api_keys), "api_keys", "without an empty one")
        require(self, bool(self.served_model_names) and all(self.served_model_names), "served_model_names", "not empty")
        for name in ("max_in_flight", "max_body_size"):
            require(self, getattr(self, name) >= 1, name, "at least 1")
        require(self, self.drain_timeout >= 0, "drain_timeout", "0 or more")
        require(self, self.progress_timeout > 0, "progress_timeout", "above 0")
        in_time = 0 < self.client_timeout <= LONGEST_TIMEOUT
        require(self, in_time, "client_timeout", f"above 0 and at most {LONGEST_TIMEOUT}")
