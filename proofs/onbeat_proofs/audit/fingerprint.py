"""When two states of a search have the same future.

Ids, arrival numbers, step numbers and block ids are only names: a scheduler compares them and does nothing else with
them. So they are replaced by places in an order (or by distances from now), and states that differ in names alone
count as one. That is sound for the reference and for what is derived from it without state of its own. Any other class
is told apart by every attribute it has, names included; that costs time, and nothing else.
"""

import marshal
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from hashlib import blake2b
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any
from uuid import uuid4

from onbeat_proofs.play.driver import Driver
from onbeat_proofs.play.fake_model import Track
from onbeat_proofs.play.letters import last_ended
from onbeat_reference import BlockPool, CountingPool, Request, Scheduler
from onbeat_reference.lifecycle import InFlight
from onbeat_spec.config import Config
from onbeat_spec.records import Step

NUMBERS = frozenset({"num_steps", "index", "_arrivals"})
"""Attributes that code may use to count by; a class whose own code names one of them keeps its numbers."""
_NAMES = frozenset({"id", "arrival", "tokens", "hashes", "hits", "blocks", "stop_token_ids"})
_OTHER = frozenset({"eligible_at", "load_deadline", "place", "finish_reason"})
_SLOTS = tuple(
    slot for base in Request.__mro__[-2::-1] for slot in vars(base)["__slots__"] if slot not in _NAMES | _OTHER
)
_facts = attrgetter(*_SLOTS)
_KNOWN = frozenset(vars(Scheduler(Config())))
_POOLS = {BlockPool: frozenset(vars(BlockPool(1, 1))), CountingPool: frozenset(vars(CountingPool(1, 1)))}
_APART = ("config", "policy", "pool", "waiting", "parked", "running", "requests", "orphans", "in_flight", "num_steps")
"""Attributes of a scheduler that do not change, or are looked at one by one."""
_PLAIN = tuple(sorted(_KNOWN - {*_APART, "_arrivals"}))
_plain = attrgetter(*_PLAIN)
_STEP_MAPS = frozenset({"scheduled", "drafts", "evictions"})
_step_lists = attrgetter(*(f.name for f in fields(Step) if f.default_factory is list and f.name not in _STEP_MAPS))
_step_flags = attrgetter(*(f.name for f in fields(Step) if f.default_factory is MISSING and f.name != "index"))

Fingerprint = Callable[[Driver], bytes]


def fingerprint_for(driver: Driver, late: bool = False) -> Fingerprint:
    """Choose how the states of a search are told apart.

    Args:
        driver: its first state.
        late: the search speaks of requests that have ended.
    """
    scheduler = driver.scheduler
    if driver.by_itself is not None:
        return lambda driver: _of_another_family(driver, late)
    names_only = (
        isinstance(scheduler, Scheduler)
        and vars(scheduler).keys() == _KNOWN
        and vars(scheduler.pool).keys() == _POOLS.get(type(scheduler.pool))
        and not NUMBERS & set(_named(type(scheduler)))
    )
    if not names_only:
        return _told_apart
    size = len(vars(scheduler)), len(vars(scheduler.pool))

    def fingerprint(driver: Driver) -> bytes:
        scheduler = driver.scheduler
        if (len(vars(scheduler)), len(vars(scheduler.pool))) == size:
            with suppress(ValueError):  # a value that is no number, text, or list of them
                return _digest(marshal.dumps(_shape(driver, late), 2))
        return _told_apart(driver)

    return fingerprint


def _of_another_family(driver: Driver, late: bool) -> bytes:
    """Digest the state of a scheduler that knows itself what its future depends on."""
    scheduler, family = driver.scheduler, driver.by_itself
    assert family is not None
    names = {request.id: place for place, request in enumerate((*scheduler.requests.values(), *scheduler.orphans))}
    places = {id(track.request): names.get(track.request.id, -1) for ts in driver.tracks.values() for track in ts[-1:]}
    try:
        value: Any = (
            family.shape(names),
            [_told(driver.tracks[id][-1]) for id in names],
            [_samples(flight, names, places) for flight in driver._model.flights],
            [_step(flight.step, names, scheduler.num_steps) for flight in scheduler.in_flight],
            _watched(driver, names, scheduler.num_steps),
            (*vars(driver._clock).values(), driver.ended),
            _ended(driver, names) if late else None,
        )
        return _digest(marshal.dumps(value, 2))
    except ValueError:  # something that cannot be compared
        return uuid4().bytes


def _told(track: Track) -> tuple[object, ...]:
    return track.delivered, track.awaited, track.stopping, track.limit, track.prompt, min(track.num_preemptions, 1)


def _told_apart(driver: Driver) -> bytes:
    try:
        return _digest(pickle.dumps(_everything(driver), pickle.HIGHEST_PROTOCOL))
    except (pickle.PicklingError, TypeError, AttributeError):
        return uuid4().bytes  # nothing is known to be equal to it


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _named(cls: type) -> Iterator[str]:
    """Yield the attributes that code beyond the reference's own names."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in ("onbeat_reference", "builtins"):
            continue
        for value in vars(base).values():
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                yield from _names_in(function.__code__)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


# --- Everything ------------------------------------------------------------------------------------------------------


def _everything(driver: Driver) -> object:
    scheduler, monitor = driver.scheduler, driver.monitor
    own = {name: value for name, value in vars(scheduler).items() if name not in ("config", "policy")}
    # A set has no order of its own.
    flights = [
        (flight.step, flight.sampling, flight.prefilled, flight.loads, sorted(r.arrival for r in flight.preempted))
        if type(flight) is InFlight
        else flight
        for flight in own.pop("in_flight")
    ]
    watched = [item for item in vars(monitor).items() if item[0] not in ("config", "violations")]
    return own, flights, watched, vars(driver._model), vars(driver._clock), driver.tracks, driver.ended


# --- All but the names -----------------------------------------------------------------------------------------------


def _shape(driver: Driver, late: bool) -> Any:
    scheduler = driver.scheduler
    now, cached = scheduler.num_steps, scheduler.config.enable_prefix_caching
    requests = [*scheduler.requests.values(), *scheduler.orphans]
    names = {request.id: place for place, request in enumerate(requests)}
    places = {id(request): place for place, request in enumerate(requests)}
    pool: Any = scheduler.pool
    return (
        [_request(request, driver.tracks[request.id][-1], now, cached) for request in requests],
        [[places.get(id(request), -1) for request in listed] for listed in _lists(scheduler)],
        _plain(scheduler),
        (pool.free, pool.promised),
        [_flight(flight, names, places, now) for flight in scheduler.in_flight],
        [_samples(flight, names, places) for flight in driver._model.flights],
        _watched(driver, names, now),
        (*vars(driver._clock).values(), driver.ended),
        (pool.refs, pool._blank, list(pool._idle), sorted(pool._by_hash.items())) if cached else None,
        _ended(driver, names) if late else None,
    )


def _lists(scheduler: Any) -> tuple[list[Request], list[Request], list[Request]]:
    return scheduler.waiting, scheduler.running, scheduler.parked


def _request(request: Request, track: Track, now: int, cached: bool) -> object:
    return (
        _facts(request),
        request.place.value,
        request.finish_reason and request.finish_reason.value,
        max(request.eligible_at - now, 0),
        max(request.load_deadline - now, -1) if request.load_deadline else None,
        (track.delivered, track.awaited, track.stopping, track.num_preemptions, track.request is request),
        (track.number, request.blocks, request.hits, request.hashes) if cached else len(request.blocks),
    )


def _flight(flight: Any, names: Mapping[str, int], places: Mapping[int, int], now: int) -> object:
    return (
        _step(flight.step, names, now),
        [places.get(id(request), -1) for request in flight.sampling],
        [places.get(id(request), -1) for request in flight.prefilled],
        sorted(places.get(id(request), -1) for request in flight.preempted),
        sorted((places.get(id(request), -1), external) for request, external in flight.loads.items()),
    )


def _step(step: Step, names: Mapping[str, int], now: int) -> object:
    return (
        now - step.index,
        _step_flags(step),
        [(names.get(id, -1), tokens) for id, tokens in step.scheduled.items()],
        [(names.get(id, -1), drafts) for id, drafts in step.drafts.items()],
        [[names.get(id, -1) for id in listed] for listed in _step_lists(step)],
        [(names.get(victim, -1), names.get(cause, -1), released) for victim, cause, released in step.evictions],
    )


def _samples(flight: Any, names: Mapping[str, int], places: Mapping[int, int]) -> object:
    return (
        [(places.get(id(track.request), -1), position, drafts) for track, position, drafts in flight.samples],
        [(names.get(id, -1), count) for id, count in flight.accept.items()],
        sorted((places.get(id(track.request), -1), external) for track, external in flight.loads.items()),
    )


def _watched(driver: Driver, names: Mapping[str, int], now: int) -> object:
    monitor = driver.monitor
    assert monitor is not None
    memories = [history.memory(now, monitor.config) for history in monitor.histories.values()]
    return monitor.interval, [
        [(names.get(id, id), count) for id, count in memory.items()] if isinstance(memory, dict) else memory
        for memory in memories
    ]


def _ended(driver: Driver, names: Mapping[str, int]) -> object:
    track = last_ended(driver)
    if track is None:
        return None
    return names.get(track.request.id, -1), _facts(track.request), track.request in driver.scheduler.orphans
