"""Load balancing: which engine of a data-parallel group gets the next request.

Whoever accepts requests keeps one `Fleet`: what each engine last said of itself, and how much was sent to it. What is
sent to an engine arrives in order, so two counts tell which of it a report knows: those *sent*, and those *read* when
the report was written. What is sent and not read is in flight, and counts on top of the report, however old that is.
There is no list of sends, and no clock.

Pure functions over frozen values, ints and bools only, no value used as an index: they can be run symbolically.

Sources: vLLM's balancer (`DPLBAsyncMPClient`), and the public cases B84 and B86 to B89.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from onbeat_spec.cadence import advance  # a turn goes round as a phase does
from onbeat_spec.errors import RequestRefused

WAITING_WEIGHT = 4
"""How many running requests a waiting one weighs: waiting * 4 + running in `DPLBAsyncMPClient` of vLLM 0.24.0 and
0.25.0. (In 0.33.0 a waiting one weighs more only where KV cache usage is above one half.)"""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What an engine says of itself. All zero: nothing yet, which counts as no load (B84).

    Attributes:
        epoch: grows with whatever makes `number` start anew.
        number: grows with every report of an epoch, from 1.
        waiting, running: requests that the engine holds.
        tokens: prompt tokens of these requests.
        read, read_tokens: requests, and their prompt tokens, that the engine had read of what this fleet's owner sent.
    """

    epoch: int = 0
    number: int = 0
    waiting: int = 0
    running: int = 0
    tokens: int = 0
    read: int = 0
    read_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One engine, as the balancer knows it.

    Attributes:
        report: the newest that came.
        sent, sent_tokens: requests, and their prompt tokens, sent to it so far.
        paused: it keeps its requests and takes no new ones.
        gone: it died or was removed.
    """

    report: LoadReport = LoadReport()
    sent: int = 0
    sent_tokens: int = 0
    paused: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Fleet:
    """All engines of a group.

    Attributes:
        turn: the engine that wins a tie if it takes part in it, else the next one round; 0 .. len(engines) - 1.
        by_tokens: compare outstanding prompt tokens instead of requests (B87).
    """

    engines: tuple[EngineLoad, ...]
    turn: int = 0
    by_tokens: bool = False


class Candidate(NamedTuple):
    """An engine that may be chosen: its counted load, how far behind `turn` it is, and which it is."""

    score: int
    away: int
    engine: int


def fleet_of(count: int, *, turn: int = 0, by_tokens: bool = False) -> Fleet:
    """Return `count` engines without load. Of several front ends each should begin with another `turn`, as in vLLM."""
    return Fleet((EngineLoad(),) * count, turn, by_tokens)


# --- The load --------------------------------------------------------------------------------------------------------


def unread(engine: EngineLoad) -> int:
    """Requests in flight: sent, and not known to the report (B86)."""
    return engine.sent - engine.report.read


def counted(engine: EngineLoad) -> int:
    """Requests that the engine holds or will: reported and in flight."""
    return engine.report.waiting + engine.report.running + unread(engine)


def score(engine: EngineLoad, by_tokens: bool) -> int:
    """Counted load: outstanding prompt tokens (B87), or requests, of which those waiting or in flight weigh more."""
    if by_tokens:
        return engine.report.tokens + engine.sent_tokens - engine.report.read_tokens
    return (engine.report.waiting + unread(engine)) * WAITING_WEIGHT + engine.report.running


# --- The choice ------------------------------------------------------------------------------------------------------


def serves(engine: EngineLoad) -> bool:
    """Whether it may be sent a request."""
    return not engine.gone and not engine.paused


def distance(engine: int, turn: int, count: int) -> int:
    """Places from `turn` on to an engine, going round: 0 .. count - 1, another for each engine."""
    if engine < turn:
        return engine - turn + count
    return engine - turn


def preferred(best: Candidate | None, other: Candidate) -> Candidate:
    """Return the one with less load; of equals, the one nearer behind `turn`."""
    if best is None or other.score < best.score:
        return other
    if other.score == best.score and other.away < best.away:
        return other
    return best


def choose(fleet: Fleet) -> int | None:
    """Return which engine gets the next request; None: there is none that serves."""
    best = None
    for index, engine in enumerate(fleet.engines):
        if serves(engine):
            away = distance(index, fleet.turn, len(fleet.engines))
            best = preferred(best, Candidate(score(engine, fleet.by_tokens), away, index))
    return None if best is None else best.engine


# --- What happens ----------------------------------------------------------------------------------------------------


def place(fleet: Fleet, tokens: int) -> tuple[int, Fleet]:
    """Choose an engine for a request and count it there.

    Args:
        tokens: of its prompt.

    Raises:
        RequestRefused: no engine serves; the message says whether one is paused, so that trying again may help.
    """
    chosen = choose(fleet)
    if chosen is None:
        paused = sum(engine.paused and not engine.gone for engine in fleet.engines)
        gone = len(fleet.engines) - paused
        advice = "send it again after resume" if paused else "start engines, and send it again"
        raise RequestRefused(f"no engine takes requests: {paused} paused, {gone} dead or removed; {advice}")
    return chosen, sent(fleet, chosen, tokens)


def sent(fleet: Fleet, index: int, tokens: int) -> Fleet:
    """Count a request that goes to an engine, chosen or not (a session may be bound to one); the turn passes on."""
    engine = fleet.engines[index]
    engine = replace(engine, sent=engine.sent + 1, sent_tokens=engine.sent_tokens + tokens)
    return replace(_with(fleet, index, engine), turn=advance(index, len(fleet.engines)))


def is_newer(report: LoadReport, than: LoadReport) -> bool:
    """Whether a report is newer than another one of the same engine; those of others do not matter (B89)."""
    return (report.epoch, report.number) > (than.epoch, than.number)


def reported(fleet: Fleet, index: int, report: LoadReport) -> Fleet:
    """Take an engine's report. One that is not newer than the last, or from an engine that is gone, changes nothing."""
    engine = fleet.engines[index]
    if engine.gone or not is_newer(report, engine.report):
        return fleet
    return _with(fleet, index, replace(engine, report=report))


def publishes(last: LoadReport, now: LoadReport) -> bool:
    """Whether an engine sends a report: whenever what it would say has changed, in every mode (B88).

    The order of reports, `epoch` and `number`, is no reason to send one.
    """
    return replace(now, epoch=last.epoch, number=last.number) != last


def paused(fleet: Fleet, index: int, is_paused: bool) -> Fleet:
    """Pause or resume an engine; what is counted there stays."""
    return _with(fleet, index, replace(fleet.engines[index], paused=is_paused))


def removed(fleet: Fleet, index: int) -> Fleet:
    """Take an engine that died, or leaves, out of the choice; the others keep their places."""
    return _with(fleet, index, replace(fleet.engines[index], gone=True))


def joined(fleet: Fleet, index: int, epoch: int) -> Fleet:
    """Put a new engine in a place: no load, nothing sent. Reports of epochs before its own are of the one before it."""
    return _with(fleet, index, EngineLoad(LoadReport(epoch)))


def _with(fleet: Fleet, index: int, engine: EngineLoad) -> Fleet:
    return replace(fleet, engines=(*fleet.engines[:index], engine, *fleet.engines[index + 1 :]))
