"""What callers use of a scheduler: the interface of the reference, for anybody's class that is driven in its place."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from onbeat_reference.lifecycle import Outputs, PauseMode
from onbeat_reference.request import Request
from onbeat_spec.config import Config
from onbeat_spec.records import Step


class KVPool(Protocol):
    """What is read of a scheduler's KV block pool; counts are blocks."""

    @property
    def free(self) -> int: ...
    @property
    def promised(self) -> int: ...

    def held(self, requests: Sequence[Request], /) -> int:
        """Count the distinct blocks that these requests hold."""


class ScheduledStep(Protocol):
    """What is read of a step whose outputs have not come back."""

    @property
    def step(self) -> Step: ...
    @property
    def loads(self) -> Mapping[Request, int]: ...


class Steppable(Protocol):
    """The least that makes a class a scheduler; `onbeat_reference.Scheduler` says what the methods do."""

    def add_request(self, request: Request, /) -> object: ...
    def abort(self, request: Request, /) -> object: ...
    def schedule(self, throttle_prefills: bool = False, /) -> Step: ...
    def update(
        self, step: Step, sampled: Mapping[str, Sequence[int]], drafts: Mapping[str, int] | None = None, /
    ) -> Outputs: ...


class Observable(Protocol):
    """What of a scheduler `observe` turns into a value, and what more is looked at between two calls."""

    running: list[Request]
    waiting: list[Request]
    parked: list[Request]
    orphans: list[Request]
    num_steps: int

    @property
    def pool(self) -> KVPool: ...
    @property
    def requests(self) -> Mapping[str, Request]: ...
    @property
    def in_flight(self) -> Sequence[ScheduledStep]: ...
    @property
    def saturated(self) -> bool: ...
    @property
    def paused(self) -> PauseMode | None: ...


class Schedulable(Steppable, Observable, Protocol):
    """A scheduler that can be driven through everything that happens to it."""

    config: Config

    def load_finished(self, request: Request, /) -> object: ...
    def load_failed(self, request: Request, from_block: int, /) -> object: ...
    def pause(self, mode: PauseMode, /) -> object: ...
    def resume(self) -> object: ...
    def reset_prefix_cache(self) -> object: ...
    def has_unfinished_requests(self) -> bool: ...
