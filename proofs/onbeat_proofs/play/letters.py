"""Operations that name no request: "abort the oldest" becomes an operation only when a driver says who that is.

A search is made of such letters. In a state where a letter means nothing (nobody to abort, a step in flight too many)
it makes no operation.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from onbeat_proofs.play.driver import Driver
from onbeat_proofs.play.fake_model import Track
from onbeat_proofs.scenarios.operations import (
    Abort,
    Add,
    Deliver,
    Ineligible,
    Op,
    Pause,
    RemoteDone,
    RemoteFailed,
    ResetPrefixCache,
    Resume,
    Schedule,
    Stop,
)
from onbeat_reference.request import Request
from onbeat_spec.records import Place

Letter = Callable[[Driver], Op | None]
IDS = "abcdefghijklmnopqrstuvwxyz"


# --- Who there is ----------------------------------------------------------------------------------------------------


def latest(driver: Driver) -> Iterator[Track]:
    """Yield the latest request accepted under each id."""
    for tracks in driver.tracks.values():
        if tracks:
            yield tracks[-1]


def live(driver: Driver) -> list[Track]:
    """Return the requests that have not ended, oldest first."""
    tracks = [track for track in latest(driver) if track.request.place is not Place.FINISHED]
    return sorted(tracks, key=_number)


def last_ended(driver: Driver) -> Track | None:
    """Return, of the requests that have ended, the one that came last."""
    gone = (t for tracks in driver.tracks.values() for t in tracks if t.request.place is Place.FINISHED)
    return max(gone, key=_number, default=None)


def loading(driver: Driver) -> list[Track]:
    """Return the requests whose remote load is in flight, those that ended meanwhile included, oldest first."""
    orphans = driver.scheduler.orphans
    tracks = [t for t in latest(driver) if t.request.place is Place.PARKED or t.request in orphans]
    return sorted(tracks, key=_number)


def free_id(driver: Driver) -> str | None:
    """Return the first id that nobody uses; ids of those that ended are used again. None: all are in use."""
    taken = {track.request.id for track in live(driver)} | {request.id for request in driver.scheduler.orphans}
    return next((id for id in IDS if id not in taken), None)


def _number(track: Track) -> int:
    return track.number


def _at(tracks: list[Track], index: int) -> str | None:
    """Id of the request at an index; None if there is none."""
    return tracks[index].request.id if tracks and -len(tracks) <= index < len(tracks) else None


# --- The letters -----------------------------------------------------------------------------------------------------


def add(template: Add, most: int = 3) -> Letter:
    """A request comes, under a free id, while fewer than `most` are live."""

    def make(driver: Driver) -> Op | None:
        id = free_id(driver) if len(live(driver)) < most else None
        return None if id is None else replace(template, id=id)

    return make


def again(driver: Driver) -> Op | None:
    """A request comes under an id that is in use."""
    tracks = live(driver)
    return Add(tracks[0].request.id, 2, 2) if tracks else None


def schedule(throttle: bool | None, accept: int = 0) -> Letter:
    """A step, if one more may be in flight; `accept` drafts of each request turn out to be right."""

    def make(driver: Driver) -> Op | None:
        if driver.in_flight >= driver.config.async_depth:
            return None
        return Schedule(throttle, accept={track.request.id: accept for track in live(driver)} if accept else None)

    return make


def deliver(driver: Driver) -> Op | None:
    """The outputs of the oldest step in flight come back."""
    return Deliver(1) if driver.in_flight else None


def abort(index: int) -> Letter:
    """The client of a live request goes away; 0 is the oldest, -1 the newest of two or more."""

    def make(driver: Driver) -> Op | None:
        tracks = live(driver)
        id = _at(tracks, index) if index >= 0 or len(tracks) > 1 else None
        return None if id is None else Abort(id)

    return make


def abort_late(driver: Driver) -> Op | None:
    """An abort for the request that ended last; its id may be in use again."""
    track = last_ended(driver)
    if track is None:
        return None
    return Abort(track.request.id, driver.tracks[track.request.id].index(track))


def stop(driver: Driver) -> Op | None:
    """The oldest request samples a stop token next."""
    track = next((track for track in live(driver) if not track.stopping), None)
    return None if track is None else Stop(track.request.id)


def landed(index: int) -> Letter:
    """A load lands; 0 is that of the oldest request, -1 that of the newest of two or more."""

    def make(driver: Driver) -> Op | None:
        tracks = loading(driver)
        id = _at(tracks, index) if index >= 0 or len(tracks) > 1 else None
        return None if id is None else RemoteDone(id)

    return make


def landed_late(driver: Driver) -> Op | None:
    """A notice that a load has landed comes for a request that is not loading: a live one, or one that has ended."""
    still = loading(driver)
    track = next((track for track in reversed(live(driver)) if track not in still), last_ended(driver))
    return None if track is None or track in still else RemoteDone(track.request.id)


def within_a_step(driver: Driver, request: Request) -> bool:
    """Whether a request was admitted with a load within a step whose outputs are not back."""
    return any(request in flight.loads for flight in driver.scheduler.in_flight)


def failed(from_block: int) -> Letter:
    """A load of the oldest such request fails, be it one in flight or one within a step."""

    def make(driver: Driver) -> Op | None:
        tracks = loading(driver) or [track for track in live(driver) if within_a_step(driver, track.request)]
        id = _at(tracks, 0)
        return None if id is None else RemoteFailed(id, from_block)

    return make


def pause(mode: Literal["new", "all"]) -> Letter:
    """Admission, or everything, stops."""
    op = Pause(mode)
    return lambda driver: op if driver.scheduler.paused != mode else None


def resume(driver: Driver) -> Op | None:
    """A pause ends."""
    return Resume() if driver.scheduler.paused else None


def reset(driver: Driver) -> Op | None:
    """Every cached block is forgotten, and whatever runs is preempted."""
    return ResetPrefixCache()


def ineligible(index: int, steps: int) -> Letter:
    """A live request cannot run in the next steps."""

    def make(driver: Driver) -> Op | None:
        for track in live(driver)[index : index + 1]:
            if track.request.eligible_at < driver.scheduler.num_steps + steps:
                return Ineligible(track.request.id, steps)
        return None

    return make
