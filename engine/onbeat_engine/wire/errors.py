"""The errors of the engine; all are `OnbeatError`.

OnbeatError
├── ModelError              weights, a configuration or a tokenizer that cannot be used
├── BadRequest              a request that can never be served as it is: the caller's mistake (HTTP 400)
├── TryLater                a request that is refused now and may be sent again (HTTP 503)
└── EngineDead              the engine, or the rank that a request was on, has ended (HTTP 500)
"""

from onbeat_spec.errors import OnbeatError, RequestRefused


class ModelError(OnbeatError):
    """Weights, a model configuration or a tokenizer that cannot be used."""


class BadRequest(RequestRefused):
    """A request that can never be served as it is. Nothing of it is kept (cases B97, B100)."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        """The field at fault, by its name in the request."""


class TryLater(RequestRefused):
    """A request that is refused now, and may be sent again later or elsewhere (case B107)."""


class EngineDead(OnbeatError):
    """The engine, or the rank that a request was on, has ended."""
