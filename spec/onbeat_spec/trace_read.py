"""Trace files, read back: strictly, line by line, in constant memory."""

import json
from collections.abc import Callable, Collection, Iterator
from os import PathLike, fspath
from typing import Any, BinaryIO, Literal, TypeVar, cast, get_args

from onbeat_spec.config import Config
from onbeat_spec.errors import ConfigError, EmptyTrace, TraceError
from onbeat_spec.records import Eviction, LockStep, Place, State, Step, View
from onbeat_spec.trace import (
    CONFIG_DEFAULTS,
    FORMAT,
    VERSION,
    Accepted,
    Crashed,
    Header,
    Idle,
    Notice,
    NoticeKind,
    Pause,
    PauseMode,
    Record,
    Refused,
    Reset,
    StepRecord,
    Update,
)
from onbeat_spec.trace_write import (
    LISTS,
    NO_STATE,
    NO_VIEW,
    STEP_FLAGS,
    STEP_LISTS,
    STEP_MAPS,
    TOTALS,
    offers,
    standing,
)

MAX_LINE = 1 << 28
"""Bytes that no line has; a file of something else must not fill the memory."""

T = TypeVar("T")
_MISSING: Any = object()
_PLACES = {place.value: place for place in Place}


class _Wrong(Exception):
    """What is wrong with a line."""


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
            packed = json.loads(text, parse_constant=_no_constant)
            return read(packed)
        except (_Wrong, ValueError, RecursionError, ConfigError) as error:
            raise TraceError(f"{self.path}:{self._line}: {error}") from None


def _no_constant(name: str) -> float:
    raise _Wrong(f"{name} is no JSON")


# --- Values ----------------------------------------------------------------------------------------------------------


class _Keys:
    """Takes the keys of an object, one by one, and complains about those that are left over."""

    def __init__(self, packed: object, where: str) -> None:
        if not isinstance(packed, dict):
            raise _Wrong(f"{where} is {_show(packed)}; it must be an object")
        self.packed = packed
        self.where = where
        self.taken = 0

    def take(self, key: str, kind: Callable[[object, str], Any], default: Any = _MISSING) -> Any:
        value = self.packed.get(key, _MISSING)
        if value is _MISSING:
            if default is _MISSING:
                raise _Wrong(f"{self.where} has no {key!r}")
            return default
        self.taken += 1
        return kind(value, f"{self.where}.{key}")

    def done(self, known: Collection[str]) -> None:
        if self.taken != len(self.packed):
            unknown = next(key for key in self.packed if key not in known)
            raise _Wrong(f"{self.where} has the unknown key {unknown!r}")


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _of(kind: type, name: str) -> Callable[[object, str], Any]:
    def read(value: object, where: str) -> Any:
        if type(value) is not kind:  # a bool is no number here
            raise _Wrong(f"{where} is {_show(value)}; it must be {name}")
        return value

    return read


_int, _bool, _str = _of(int, "an integer"), _of(bool, "true or false"), _of(str, "a string")


def _number(value: object, where: str) -> float:
    if type(value) not in (int, float):
        raise _Wrong(f"{where} is {_show(value)}; it must be a number")
    return float(cast(float, value))


def _list(kind: Callable[[object, str], Any]) -> Callable[[object, str], list[Any]]:
    def read(value: object, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise _Wrong(f"{where} is {_show(value)}; it must be a list")
        return [kind(each, f"{where}[{index}]") for index, each in enumerate(value)]

    return read


def _map(kind: Callable[[object, str], Any]) -> Callable[[object, str], dict[str, Any]]:
    def read(value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _Wrong(f"{where} is {_show(value)}; it must be an object")
        for key, each in value.items():
            kind(each, f"{where}[{key!r}]")
        return value

    return read


def _one_of(*names: str) -> Callable[[object, str], str]:
    def read(value: object, where: str) -> str:
        if value not in names:
            raise _Wrong(f"{where} is {_show(value)}; it must be one of {', '.join(names)}")
        return value

    return read


_strs, _counts = _list(_str), _map(_int)


def _eviction(value: object, where: str) -> Eviction:
    if not isinstance(value, list) or len(value) != 3:
        raise _Wrong(f"{where} is {_show(value)}; it must be [victim, cause, released]")
    victim, cause, released = value
    return Eviction(_str(victim, where), _str(cause, where), _int(released, where))


def _flight(value: object, where: str) -> tuple[int, dict[str, int]]:
    if not isinstance(value, list) or len(value) != 2:
        raise _Wrong(f"{where} is {_show(value)}; it must be [step, tokens per request]")
    return _int(value[0], where), _counts(value[1], where)


# --- Parts -----------------------------------------------------------------------------------------------------------

_VIEW_KEYS = frozenset({*View._fields, "key"})
_STATE_KEYS = frozenset({*TOTALS, "saturated", "requests", *(name for name, _ in LISTS)})


def _read_view(packed: dict[str, Any], where: str) -> tuple[str, View]:
    keys = _Keys(packed, where)
    values = [keys.take("id", _str)]
    for name, default in zip(View._fields[1:-1], NO_VIEW[1:-1], strict=True):
        if name == "num_tokens":
            default = values[-1]  # noqa: PLW2901  (as many as its prompt)
        values.append(keys.take(name, _bool if name == "sync_load" else _int, default))
    place = _PLACES[keys.take("place", _one_of(*_PLACES), "running")]
    key = keys.take("key", _str, values[0])
    keys.done(_VIEW_KEYS)
    return key, View._make([*values, place])


def _state(base: State) -> Callable[[object, str], State]:
    def read(packed: object, where: str) -> State:
        keys = _Keys(packed, where)
        totals = {name: keys.take(name, _int, getattr(base, name)) for name in TOTALS}
        saturated = keys.take("saturated", _bool, base.saturated)
        requests: dict[str, View] = {}
        for index, each in enumerate(keys.take("requests", _list(lambda value, _: value), ())):
            at = f"{where}.requests[{index}]"
            if isinstance(each, str):
                if each not in base.requests:
                    raise _Wrong(f"{at} is {_show(each)}, which does not stand in the state that this one refers to")
                requests[each] = base.requests[each]
            else:
                key, request = _read_view(each, at)
                requests[key] = request
        lists = {name: keys.take(name, _strs, None) for name, _ in LISTS}
        keys.done(_STATE_KEYS)
        running, waiting, parked = (
            standing(requests.items(), place) if lists[name] is None else tuple(lists[name]) for name, place in LISTS
        )
        return State(requests=requests, running=running, waiting=waiting, parked=parked, saturated=saturated, **totals)

    return read


def _read_lock(packed: object, where: str) -> LockStep:
    keys = _Keys(packed, where)
    collectives = keys.take("collectives", _strs, None)
    lock = LockStep(
        keys.take("number", _int),
        keys.take("phase", _int, None),
        None if collectives is None else tuple(collectives),
        keys.take("last", _bool, None),
    )
    keys.done(LockStep._fields)
    return lock


# --- Lines -----------------------------------------------------------------------------------------------------------

_HEADER_KEYS = (FORMAT, *(name for name in Header.__slots__))
_STEP_KEYS = frozenset(
    {"step", "t", "open", "budget", "wrote_flag", "saturated", "paused", "lock", "evictions"}
    | {"before", "after", "whole", *STEP_FLAGS, *STEP_MAPS, *STEP_LISTS}
)


def _read_header(packed: object, path: str) -> Header:
    if not isinstance(packed, dict) or FORMAT not in packed:
        raise _Wrong(f"the first line is no header: it has no {FORMAT!r}")
    keys = _Keys(packed, "header")
    version = keys.take(FORMAT, _int)
    if version != VERSION:
        raise _Wrong(f"it is of version {version} and this reads version {VERSION}; use another release of onbeat")
    header = Header(
        rank=keys.take("rank", _int),
        ranks=keys.take("ranks", _int),
        config=_config(keys.take("config", _map(lambda value, _: value))),
        policy=keys.take("policy", _str),
        scheduler=keys.take("scheduler", _str),
        state=keys.take("state", _state(NO_STATE)),
        run=keys.take("run", _str, ""),
        part=keys.take("part", _int, 0),
        next_step=keys.take("next_step", _int, 0),
        started=keys.take("started", _number, 0.0),
        software=keys.take("software", _map(_str), {}),
        any_flag=keys.take("any_flag", _bool, False),
        lost=keys.take("lost", _int, 0),
        flights=tuple(keys.take("flights", _list(_flight), ())),
    )
    keys.done(_HEADER_KEYS)
    if not 0 <= header.rank < header.ranks:
        raise _Wrong(f"header.rank is {header.rank} of {header.ranks} ranks")
    return header


def _config(packed: dict[str, Any]) -> Config:
    for name, value in packed.items():
        if name not in CONFIG_DEFAULTS:
            raise _Wrong(f"header.config has the unknown key {name!r}")
        kind = type(CONFIG_DEFAULTS[name])
        _of(kind, f"of type {kind.__name__}")(value, f"header.config.{name}")
    return Config(**packed)


def _read_step(packed: dict[str, Any], config: Config) -> StepRecord:
    keys = _Keys(packed, "step")
    after: State = keys.take("after", _state(NO_STATE))
    before: State = keys.take("before", _state(after), after)
    step = Step(keys.take("step", _int), False)
    for name in STEP_FLAGS:
        setattr(step, name, keys.take(name, _bool, False))
    for name in STEP_MAPS:
        setattr(step, name, keys.take(name, _counts, {}))
    for name in STEP_LISTS:
        setattr(step, name, keys.take(name, _strs, []))
    step.open = keys.take("open", _bool, True)
    step.evictions = keys.take("evictions", _list(_eviction), [])
    step.budget = keys.take("budget", _int, config.max_num_batched_tokens - sum(step.scheduled.values()))
    step.wrote_flag = keys.take("wrote_flag", _bool, offers(step))
    step.saturated = keys.take("saturated", _bool, after.saturated)
    record = StepRecord(
        step,
        before,
        after,
        keys.take("whole", _state(after), None),
        cast(PauseMode | None, keys.take("paused", _one_of(*get_args(PauseMode)), None)),
        keys.take("lock", _read_lock, None),
        keys.take("t", _number, 0.0),
    )
    keys.done(_STEP_KEYS)
    return record


def _read_update(keys: _Keys) -> Update:
    return Update(keys.take("update", _int), keys.take("tokens", _counts, {}), keys.take("finished", _map(_str), {}))


def _read_notice(keys: _Keys) -> Notice:
    after = keys.take("after", _state(NO_STATE), None)
    return Notice(
        cast(NoticeKind, keys.take("notice", _one_of(*get_args(NoticeKind)))),
        keys.take("id", _str),
        keys.take("known", _bool, True),
        keys.take("before", _state(after or NO_STATE), None),
        after,
    )


def _read_pause(keys: _Keys) -> Pause:
    mode: Literal["new", "all", "none"] = keys.take("pause", _one_of("new", "all", "none"))
    return Pause(None if mode == "none" else mode)


_OTHERS: dict[str, tuple[Callable[[_Keys], Record], tuple[str, ...]]] = {
    "idle": (lambda keys: Idle(keys.take("idle", _read_lock)), ("idle",)),
    "update": (_read_update, ("update", "tokens", "finished")),
    "accepted": (
        lambda keys: Accepted(keys.take("accepted", _str), keys.take("num_prompt", _int), keys.take("limit", _int)),
        ("accepted", "num_prompt", "limit"),
    ),
    "refused": (
        lambda keys: Refused(keys.take("refused", _str), keys.take("num_prompt", _int)),
        ("refused", "num_prompt"),
    ),
    "notice": (_read_notice, ("notice", "id", "known", "before", "after")),
    "pause": (_read_pause, ("pause",)),
    "reset": (lambda keys: Reset(tuple(keys.take("reset", _strs))), ("reset",)),
    "crashed": (lambda keys: Crashed(keys.take("crashed", _str)), ("crashed",)),
}


def _read_record(packed: object, config: Config) -> Record:
    if isinstance(packed, dict):
        if "step" in packed:
            return _read_step(packed, config)
        for name, (read, known) in _OTHERS.items():
            if name in packed:
                keys = _Keys(packed, name)
                record = read(keys)
                keys.done(known)
                return record
    raise _Wrong(f"{_show(packed)} is no record: it has none of step, {', '.join(_OTHERS)}")
