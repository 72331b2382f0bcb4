"""One rank's trace, replayed through the monitor."""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onbeat_proofs.play.history import PlayedStep
from onbeat_proofs.traces.tally import TraceTally
from onbeat_spec.config import Config
from onbeat_spec.monitor import Monitor
from onbeat_spec.records import Facts, LockStep, Member, Place, State, Violation
from onbeat_spec.trace import (
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
from onbeat_spec.trace_read import TraceFile
from onbeat_spec.trace_write import NO_STATE

COMPLETE = "trace-complete"
"""Not of the catalogue: the records of a trace follow each other without a gap."""
MOST_POSITIONS = 8
"""Positions of tokens that a message names."""
MOST_FLIGHTS = 64
"""Steps in flight at once, at most; a pipeline has as many as it has stages."""


class Position(NamedTuple):
    """Where a trace is being read."""

    path: str
    line: int
    rank: int
    step: int


@dataclass(slots=True)
class TraceFinding:
    """A violation in a trace."""

    invariant: str
    message: str
    at: Position
    ids: tuple[str, ...] = ()
    """The requests that the message names: those of its words that are ids in the record."""
    history: list[PlayedStep] = field(default_factory=list)
    """The steps around it, as many as were asked for."""
    due: int = 0
    """Steps of the history still to come."""


class RankReplay:
    """Replays the files of one run of one rank, in order, in memory that does not grow with them.

    Args:
        paths: the files, in the order of their parts.
        tally: counts what was put to the test.
        keep: how many steps before a violation are kept for its table.

    Attributes:
        recent: the latest steps.
    """

    def __init__(self, paths: Sequence[str], tally: TraceTally, keep: int = 0) -> None:
        self.paths = paths
        self.tally = tally
        self.at = Position(paths[0], 1, 0, 0)
        self.recent: deque[PlayedStep] = deque(maxlen=keep or 1)
        self.steps = 0
        self.position = 0
        """Bytes read."""
        self.cut: list[str] = []
        """Files whose last line was cut off."""
        self.gaps: list[str] = []
        """Sentences about records that are not there and that nobody promised."""
        self.last_lock: int | None = None
        self._config = Config()
        self._any_flag = False
        self._monitor = Monitor(self._config)
        self._num_tokens: dict[str, int] = {}
        """Tokens that each live request knows, by what was delivered to it."""
        self._limits: dict[str, int] = {}
        self._flights: deque[tuple[int, frozenset[str]]] = deque()
        self._paused: str | None = None
        self._record: Record | None = None
        self._next = -1

    def members(self) -> Iterator[tuple[int, Member | None]]:
        """Replay; yield after each record its line, and this rank's part in a lock step if it was one."""
        done = 0
        before: Header | None = None
        for path in self.paths:
            file = TraceFile(path)
            try:
                self.at = Position(path, 1, file.header.rank, file.header.next_step)
                self._begin(file.header, before)
                yield 1, None
                for line, record in file:
                    self.at = self.at._replace(line=line)
                    self.position = done + file.position
                    yield line, self._replay(record)
            finally:
                file.close()
            if file.cut:
                self.cut.append(path)
            done += file.position
            before = file.header

    def drain(self) -> list[Violation]:
        """Return what was found since the last call."""
        violations = list(self._monitor.violations)
        self._monitor.violations.clear()
        return violations

    def finding(self, violation: Violation) -> "TraceFinding":
        """Say where a violation was found: at the record that was read last."""
        ids = () if self._record is None else mentioned(self._record, violation.message)
        return TraceFinding(violation.invariant, violation.message, self.at, ids)

    # --- Records -----------------------------------------------------------------------------------------------------

    def _begin(self, header: Header, before: Header | None) -> None:
        """A file begins: the next part of the same run without a loss goes on, everything else starts anew."""
        goes_on = before is not None and before.part + 1 == header.part and not header.lost
        if before is not None and not goes_on:
            reason = f"{header.lost} records were lost" if header.lost else f"part {before.part + 1} is not among them"
            self.gaps.append(f"{self.at.path}: {reason}; what goes over time starts anew there")
        elif before is None and header.part:
            self.gaps.append(f"{self.at.path}: the files before part {header.part} are not among them")
        self._config = header.config
        if goes_on and header.next_step == self._next:
            self._state(header.state)
            return
        if goes_on:
            self._report(COMPLETE, f"the file begins at step {header.next_step}; step {self._next} was due")
        self._restart(header.any_flag)
        # Whether a rank was paused when a later file of it began, the header does not say; its next step does. Up to
        # then it counts as paused, and is accused of nothing.
        self._paused = "all" if header.part else None
        self._num_tokens = {view.id: view.num_tokens for view in header.state.requests.values() if _live(view.place)}
        self._limits = {view.id: view.limit for view in header.state.requests.values() if _live(view.place)}
        self._flights = deque((step, frozenset(scheduled)) for step, scheduled in header.flights)
        self._next = header.next_step
        self._state(header.state)

    def _restart(self, any_flag: bool) -> None:
        """Forget the history; violations are kept."""
        kept = self._monitor.violations
        self._monitor = Monitor(self._config)
        self._monitor.violations = kept
        self._any_flag = any_flag
        if any_flag:
            self._monitor.interval = 0

    def _replay(self, record: Record) -> Member | None:
        monitor, now = self._monitor, self._next
        self._record = record
        if not isinstance(record, StepRecord):
            self.tally.record(record)
        match record:
            case StepRecord():
                return self._step(record)
            case Idle():
                return self._idle(record.lock)
            case Update():
                self._update(record)
            case Accepted():
                monitor.accepted(record.id, record.num_prompt, self._config.fits(record.num_prompt), now)
                self._num_tokens[record.id] = record.num_prompt
                self._limits[record.id] = record.limit
            case Refused():
                monitor.refused(record.id, record.num_prompt, self._config.fits(record.num_prompt), now)
            case Notice():
                monitor.notice(record.before or NO_STATE, record.after or NO_STATE, record.known, now)
                if record.what == "abort" and record.known:
                    self._ended(record.id, "abort")
            case PauseChanged():
                self._paused = record.mode
            case CacheReset():
                for id in record.preempted:
                    monitor.released(id)
            case Crashed():
                monitor.crashed(record.error, now)
        return None

    def _step(self, record: StepRecord) -> Member | None:
        step = record.step
        if step.index != self._next:
            self._report(COMPLETE, f"step {step.index} follows; step {self._next} was due")
            self._restart(self._any_flag)
            self._flights.clear()
            self._num_tokens.clear()
        self.at = self.at._replace(step=step.index)
        self._next = step.index + 1
        self.steps += 1
        facts = Facts(self._config, record.before, step, record.after)
        try:
            self._monitor.step(facts)
        except KeyError as error:
            self._report("one-place", f"the step speaks of {error.args[0]!r}, which stands in no state around it")
        self._state(record.whole or record.after)
        self.tally.step(record, facts)
        self._flights.append((step.index, frozenset(step.scheduled)))
        if len(self._flights) > MOST_FLIGHTS:
            self._report("exactly-once", f"the outputs of step {self._flights.popleft()[0]} never came")
        self.recent.append(PlayedStep(step, (), record.after.waiting, record.after.parked, {}))
        self._paused = record.paused
        return None if record.lock is None else self._member(record.lock, sum(step.scheduled.values()), record.paused)

    def _idle(self, lock: LockStep) -> Member:
        """A lock step without a step: an exchange, or a dummy; or nobody says which."""
        exchange = lock.collectives == ("exchange",)
        member = self._member(lock, 0, self._paused, dummy=lock.collectives is not None and not exchange)
        if not exchange:
            self._monitor.took_part(may_run=member.may_run)
        return member

    def _member(self, lock: LockStep, tokens: int, paused: str | None, *, dummy: bool = False) -> Member:
        if self.last_lock is not None and lock.number <= self.last_lock:
            self._report("collectives-align", f"lock step {lock.number} follows lock step {self.last_lock}")
        self.last_lock = lock.number
        # Which of the protocol's pauses let requests run, `protocol.may_run` has said when this scheduler was paused,
        # or was not. In a pause for new requests only it is not known.
        return Member(lock, tokens, paused is None and bool(self._num_tokens), len(self._num_tokens), dummy)

    def _update(self, update: Update) -> None:
        if not self._flights or self._flights[0][0] != update.step:
            expected = self._flights[0][0] if self._flights else "none"
            self._report("exactly-once", f"outputs of step {update.step} came; the oldest step in flight is {expected}")
            while self._flights and self._flights[0][0] < update.step:
                self._flights.popleft()
        scheduled: frozenset[str] = frozenset()
        if self._flights and self._flights[0][0] == update.step:
            scheduled = self._flights.popleft()[1]
        receivers = scheduled.union(update.tokens)
        if any(update.tokens.get(id, 1) for id in receivers):
            self.tally.delivered()
        for id in receivers:
            if id in self._num_tokens:
                self._num_tokens[id] += update.tokens.get(id, 1)
        for id, reason in update.finished.items():
            if reason == "length" and id in self._num_tokens and id in self._limits:
                self._compare(id, self._limits[id])
            self._ended(id, reason)

    def _ended(self, id: str, reason: str) -> None:
        self._monitor.finished(id, reason, self._next)
        self._num_tokens.pop(id, None)
        self._limits.pop(id, None)

    # --- States ------------------------------------------------------------------------------------------------------

    def _state(self, state: State) -> None:
        try:
            self._monitor.state(state, self.at.step)
        except KeyError as error:
            self._report("one-place", f"the state lists {error.args[0]!r}, of which it says nothing")
        self._tokens(state)

    def _tokens(self, state: State) -> None:
        """Hold what requests know against what was delivered to them."""
        for view in state.requests.values():
            if not _live(view.place):
                continue
            if view.id in self._num_tokens:
                self._compare(view.id, view.num_tokens)
            else:
                self._num_tokens[view.id] = view.num_tokens
                self._limits[view.id] = view.limit

    def _compare(self, id: str, expected: int) -> None:
        """Compare counts; positions stand for the tokens, which a trace does not have."""
        counted = self._num_tokens[id]
        if counted == expected:
            return
        least = min(counted, expected)
        most = least + MOST_POSITIONS
        self._monitor.delivered(id, self.at.step, range(least, min(counted, most)), range(least, min(expected, most)))
        self._num_tokens[id] = expected

    def _report(self, invariant: str, message: str) -> None:
        self._monitor.violations.append(Violation(invariant, max(self._next, 0), message))


def mentioned(record: Record, message: str) -> tuple[str, ...]:
    """Return the requests of a record that a sentence names."""
    words = set(re.findall(r"[^\s,;:\[\]{}()'\"]+", message))
    ids: dict[str, None] = {}
    if isinstance(record, StepRecord):
        for state in (record.before, record.after, record.whole or record.after):
            ids.update((view.id, None) for view in state.requests.values())
        ids.update(dict.fromkeys(record.step.scheduled))
    elif isinstance(record, Update):
        ids.update(dict.fromkeys([*record.tokens, *record.finished]))
    elif isinstance(record, Accepted | Refused | Notice):
        ids[record.id] = None
    return tuple(id for id in ids if id in words)


def _live(place: Place) -> bool:
    return place is not Place.FINISHED
