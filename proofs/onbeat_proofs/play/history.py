"""What a run did, step by step."""

from collections.abc import Sequence
from typing import NamedTuple

from onbeat_spec.records import Step


class PlayedStep(NamedTuple):
    """One `schedule` call and what came of it. Ids only."""

    step: Step
    prefill: tuple[str, ...]
    """Those of the scheduled that had more than one token of local work."""
    waiting: tuple[str, ...]
    """Who was left waiting."""
    parked: tuple[str, ...]
    """Who was loading from a remote store."""
    delivered: dict[str, Sequence[int]]
    """Token ids that its outputs delivered; empty while it is in flight."""
    running: tuple[str, ...] = ()
    """Who was on the running list after the step, whether or not it got tokens."""


def tokens(history: Sequence[PlayedStep], id: str) -> int:
    """Tokens scheduled for a request."""
    return sum(turn.step.scheduled.get(id, 0) for turn in history)


def prefill_tokens(history: Sequence[PlayedStep]) -> int:
    """Tokens scheduled for requests with more than one token of local work."""
    return sum(turn.step.scheduled[id] for turn in history for id in turn.prefill)


def decode_tokens(history: Sequence[PlayedStep]) -> int:
    """Tokens scheduled for requests with at most one token of local work, draft tokens included."""
    return sum(sum(turn.step.scheduled.values()) for turn in history) - prefill_tokens(history)


def max_waiting(history: Sequence[PlayedStep]) -> int:
    """Most requests left waiting by a step."""
    return max((len(turn.waiting) for turn in history), default=0)


def first_chunk(history: Sequence[PlayedStep], id: str) -> int | None:
    """Step that gave a request its first tokens; None so far."""
    return next((turn.step.index for turn in history if id in turn.step.scheduled), None)


def first_output(history: Sequence[PlayedStep], id: str) -> int | None:
    """Step that sampled the first token delivered to a request; None so far."""
    return next((turn.step.index for turn in history if id in turn.delivered), None)
