"""A run as plain values: what every request got in every step, for reports that draw it."""

from collections.abc import Sequence
from typing import Any

from onbeat_proofs.play.history import PlayedStep
from onbeat_proofs.play.table import requests

STATES = ("prefill", "decode", "held", "loading", "waiting", "running", "preempted", "finished")
"""What a step can leave a request in; `running`: it is on the running list, and got nothing."""


def timeline(history: Sequence[PlayedStep]) -> list[dict[str, Any]]:
    """Return one record of JSON values for each step.

    A record has the step's index (`step`), its circumstances as booleans (`throttle`, `hold`, `lifted`, `open`, and
    `saturated`: the flag after it), and `requests`: by id, from the step that first speaks of a request on, its `state`
    (one of `STATES`), its `tokens` and how many of them are `drafts`, and whether it was `preempted` in the step,
    whatever else happened to it. `finished` is set from the step after the one that finished it.
    """
    ids = requests(history)
    begun: set[str] = set()
    records = []
    for turn in history:
        step, cells = turn.step, {}
        for id in ids:
            cell = _cell(turn, id)
            if cell is None and id in begun:
                cell = {"state": "finished", "tokens": 0, "drafts": 0, "preempted": False}
            if cell is not None:
                begun.add(id)
                cells[id] = cell
        records.append(
            {
                "step": step.index,
                "throttle": bool(step.throttle),
                "hold": step.hold,
                "lifted": step.lifted,
                "open": step.open,
                "saturated": step.saturated,
                "requests": cells,
            }
        )
    return records


def _cell(turn: PlayedStep, id: str) -> dict[str, Any] | None:
    """Return what a step did with a request; None: it knows no such request."""
    step = turn.step
    tokens = step.scheduled.get(id, 0)
    preempted = any(eviction.victim == id for eviction in step.evictions)
    if tokens:
        state = "prefill" if id in turn.prefill else "decode"
    elif preempted:
        state = "preempted"
    elif id in step.held:
        state = "held"
    elif id in step.loading or id in turn.parked:
        state = "loading"
    elif id in turn.waiting:
        state = "waiting"
    elif id in turn.running:
        state = "running"
    else:
        return None
    return {"state": state, "tokens": tokens, "drafts": step.drafts.get(id, 0), "preempted": preempted}
