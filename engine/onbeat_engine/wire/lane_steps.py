"""What a lane is drawn from: one small record for each step of each rank, from a trace or from a live rank."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from onbeat_spec.policy import is_decode
from onbeat_spec.records import LockStep, Step

Kind = Literal["prefill", "decode", "mixed", "dummy", "exchange", "empty"]
"""`dummy`: a forward without tokens of its own; `exchange`: the ranks agreed on whether to go on; `empty`: a step of a
rank on its own that scheduled nothing."""
KINDS: tuple[Kind, ...] = get_args(Kind)

Why = Literal["saturated", "nothing to decode", "hold lifted", "remote KV", "not throttled"]
WHYS: dict[Why, str] = {
    "saturated": "the rank was saturated, which switches the throttle off",
    "nothing to decode": "the rank itself had nothing to decode; others may have waited for it",
    "hold lifted": "the hold would have left the step empty",
    "remote KV": "the request's KV came from a remote store, which passes the hold",
    "not throttled": "nobody asked the rank to hold prefills",
}


class LaneStep(NamedTuple):
    """One step of one rank."""

    rank: int
    number: int
    """Of the lock step; of a rank on its own, of its step."""
    kind: Kind
    beat: bool = True
    """Prefills may begin in it."""
    prefill_tokens: int = 0
    decode_tokens: int = 0
    requests: int = 0
    """That got tokens."""
    held: int = 0
    """Requests that the throttle passed over."""
    why: Why | Literal[""] = ""
    """Why it carries prefill although it is off the beat; a key of `WHYS`."""
    start: float = 0.0
    """Seconds; the same clock for all ranks."""
    duration: float | None = None
    """Seconds from being scheduled, or from the outputs of the step before if those came later, to its outputs; None:
    not known."""

    @property
    def prefills(self) -> bool:
        """It computes more than one token of some prompt."""
        return self.kind in ("prefill", "mixed")

    @property
    def shown(self) -> str:
        """The kind as drawn: a step without prefill that held some back is `held`."""
        return "held" if self.held and not self.prefills else self.kind


def lane_step(
    step: Step,
    lock: LockStep | None,
    rank: int,
    *,
    saturated: bool,
    start: float = 0.0,
    duration: float | None = None,
) -> LaneStep:
    """Make the record of a step that was scheduled.

    Args:
        step: what `schedule()` returned.
        lock: the lock step that it was; None for a rank on its own.
        rank: whose step it is.
        saturated: the rank's flag before the step; a saturated rank holds nothing back.
        start: seconds.
        duration: seconds, if it has ended.
    """
    prefill = sum(n for id, n in step.scheduled.items() if not is_decode(n - step.drafts.get(id, 0)))
    decode = sum(step.scheduled.values()) - prefill
    kind: Kind
    if not step.scheduled:
        kind = "empty" if lock is None else "dummy"
    elif not step.prefill:
        kind, prefill, decode = "decode", 0, prefill + decode
    else:
        if not prefill:  # a chunk of one token, which the budget cut off
            prefill, decode = 1, decode - 1
        kind = "mixed" if decode else "prefill"
    phase = None if lock is None else lock.phase
    beat = not step.throttle if phase is None else phase == 0
    return LaneStep(
        rank=rank,
        number=step.index if lock is None else lock.number,
        kind=kind,
        beat=beat,
        prefill_tokens=prefill,
        decode_tokens=decode,
        requests=len(step.scheduled),
        held=len(step.held),
        why=_why(step, saturated) if step.prefill and not beat else "",
        start=start,
        duration=duration,
    )


def _why(step: Step, saturated: bool) -> Why:
    """Say why prefill was let in off the beat."""
    if step.lifted:
        return "hold lifted"
    if step.hold:
        return "remote KV"
    if not step.throttle:
        return "not throttled"
    return "saturated" if saturated else "nothing to decode"


def idle_step(lock: LockStep, rank: int, *, start: float = 0.0, duration: float | None = None) -> LaneStep:
    """Make the record of a lock step in which a rank took part without scheduling anything."""
    kind: Kind = "exchange" if lock.collectives is not None and "forward" not in lock.collectives else "dummy"
    return LaneStep(rank, lock.number, kind, lock.phase == 0, start=start, duration=duration)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The steps of all ranks, by rank, each rank's in order of their numbers."""

    steps: Mapping[int, tuple[LaneStep, ...]]
    interval: int = 1
    """`prefill_schedule_interval`."""
    lock_step: bool = True
    """Columns are lock steps of a group; otherwise each rank's own steps."""
    notes: tuple[str, ...] = ()
    """What a reader should know about where they come from."""

    def window(self, first: int | None = None, last: int | None = None) -> "Lanes":
        """Return the steps numbered from `first` to `last`, both included."""
        low = float("-inf") if first is None else first
        high = float("inf") if last is None else last
        kept = {rank: tuple(s for s in steps if low <= s.number <= high) for rank, steps in self.steps.items()}
        return Lanes(kept, self.interval, self.lock_step, self.notes)

    def numbers(self) -> tuple[int, int] | None:
        """Return the first and the last number; None if there is no step."""
        numbers = [step.number for steps in self.steps.values() for step in (steps[:1] + steps[-1:])]
        return (min(numbers), max(numbers)) if numbers else None

    def __iter__(self) -> Iterator[LaneStep]:
        for steps in self.steps.values():
            yield from steps


@dataclass(slots=True)
class LaneRing:
    """The latest steps of every rank, in bounded memory: what a server shows of itself."""

    interval: int = 1
    lock_step: bool = True
    capacity: int = 4096
    """Steps kept of each rank."""
    _steps: dict[int, deque[LaneStep]] = field(default_factory=dict)

    def add(self, step: LaneStep) -> None:
        """Take a step; the oldest of its rank gives way."""
        ring = self._steps.get(step.rank)
        if ring is None:
            ring = self._steps[step.rank] = deque(maxlen=self.capacity)
        ring.append(step)

    def forget(self, rank: int) -> None:
        """Drop a rank's steps: it was started again, and counts from the beginning."""
        self._steps.pop(rank, None)

    def lanes(self) -> Lanes:
        """Return what is kept."""
        return Lanes({rank: tuple(self._steps[rank]) for rank in sorted(self._steps)}, self.interval, self.lock_step)
