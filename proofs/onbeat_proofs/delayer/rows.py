"""What a rank brings to a pass, and all that it can bring."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, NamedTuple

from onbeat_spec.errors import ConfigError

FINE = 25_000
"""Most passes (rows of all ranks together) from one state with every count; beyond, few counts are left."""


class Row(NamedTuple):
    """What one rank knows when it decides about a pass.

    Attributes:
        prefillable: a prefill waits that could run in this pass.
        running: decodes that could run in this pass.
        prefill_bs: the rank's estimate of its largest prefill batch, in requests.
        waiting: requests in the waiting queue.
        low_usage: fewer KV tokens are in use than the watermark says.
        late: `max_delay_ms` went by since this rank's last pass.
    """

    prefillable: bool = False
    running: int = 0
    prefill_bs: int = 0
    waiting: int = 0
    low_usage: bool = False
    late: bool = False


IDLE = Row()
"""A rank that has nothing to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The group and the numbers that a delayer is made with, named as SGLang's server arguments name them.

    Attributes:
        ranks: data-parallel ranks.
        max_delay_passes: the stated bound: no rank's prefill is refused in more passes in a row.
        token_usage_low_watermark: share of the KV tokens, 0 to 1, below which nobody waits; None: no such rule.
        queue_min_ratio: wait for a queue of this many times the running requests; None: no such rule.
        max_delay_ms: milliseconds after which the queue rule gives up.
        max_running_requests: slots of a rank.
        prefill_decode_interval: passes of decodes only after a prefill, for SGLang's other rule; None: its delayer.
        enable_prefill_delayer: the delayer as well.
        prefill_decode_interval_min_bs: running requests of a rank below which that rule does not apply.

    Raises:
        ConfigError: a number is out of its range.
    """

    ranks: int = 2
    max_delay_passes: int = 3
    token_usage_low_watermark: float | None = None
    queue_min_ratio: float | None = None
    max_delay_ms: float = 5000.0
    max_running_requests: int = 2
    prefill_decode_interval: int | None = None
    prefill_decode_interval_min_bs: int = 0
    enable_prefill_delayer: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("ranks", 1, 4),
            ("max_delay_passes", 1, 1000),
            ("max_delay_ms", 1e-3, 1e9),
            ("max_running_requests", 1, 16),
            ("token_usage_low_watermark", 1e-6, 1.0),
            ("queue_min_ratio", 1e-6, 1e6),
            ("prefill_decode_interval", 1, 1000),
            ("prefill_decode_interval_min_bs", 0, 16),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} is {value}; it must be from {low:g} to {high:g}")

    @property
    def bound(self) -> int:
        """The stated bound on refusals in a row, in passes."""
        if self.prefill_decode_interval is None:
            return self.max_delay_passes
        return self.prefill_decode_interval + (self.max_delay_passes if self.enable_prefill_delayer else 0)

    def as_json(self) -> dict[str, Any]:
        """Return the numbers by name."""
        return asdict(self)


def alphabet(settings: Settings) -> list[Row]:
    """Return all rows that a rank can bring.

    Counts go through every value up to the slots of a rank, as long as a pass has at most `FINE` combinations of rows.
    Beyond, only those are left that make a rule apply or not: no decode, one, and every slot taken; batch estimates
    that then do not fit, or just fit. What a setting switches off is not varied: without a watermark nobody looks at
    the usage, without a queue ratio nobody looks at queues and clocks.
    """
    slots = settings.max_running_requests
    every = range(slots + 1)
    full = _rows(settings, every, every, every)
    if len(full) ** settings.ranks <= FINE:
        return full
    if settings.queue_min_ratio is None:
        return _rows(settings, {0, slots}, {0, slots}, {1})
    return _rows(settings, {0, 1, slots}, {slots - 1, slots}, {1, slots - 1})


def _rows(settings: Settings, running: Iterable[int], sizes: Iterable[int], queues: Iterable[int]) -> list[Row]:
    queue = settings.queue_min_ratio is not None
    late = (False, True) if queue else (False,)
    usage = (False, True) if settings.token_usage_low_watermark is not None else (False,)
    waiting = sorted({1, *queues} - {0}) if queue else [1]
    counts = sorted(running)
    idle = [Row(running=n, low_usage=low, late=past) for n, low, past in product(counts, usage, late)]
    busy = [
        Row(True, n, size, queued, low, past)
        for n, size, queued, low, past in product(counts, sorted(sizes), waiting, usage, late)
    ]
    return idle + busy
