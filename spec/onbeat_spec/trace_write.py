"""Trace records as lines of text. What has its default is left out; `trace_read` puts it back."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from onbeat_spec.records import LockStep, Place, State, View
from onbeat_spec.trace import (
    CONFIG_DEFAULTS,
    FORMAT,
    VERSION,
    Accepted,
    CacheReset,
    Crashed,
    Header,
    Idle,
    Notice,
    PauseChanged,
    Record,
    Refused,
    StepRecord,
    Update,
)

Json = dict[str, Any]

TOTALS = ("free", "promised", "num_running", "num_loading", "num_slots", "held", "held_by_running", "in_flight")
LISTS = (("running", Place.RUNNING), ("waiting", Place.WAITING), ("parked", Place.PARKED))
STEP_FLAGS = ("throttle", "hold", "lifted", "scan_over", "prefill")
STEP_MAPS = ("scheduled", "drafts")
STEP_LISTS = ("sat_out", "held", "admitted", "resumed", "loading", "cancelled")

NO_STATE = State({}, (), (), (), 0, 0, False, 0, 0, 0, -1)
"""Where the totals of a state start from."""
NO_VIEW = View("", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, False, 0, 0, 0, Place.RUNNING)
"""Where a request starts from; `num_tokens` starts from `num_prompt`."""

_dump = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def line(record: Header | Record, max_tokens: int) -> str:
    """Return a record as one line, its end included.

    Args:
        record: what happened.
        max_tokens: `max_num_batched_tokens` of the configuration: a step's budget is left out where it follows from it.
    """
    if isinstance(record, StepRecord):
        return _dump(_step_record(record, max_tokens)) + "\n"
    return _dump(_OTHERS[type(record)](record)) + "\n"


def _step_record(record: StepRecord, max_tokens: int) -> Json:
    step, after = record.step, record.after
    packed: Json = {"step": step.index}
    if record.time:
        packed["t"] = record.time
    for name in STEP_FLAGS:
        if getattr(step, name):
            packed[name] = True
    if not step.open:
        packed["open"] = False
    for name in (*STEP_MAPS, *STEP_LISTS):
        if value := getattr(step, name):
            packed[name] = value
    if step.evictions:
        packed["evictions"] = [list(eviction) for eviction in step.evictions]
    if step.budget != max_tokens - sum(step.scheduled.values()):
        packed["budget"] = step.budget
    if step.wrote_flag != step.offers_admission:
        packed["wrote_flag"] = step.wrote_flag
    if step.saturated != after.saturated:
        packed["saturated"] = step.saturated
    if record.paused is not None:
        packed["paused"] = record.paused
    if record.lock is not None:
        packed["lock"] = _lock(record.lock)
    packed["after"] = pack_state(after, NO_STATE)
    if record.before is not after and record.before != after:
        packed["before"] = pack_state(record.before, after)
    if record.whole is not None:
        packed["whole"] = pack_state(record.whole, after)
    return packed


def pack_state(state: State, base: State) -> Json:
    """Return what tells a state apart from another: totals that differ, and all its requests.

    A request that stands in `base` under the same key with the same counts is its key alone.
    """
    packed: Json = {}
    for name in TOTALS:
        value = getattr(state, name)
        if value != getattr(base, name):
            packed[name] = value
    if state.saturated != base.saturated:
        packed["saturated"] = state.saturated
    if state.requests:
        earlier = base.requests
        packed["requests"] = [
            key if earlier.get(key) == view else _view(key, view) for key, view in state.requests.items()
        ]
    for name, place in LISTS:
        ids: tuple[str, ...] = getattr(state, name)
        if ids != standing(state.requests.items(), place):
            packed[name] = list(ids)
    return packed


def standing(requests: Iterable[tuple[str, View]], place: Place) -> tuple[str, ...]:
    """Return the keys of those that stand in one place, as a state lists them unless it says otherwise."""
    return tuple([key for key, view in requests if view.place is place])


def _view(key: str, view: View) -> Json:
    packed: Json = {"id": view.id}
    if key != view.id:
        packed["key"] = key
    for name, value, default in zip(View._fields[1:-1], view[1:-1], NO_VIEW[1:-1], strict=True):
        if value != default and name != "num_tokens":
            packed[name] = value
    if view.num_tokens != view.num_prompt:
        packed["num_tokens"] = view.num_tokens
    if view.place is not Place.RUNNING:
        packed["place"] = view.place.value
    return packed


def _lock(lock: LockStep) -> Json:
    packed: Json = {"number": lock.number}
    if lock.phase is not None:
        packed["phase"] = lock.phase
    if lock.collectives is not None:
        packed["collectives"] = list(lock.collectives)
    if lock.last is not None:
        packed["last"] = lock.last
    if lock.filler is not None:
        packed["filler"] = {name: count for name, count in lock.filler._asdict().items() if count is not None}
    return packed


def _header(header: Header) -> Json:
    return {
        FORMAT: VERSION,
        "run": header.run,
        "part": header.part,
        **({"group": header.group} if header.group else {}),
        "rank": header.rank,
        "ranks": header.ranks,
        "scheduler": header.scheduler,
        "policy": header.policy,
        "config": {name: v for name, d in CONFIG_DEFAULTS.items() if (v := getattr(header.config, name)) != d},
        "any_flag": header.any_flag,
        "software": dict(header.software),
        "started": header.started,
        "next_step": header.next_step,
        "lost": header.lost,
        "flights": [[step, dict(scheduled)] for step, scheduled in header.flights],
        "state": pack_state(header.state, NO_STATE),
    }


def _update(update: Update) -> Json:
    packed: Json = {"update": update.step}
    if update.tokens:
        packed["tokens"] = dict(update.tokens)
    if update.finished:
        packed["finished"] = dict(update.finished)
    if update.time:
        packed["t"] = update.time
    return packed


def _idle(idle: Idle) -> Json:
    packed: Json = {"idle": _lock(idle.lock)}
    if idle.time:
        packed["t"] = idle.time
    if idle.took:
        packed["took"] = idle.took
    return packed


def _notice(notice: Notice) -> Json:
    packed: Json = {"notice": notice.what, "id": notice.id}
    if not notice.known:
        packed["known"] = False
    if notice.before is not None and notice.after is not None:
        packed["after"] = pack_state(notice.after, NO_STATE)
        packed["before"] = pack_state(notice.before, notice.after)
    return packed


_OTHERS: dict[type, Callable[[Any], Json]] = {
    Header: _header,
    Idle: _idle,
    Update: _update,
    Accepted: lambda record: {"accepted": record.id, "num_prompt": record.num_prompt, "limit": record.limit},
    Refused: lambda record: {"refused": record.id, "num_prompt": record.num_prompt},
    Notice: _notice,
    PauseChanged: lambda record: {"pause": record.mode or "none"},
    CacheReset: lambda record: {"reset": list(record.preempted)},
    Crashed: lambda record: {"crashed": record.error},
}
