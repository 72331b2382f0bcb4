"""The cadence in numbers and in one line of words."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from onbeat_engine.wire.lane_steps import KINDS, Lanes, LaneStep

FEW = 5
"""Lock steps that the headline names."""


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank's steps, counted."""

    rank: int
    kinds: dict[str, int]
    held_steps: int
    """Steps that held some request back."""
    prefill_steps: int
    on_beat: int
    """Of these, on the beat."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All ranks together. Times are seconds; None where nothing was measured."""

    interval: int
    lock_step: bool
    first: int
    last: int
    columns: int
    """Lock steps with a forward; without a group, steps."""
    columns_with_prefill: int
    """Of these, with prefill on some rank."""
    prefill_steps: int
    on_beat: int
    off_beat: tuple[int, ...]
    """Numbers of the steps off the beat in which some rank had prefill."""
    whys: dict[str, int]
    """Why, with how many prefill steps of all ranks; most frequent first."""
    decode_s: float | None
    """Median time of a column that decodes and has no prefill: of its slowest rank."""
    prefill_s: float | None
    """The same of one with prefill."""
    ranks: list[RankSummary] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return values of JSON."""
        return {
            "headline": headline(self),
            "interval": self.interval,
            "lock_step": self.lock_step,
            "first": self.first,
            "last": self.last,
            "columns": self.columns,
            "columns_with_prefill": self.columns_with_prefill,
            "prefill_steps": self.prefill_steps,
            "prefill_steps_on_beat": self.on_beat,
            "off_beat": list(self.off_beat),
            "off_beat_why": self.whys,
            "median_decode_s": self.decode_s,
            "median_prefill_s": self.prefill_s,
            "ranks": [
                {
                    "rank": rank.rank,
                    "kinds": rank.kinds,
                    "held_steps": rank.held_steps,
                    "prefill_steps": rank.prefill_steps,
                    "prefill_steps_on_beat": rank.on_beat,
                }
                for rank in self.ranks
            ],
        }


def summarize(lanes: Lanes) -> Summary:
    """Count."""
    ranks = [_rank(rank, steps) for rank, steps in lanes.steps.items()]
    columns = [column for column in _columns(lanes) if any(s.kind not in ("exchange", "empty") for s in column)]
    with_prefill = [column for column in columns if any(s.prefills for s in column)]
    decoding = [c for c in columns if not any(s.prefills for s in c) and any(s.decode_tokens for s in c)]
    off = sorted({step.number for step in lanes if step.prefills and not step.beat})
    first, last = lanes.numbers() or (0, 0)
    return Summary(
        interval=lanes.interval,
        lock_step=lanes.lock_step,
        first=first,
        last=last,
        columns=len(columns),
        columns_with_prefill=len(with_prefill),
        prefill_steps=sum(rank.prefill_steps for rank in ranks),
        on_beat=sum(rank.on_beat for rank in ranks),
        off_beat=tuple(off),
        whys=dict(Counter(s.why or "unknown" for s in lanes if s.prefills and not s.beat).most_common()),
        decode_s=_median(decoding),
        prefill_s=_median(with_prefill),
        ranks=ranks,
    )


def _rank(rank: int, steps: Sequence[LaneStep]) -> RankSummary:
    kinds = Counter(step.kind for step in steps)
    prefills = [step for step in steps if step.prefills]
    return RankSummary(
        rank,
        {kind: kinds[kind] for kind in KINDS if kinds[kind]},
        sum(step.held > 0 for step in steps),
        len(prefills),
        sum(step.beat for step in prefills),
    )


def _columns(lanes: Lanes) -> Iterator[list[LaneStep]]:
    """Yield what happened at once: a lock step of all ranks; without a group every step by itself."""
    if not lanes.lock_step:
        yield from ([step] for step in lanes)
        return
    by_number: dict[int, list[LaneStep]] = {}
    for step in lanes:
        by_number.setdefault(step.number, []).append(step)
    yield from by_number.values()


def _median(columns: Sequence[Sequence[LaneStep]]) -> float | None:
    times = [max(known) for column in columns if (known := [s.duration for s in column if s.duration is not None])]
    return median(times) if times else None


# --- Words -----------------------------------------------------------------------------------------------------------


def headline(summary: Summary) -> str:
    """Say whether prefills fall on the beat, and what they cost."""
    parts = [f"interval {summary.interval}: {cadence(summary)}"]
    if summary.decode_s is not None:
        parts.append(f"median pure-decode step {milliseconds(summary.decode_s)}")
    if summary.prefill_s is not None:
        parts.append(f"step with prefill {milliseconds(summary.prefill_s)}")
    times = ", ".join(parts[1:])
    return f"{parts[0]}; {times}" if times else parts[0]


def cadence(summary: Summary) -> str:
    """Say where the prefills are."""
    steps = "lock steps" if summary.lock_step else "steps"
    share = f"{percent(summary.columns_with_prefill, summary.columns)} of {summary.columns:,} {steps} carry prefill"
    if not summary.prefill_steps:
        return f"no prefill in {summary.columns:,} {steps}"
    if summary.interval == 1:
        return f"every step is a beat; {share}"
    off = summary.prefill_steps - summary.on_beat
    if not off:
        return f"all {summary.prefill_steps:,} prefill steps on the beat; {share}"
    named = ", ".join(map(str, summary.off_beat[:FEW])) + (", ..." if len(summary.off_beat) > FEW else "")
    at = steps if len(summary.off_beat) > 1 else steps[:-1]
    why = ", ".join(f"{count:,} {why}" for why, count in summary.whys.items())
    return (
        f"{percent(summary.on_beat, summary.prefill_steps)} of {summary.prefill_steps:,} prefill steps on the beat; "
        f"{off:,} off the beat at {at} {named} ({why}); {share}"
    )


def percent(part: int, whole: int) -> str:
    """Write a share; never 0 % or 100 % of something that is neither."""
    if not whole:
        return "0 %"
    rounded = round(100 * part / whole)
    if rounded in (0, 100) and part not in (0, whole):
        return "under 1 %" if rounded == 0 else "over 99 %"
    return f"{rounded} %"


def milliseconds(seconds: float) -> str:
    """Write a time with two or three digits that count."""
    ms = 1000 * seconds
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2f} ms"
