"""Theorems about load balancing, for all values.

The choice is a fold over the engines, so one turn of it, from any numbers, speaks for any number of them. What a send
or a report does to the spread of the loads shows on the engine that it is about and any other one, since the rest stay
as they are. So most of this is for all sizes; whole choices are run besides, over up to `MOST` engines.

The bounds on the spread, where a send costs `WAITING_WEIGHT`, or its prompt tokens where tokens are compared:

- A send leaves the spread of the counted loads at most as large as it was, or as one send. So without reports it is
  never more than one send.
- With reports in any order, however late, no engine is ever more than one send (the largest so far) above the *peak*:
  the highest load that the least loaded engine had when a request was sent. Each request that was preempted and waits
  there again may add `WAITING_WEIGHT` - 1. A bound without a peak cannot hold: all requests of one engine can end.

The reports are taken to be honest: an engine holds no more than it held at the report before and has read since, and
what waits there has just been read, waited before, or was preempted. So nobody else sends to it, and the bounds are
about sends to the engine that `choose` returns, not about sessions bound to one.
"""

from dataclasses import replace
from typing import Any

from onbeat_proofs.prove.states import Numbers
from onbeat_proofs.prove.theorem import PathVerdict, Theorem
from onbeat_spec.balance import (
    WAITING_WEIGHT,
    Candidate,
    EngineLoad,
    Fleet,
    LoadReport,
    choose,
    distance,
    is_newer,
    joined,
    paused,
    place,
    preferred,
    removed,
    reported,
    score,
    sent,
    serves,
)
from onbeat_spec.cadence import advance
from onbeat_spec.errors import RequestRefused
from onbeat_spec.policy import Policy

MOST = 4
"""Engines of a whole choice."""
SEVERAL = f"for all values, up to {MOST} engines"
PREEMPTED = WAITING_WEIGHT - 1
"""What a request that waits again weighs more than when it ran."""


def _report(numbers: Numbers, name: str) -> LoadReport:
    fields = ("epoch", "number", "waiting", "running", "tokens", "read", "read_tokens")
    return LoadReport(*[numbers.int(f"{name} {field}", 0) for field in fields])


def _engine(numbers: Numbers, name: str, shut: bool = False) -> EngineLoad:
    """Return an engine in any state; one that serves unless it may be shut."""
    report = _report(numbers, name)
    engine = EngineLoad(
        report,
        report.read + numbers.int(f"{name} unread", 0),
        report.read_tokens + numbers.int(f"{name} unread_tokens", 0),
    )
    if shut:
        state = numbers.pick(f"{name} is", ("serving", "paused", "gone"))
        engine = replace(engine, paused=state == "paused", gone=state == "gone")
    return engine


def _fleet(numbers: Numbers, shut: bool = False, least: int = 1) -> Fleet:
    """Return up to `MOST` engines, each in any state, and any turn."""
    count = numbers.pick("engines", tuple(range(least, MOST + 1)))
    engines = tuple(_engine(numbers, f"engine{index}", shut) for index in range(count))
    turn = numbers.int("turn", 0)
    numbers.assume(turn < count)
    return Fleet(engines, turn, numbers.pick("by_tokens", (False, True)))


def _cost(fleet: Fleet, tokens: Any) -> Any:
    """What a request of so many prompt tokens adds to a score."""
    return tokens if fleet.by_tokens else WAITING_WEIGHT


# --- The choice ------------------------------------------------------------------------------------------------------


def _ahead(one: Candidate, other: Candidate) -> bool:
    return one.score < other.score or (one.score == other.score and one.away < other.away)


def choice_turn(numbers: Numbers, policy: Policy) -> PathVerdict:
    """If nobody seen so far is ahead of the best one, nobody is after another turn of the scan."""
    seen, best, other = (
        Candidate(*[numbers.int(f"{name} {field}", 0) for field in Candidate._fields])
        for name in ("seen", "best", "other")
    )
    numbers.assume(not _ahead(seen, best))
    kept = preferred(best, other)
    if kept is not best and kept is not other:
        return PathVerdict("an engine was chosen that is not there", True)
    if _ahead(seen, kept) or _ahead(other, kept) or preferred(None, other) is not other:
        return PathVerdict("an engine is ahead of the one that was preferred", True)
    return PathVerdict(None, True)


def choice(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Chosen is one that serves, none of these has less load, and of those with the same it is the first."""
    fleet = _fleet(numbers, shut=True)
    chosen, count = choose(fleet), len(fleet.engines)
    open_ = [index for index, engine in enumerate(fleet.engines) if serves(engine)]
    if chosen is None:
        return PathVerdict("an engine serves and none was chosen" if open_ else None, False)
    if chosen not in open_:
        return PathVerdict(f"engine {chosen} was chosen and does not serve", True)
    load, away = score(fleet.engines[chosen], fleet.by_tokens), distance(chosen, fleet.turn, count)
    for index in open_:
        other = score(fleet.engines[index], fleet.by_tokens)
        if other < load or (other == load and distance(index, fleet.turn, count) < away):
            return PathVerdict(f"engine {chosen} was chosen and engine {index} is ahead of it", True)
    return PathVerdict(None, len(open_) > 1)


def nobody(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A request is refused exactly if no engine serves, and else counted at the chosen engine and nowhere else."""
    fleet, tokens = _fleet(numbers, shut=True), numbers.int("prompt", 1)
    try:
        chosen, after = place(fleet, tokens)
    except RequestRefused:
        return PathVerdict("refused although an engine serves" if any(map(serves, fleet.engines)) else None, True)
    if not serves(fleet.engines[chosen]):
        return PathVerdict("a request was sent to an engine that does not serve", True)
    for index, (engine, was) in enumerate(zip(after.engines, fleet.engines, strict=True)):
        added = _cost(fleet, tokens) if index == chosen else 0
        if score(engine, fleet.by_tokens) != score(was, fleet.by_tokens) + added:
            return PathVerdict(f"a request sent to engine {chosen} adds something else to engine {index}", True)
    return PathVerdict(None, True)


# --- Ties ------------------------------------------------------------------------------------------------------------


def _three(numbers: Numbers) -> tuple[Any, Any, Any, Any, Any]:
    """Return any number of engines, any turn, and any three of them, which may be the same."""
    count = numbers.int("count", 1)
    turn, one, two, three = (numbers.int(name, 0) for name in ("turn", "one", "two", "three"))
    for value in (turn, one, two, three):
        numbers.assume(value < count)
    return count, turn, one, two, three


def places_differ(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Distances are 0 .. count - 1, that of the turn is 0, and no two engines have the same."""
    count, turn, one, two, _ = _three(numbers)
    away, other = distance(one, turn, count), distance(two, turn, count)
    if not 0 <= away < count or (away == 0) != (one == turn):
        return PathVerdict("a distance is out of bounds", True)
    if (away == other) != (one == two):
        return PathVerdict("two engines are as near", True)
    return PathVerdict(None, bool(one != two))


def chosen_goes_last(numbers: Numbers, policy: Policy) -> PathVerdict:
    """After a send its engine is the last of any tie."""
    count, _, one, two, _ = _three(numbers)
    turn = advance(one, count)
    if distance(one, turn, count) != count - 1:
        return PathVerdict("the engine that was sent to is not the last", True)
    return PathVerdict(None, bool(one != two))


def order_of_ties(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Of two engines, the one that is nearer stays nearer until one of a tie with it, and as near, is sent to.

    With `chosen_goes_last`: while a tie lasts, nobody in it is chosen twice before everybody in it is chosen once.
    """
    count, turn, one, two, three = _three(numbers)
    numbers.assume(distance(one, turn, count) < distance(two, turn, count))
    numbers.assume(distance(two, turn, count) < distance(three, turn, count))
    after = advance(one, count)
    if not distance(two, after, count) < distance(three, after, count):
        return PathVerdict("an engine overtakes another in a tie", True)
    return PathVerdict(None, True)


def rounds(numbers: Numbers, policy: Policy) -> PathVerdict:
    """While all loads are the same, as many sends as engines go to all of them."""
    fleet = _fleet(numbers)
    start = Fleet((fleet.engines[0],) * len(fleet.engines), fleet.turn, fleet.by_tokens)
    after, chosen = start, []
    for _ in fleet.engines:
        index, after = place(after, numbers.int("prompt", 1))
        chosen.append(index)
        after = replace(start, turn=after.turn)  # the reports are back: all loads are what they were
    if sorted(chosen) != list(range(len(fleet.engines))):
        return PathVerdict(f"of equal engines, {chosen} were chosen", True)
    return PathVerdict(None, len(chosen) > 1)


# --- The spread ------------------------------------------------------------------------------------------------------


def spread_of_two(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A send to an engine of least load keeps the difference to any other within any bound of at least one send."""
    fleet = Fleet(
        (_engine(numbers, "chosen"), _engine(numbers, "other")), by_tokens=numbers.pick("by_tokens", (False, True))
    )
    tokens, bound = numbers.int("prompt", 0), numbers.int("bound", 0)
    numbers.assume(bound >= _cost(fleet, tokens))
    low, high = (score(engine, fleet.by_tokens) for engine in fleet.engines)
    numbers.assume(low <= high)
    numbers.assume(high - low <= bound)
    low, high = (score(engine, fleet.by_tokens) for engine in sent(fleet, 0, tokens).engines)
    wider = not -bound <= high - low <= bound
    return PathVerdict("a send took the difference of two loads beyond the bound" if wider else None, True)


def spread(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A request that is placed keeps the spread of all loads within any bound of at least one send."""
    fleet = _fleet(numbers, least=2)
    tokens, bound = numbers.int("prompt", 0), numbers.int("bound", 0)
    numbers.assume(bound >= _cost(fleet, tokens))
    loads = [score(engine, fleet.by_tokens) for engine in fleet.engines]
    for one in loads:
        for other in loads:
            numbers.assume(one - other <= bound)
    loads = [score(engine, fleet.by_tokens) for engine in place(fleet, tokens)[1].engines]
    if any(one - other > bound for one in loads for other in loads):
        return PathVerdict("a request took the spread beyond the bound", True)
    return PathVerdict(None, True)


def _below_peak(numbers: Numbers, fleet: Fleet, engine: EngineLoad, evicted: Any, peak: Any) -> Any:
    """Whether an engine is at most one send, and what preempted requests add, above the peak."""
    above = score(engine, fleet.by_tokens) - peak
    if fleet.by_tokens:
        return above <= numbers.int("largest", 0)
    return above <= WAITING_WEIGHT + PREEMPTED * evicted


def peak_send(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A send keeps every engine at most one send above the peak."""
    fleet = Fleet((_engine(numbers, "chosen"),), by_tokens=numbers.pick("by_tokens", (False, True)))
    tokens, peak, evicted = numbers.int("prompt", 0), numbers.int("peak", 0), numbers.int("evicted", 0)
    if fleet.by_tokens:
        numbers.assume(tokens <= numbers.int("largest", 0))
    numbers.assume(_below_peak(numbers, fleet, fleet.engines[0], evicted, peak))
    load = score(fleet.engines[0], fleet.by_tokens)  # that of the least loaded, since it was chosen
    after = load if load > peak else peak
    below = _below_peak(numbers, fleet, sent(fleet, 0, tokens).engines[0], evicted, after)
    return PathVerdict(None if below else "the engine that was sent to is more than one send above the peak", True)


def peak_report(numbers: Numbers, policy: Policy) -> PathVerdict:
    """An honest report keeps its engine at most one send above the peak, whenever it comes."""
    by_tokens = numbers.pick("by_tokens", (False, True))
    engine, now, peak = _engine(numbers, "engine"), _report(numbers, "report"), numbers.int("peak", 0)
    last, fleet = engine.report, Fleet((engine,), 0, by_tokens)
    evicted, evicted_now = numbers.int("evicted", 0), numbers.int("evicted now", 0)
    numbers.assume(evicted <= last.waiting)
    numbers.assume(evicted_now <= now.waiting)
    numbers.assume(_below_peak(numbers, fleet, engine, evicted, peak))
    came = now.read - last.read
    if is_newer(now, last):
        numbers.assume(came >= 0)
        numbers.assume(now.read <= engine.sent)
        numbers.assume(now.read_tokens <= engine.sent_tokens)
        numbers.assume(now.waiting + now.running <= last.waiting + last.running + came)
        numbers.assume(now.waiting - evicted_now <= last.waiting - evicted + came)
        numbers.assume(now.tokens <= last.tokens + now.read_tokens - last.read_tokens)
    after = reported(fleet, 0, now).engines[0]
    taken = after is not engine
    below = _below_peak(numbers, fleet, after, evicted_now if taken else evicted, peak)
    return PathVerdict(None if below else "an honest report took its engine beyond one send above the peak", taken)


def peak_others(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Who pauses, resumes or is removed has the load that it had; who joins has none."""
    by_tokens = numbers.pick("by_tokens", (False, True))
    engine = _engine(numbers, "engine", shut=True)
    fleet = Fleet((engine,), 0, by_tokens)
    what = numbers.pick("what", ("pause", "resume", "remove", "join"))
    match what:
        case "join":
            after = joined(fleet, 0, numbers.int("epoch", 0))
        case "remove":
            after = removed(fleet, 0)
        case _:
            after = paused(fleet, 0, what == "pause")
    load = score(after.engines[0], by_tokens)
    if load != (0 if what == "join" else score(engine, by_tokens)):
        return PathVerdict(f"{what} changes a load", True)
    right = {"join": True, "remove": False, "pause": False, "resume": not engine.gone}[what]
    return PathVerdict(None if serves(after.engines[0]) == right else f"after {what} the wrong engines serve", True)


# --- The order in which messages come --------------------------------------------------------------------------------


def late_report(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A report written before a send may come before or after it: the same is known then."""
    fleet, report = Fleet((_engine(numbers, "engine", True),)), _report(numbers, "report")
    tokens = numbers.int("prompt", 0)
    before = sent(reported(fleet, 0, report), 0, tokens)
    after = reported(sent(fleet, 0, tokens), 0, report)
    return PathVerdict(None if before == after else "a send is lost to a report that was written before it", True)


def order_of_reports(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Two reports of an engine may come in either order, and more than once: the same is known then, the newer one.

    What an engine that is gone reported changes nothing.
    """
    fleet = Fleet((_engine(numbers, "engine", True),))
    one, two = _report(numbers, "one"), _report(numbers, "two")
    newer = is_newer(two, one)
    numbers.assume(newer)
    ahead = reported(reported(fleet, 0, one), 0, two)
    behind = reported(reported(fleet, 0, two), 0, one)
    if ahead != behind or reported(ahead, 0, two) is not ahead or is_newer(one, two):
        return PathVerdict("what is known depends on the order of the reports", True)
    if fleet.engines[0].gone:
        return PathVerdict(None if ahead is fleet else "an engine that is gone reports", False)
    return PathVerdict(None, True)


def order_per_engine(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Whether a report is taken does not depend on what other engines reported."""
    fleet = Fleet((_engine(numbers, "engine0", True), _engine(numbers, "engine1", True)))
    one, two = _report(numbers, "one"), _report(numbers, "two")
    both = reported(reported(fleet, 0, one), 1, two)
    alone = reported(fleet, 0, one).engines[0], reported(fleet, 1, two).engines[1]
    return PathVerdict(None if both.engines == alone else "an engine's report depends on another engine's", True)


THEOREMS = (
    Theorem("balance/choice-turn", "One turn of the scan keeps the least loaded, the first of equals.", choice_turn),
    Theorem("balance/choice", "The least loaded of those that serve is chosen, the first of equals.", choice, SEVERAL),
    Theorem("balance/nobody", "A request is refused exactly if no engine serves, else counted once.", nobody, SEVERAL),
    Theorem("balance/ties-distance", "No two engines are as far behind the turn.", places_differ),
    Theorem("balance/ties-last", "After a send its engine is the last of any tie.", chosen_goes_last),
    Theorem("balance/ties-order", "Nobody overtakes in a tie.", order_of_ties),
    Theorem("balance/ties-round", "While all are equal, as many sends as engines go to all.", rounds, SEVERAL),
    Theorem("balance/spread-pair", "A send keeps any two loads within a bound of one send or more.", spread_of_two),
    Theorem("balance/spread", "A choice keeps all loads within a bound of one send or more.", spread, SEVERAL),
    Theorem("balance/peak-send", "A send keeps each load at most one send above the peak.", peak_send),
    Theorem("balance/peak-report", "So does an honest report, in any order and however late.", peak_report),
    Theorem("balance/peak-others", "Pause, resume and removal change no load; who joins has none.", peak_others),
    Theorem("balance/reports-late", "A report forgets no send that is newer.", late_report),
    Theorem("balance/reports-order", "The newest report counts, in whatever order they come.", order_of_reports),
    Theorem("balance/reports-engine", "The order of reports is each engine's own.", order_per_engine),
)
