"""Trace files, read back: strictly, line by line, in constant memory."""

import json
from collections.abc import Callable, Iterable, Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar, cast, get_args

from onbeat_spec.config import Config
from onbeat_spec.errors import ConfigError, EmptyTrace, TraceError
from onbeat_spec.records import Filler, LockStep, Place, State, Step, View
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
    NoticeKind,
    PauseChanged,
    PauseMode,
    Record,
    Refused,
    StepRecord,
    Update,
)
from onbeat_spec.trace_values import (
    Keys,
    Wrong,
    boolean,
    counts,
    eviction,
    flight,
    integer,
    list_of,
    map_of,
    no_constant,
    number,
    of_type,
    one_of,
    show,
    string,
    strings,
)
from onbeat_spec.trace_write import (
    LISTS,
    NO_STATE,
    NO_VIEW,
    STEP_FLAGS,
    STEP_LISTS,
    STEP_MAPS,
    TOTALS,
    standing,
)

MAX_LINE = 1 << 28
"""Bytes that no line has; a file of something else must not fill the memory."""

T = TypeVar("T")
_PLACES = {place.value: place for place in Place}


def trace_paths(names: Iterable[str]) -> list[str]:
    """Return the files that are named, and those in folders that are.

    Raises:
        TraceError: a folder has no trace in it.
    """
    paths: list[str] = []
    for name in names:
        if not Path(name).is_dir():
            paths.append(name)
            continue
        inside = sorted(map(str, Path(name).glob("*.ndjson")))
        if not inside:
            raise TraceError(f"{name}: there is no .ndjson file in that folder")
        paths += inside
    return list(dict.fromkeys(paths))


class TraceFile:
    """One file of a trace. Iterating gives (line number, record) for each line behind the header.

    Attributes:
        header: the first line.
        cut: once read to its end: its last line was cut off, as in a process that was killed; it is not given out.
        position: bytes read so far.

    Raises:
        EmptyTrace: there is no whole line. TraceError: also while iterating: a line is not what it should be.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = fspath(path)
        self.cut = False
        self.position = 0
        self._line = 0
        self._file: BinaryIO = open(self.path, "rb")  # noqa: SIM115  (stays open until `close`)
        try:
            first = self._next()
            if first is None:
                raise EmptyTrace(f"{self.path}: there is no whole line in it; give a trace that a recorder wrote")
            self.header = self._decode(first, lambda packed: _read_header(packed, self.path))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        config = self.header.config
        while (text := self._next()) is not None:
            yield self._line, self._decode(text, lambda packed: _read_record(packed, config))

    def _next(self) -> bytes | None:
        """Return the next line; None at the end, and for a last line that was cut off."""
        text = self._file.readline(MAX_LINE)
        if not text:
            return None
        self._line += 1
        self.position += len(text)
        if text.endswith(b"\n"):
            return text
        if len(text) == MAX_LINE:
            raise TraceError(f"{self.path}:{self._line}: longer than {MAX_LINE} bytes; this is no trace of ours")
        self.cut = True
        return None

    def _decode(self, text: bytes, read: Callable[[object], T]) -> T:
        try:
            packed = json.loads(text, parse_constant=no_constant)
            return read(packed)
        except (Wrong, ValueError, RecursionError, ConfigError) as error:
            raise TraceError(f"{self.path}:{self._line}: {error}") from None


# --- Parts -----------------------------------------------------------------------------------------------------------

_VIEW_KEYS = frozenset({*View._fields, "key"})
_STATE_KEYS = frozenset({*TOTALS, "saturated", "requests", *(name for name, _ in LISTS)})


def _read_view(packed: dict[str, Any], where: str) -> tuple[str, View]:
    keys = Keys(packed, where)
    values = [keys.take("id", string)]
    for name, default in zip(View._fields[1:-1], NO_VIEW[1:-1], strict=True):
        if name == "num_tokens":
            default = values[-1]  # noqa: PLW2901  (as many as its prompt)
        values.append(keys.take(name, boolean if name == "sync_load" else integer, default))
    place = _PLACES[keys.take("place", one_of(*_PLACES), "running")]
    key = keys.take("key", string, values[0])
    keys.done(_VIEW_KEYS)
    return key, View._make([*values, place])


def _state(base: State) -> Callable[[object, str], State]:
    def read(packed: object, where: str) -> State:
        keys = Keys(packed, where)
        totals = {name: keys.take(name, integer, getattr(base, name)) for name in TOTALS}
        saturated = keys.take("saturated", boolean, base.saturated)
        requests: dict[str, View] = {}
        for index, item in enumerate(keys.take("requests", list_of(lambda value, _: value), ())):
            at = f"{where}.requests[{index}]"
            if isinstance(item, str):
                if item not in base.requests:
                    raise Wrong(f"{at} is {show(item)}, which does not stand in the state that this one refers to")
                requests[item] = base.requests[item]
            else:
                key, request = _read_view(item, at)
                requests[key] = request
        lists = {name: keys.take(name, strings, None) for name, _ in LISTS}
        keys.done(_STATE_KEYS)
        running, waiting, parked = (
            standing(requests.items(), place) if lists[name] is None else tuple(lists[name]) for name, place in LISTS
        )
        return State(requests=requests, running=running, waiting=waiting, parked=parked, saturated=saturated, **totals)

    return read


def _read_lock(packed: object, where: str) -> LockStep:
    keys = Keys(packed, where)
    collectives = keys.take("collectives", strings, None)
    lock = LockStep(
        keys.take("number", integer),
        keys.take("phase", integer, None),
        None if collectives is None else tuple(collectives),
        keys.take("last", boolean, None),
        keys.take("filler", _read_filler, None),
    )
    keys.done(LockStep._fields)
    return lock


def _read_filler(packed: object, where: str) -> Filler:
    keys = Keys(packed, where)
    filler = Filler(keys.take("blocks", integer), keys.take("expert_rows", integer, None))
    keys.done(Filler._fields)
    return filler


# --- Lines -----------------------------------------------------------------------------------------------------------

_HEADER_KEYS = (FORMAT, *(name for name in Header.__slots__))
_STEP_KEYS = frozenset(
    {"step", "t", "open", "budget", "wrote_flag", "saturated", "paused", "lock", "evictions"}
    | {"before", "after", "whole", *STEP_FLAGS, *STEP_MAPS, *STEP_LISTS}
)


def _read_header(packed: object, path: str) -> Header:
    if not isinstance(packed, dict) or FORMAT not in packed:
        raise Wrong(f"the first line is no header: it has no {FORMAT!r}")
    keys = Keys(packed, "header")
    version = keys.take(FORMAT, integer)
    if version != VERSION:
        raise Wrong(f"it is of version {version} and this reads version {VERSION}; use another release of onbeat")
    header = Header(
        rank=keys.take("rank", integer),
        ranks=keys.take("ranks", integer),
        config=_config(keys.take("config", map_of(lambda value, _: value))),
        policy=keys.take("policy", string),
        scheduler=keys.take("scheduler", string),
        state=keys.take("state", _state(NO_STATE)),
        run=keys.take("run", string, ""),
        part=keys.take("part", integer, 0),
        group=keys.take("group", string, ""),
        next_step=keys.take("next_step", integer, 0),
        started=keys.take("started", number, 0.0),
        software=keys.take("software", map_of(string), {}),
        any_flag=keys.take("any_flag", boolean, False),
        lost=keys.take("lost", integer, 0),
        flights=tuple(keys.take("flights", list_of(flight), ())),
    )
    keys.done(_HEADER_KEYS)
    if header.rank < 0 or 1 < header.ranks <= header.rank:  # ranks that are on their own are numbered all the same
        raise Wrong(f"header.rank is {header.rank} of {header.ranks} ranks")
    return header


def _config(packed: dict[str, Any]) -> Config:
    for name, value in packed.items():
        if name not in CONFIG_DEFAULTS:
            raise Wrong(f"header.config has the unknown key {name!r}")
        kind = type(CONFIG_DEFAULTS[name])
        of_type(kind, f"of type {kind.__name__}")(value, f"header.config.{name}")
    return Config(**packed)


def _read_step(packed: dict[str, Any], config: Config) -> StepRecord:
    keys = Keys(packed, "step")
    after: State = keys.take("after", _state(NO_STATE))
    before: State = keys.take("before", _state(after), after)
    step = Step(keys.take("step", integer), False)
    for name in STEP_FLAGS:
        setattr(step, name, keys.take(name, boolean, False))
    for name in STEP_MAPS:
        setattr(step, name, keys.take(name, counts, {}))
    for name in STEP_LISTS:
        setattr(step, name, keys.take(name, strings, []))
    step.open = keys.take("open", boolean, True)
    step.evictions = keys.take("evictions", list_of(eviction), [])
    step.budget = keys.take("budget", integer, config.max_num_batched_tokens - sum(step.scheduled.values()))
    step.wrote_flag = keys.take("wrote_flag", boolean, step.offers_admission)
    step.saturated = keys.take("saturated", boolean, after.saturated)
    record = StepRecord(
        step,
        before,
        after,
        keys.take("whole", _state(after), None),
        cast(PauseMode | None, keys.take("paused", one_of(*get_args(PauseMode)), None)),
        keys.take("lock", _read_lock, None),
        keys.take("t", number, 0.0),
    )
    keys.done(_STEP_KEYS)
    return record


def _read_update(keys: Keys) -> Update:
    return Update(
        keys.take("update", integer),
        keys.take("tokens", counts, {}),
        keys.take("finished", map_of(string), {}),
        keys.take("t", number, 0.0),
    )


def _read_idle(keys: Keys) -> Idle:
    return Idle(keys.take("idle", _read_lock), keys.take("t", number, 0.0), keys.take("took", number, 0.0))


def _read_notice(keys: Keys) -> Notice:
    after = keys.take("after", _state(NO_STATE), None)
    return Notice(
        cast(NoticeKind, keys.take("notice", one_of(*get_args(NoticeKind)))),
        keys.take("id", string),
        keys.take("known", boolean, True),
        keys.take("before", _state(after or NO_STATE), None),
        after,
    )


def _read_pause(keys: Keys) -> PauseChanged:
    mode: Literal["new", "all", "none"] = keys.take("pause", one_of("new", "all", "none"))
    return PauseChanged(None if mode == "none" else mode)


_OTHERS: dict[str, tuple[Callable[[Keys], Record], tuple[str, ...]]] = {
    "idle": (_read_idle, ("idle", "t", "took")),
    "update": (_read_update, ("update", "tokens", "finished", "t")),
    "accepted": (
        lambda keys: Accepted(
            keys.take("accepted", string), keys.take("num_prompt", integer), keys.take("limit", integer)
        ),
        ("accepted", "num_prompt", "limit"),
    ),
    "refused": (
        lambda keys: Refused(keys.take("refused", string), keys.take("num_prompt", integer)),
        ("refused", "num_prompt"),
    ),
    "notice": (_read_notice, ("notice", "id", "known", "before", "after")),
    "pause": (_read_pause, ("pause",)),
    "reset": (lambda keys: CacheReset(tuple(keys.take("reset", strings))), ("reset",)),
    "crashed": (lambda keys: Crashed(keys.take("crashed", string)), ("crashed",)),
}


def _read_record(packed: object, config: Config) -> Record:
    if isinstance(packed, dict):
        if "step" in packed:
            return _read_step(packed, config)
        for name, (read, allowed) in _OTHERS.items():
            if name in packed:
                keys = Keys(packed, name)
                record = read(keys)
                keys.done(allowed)
                return record
    raise Wrong(f"{show(packed)} is no record: it has none of step, {', '.join(_OTHERS)}")
