"""Checks traces: each rank by itself, and lock step by lock step the ranks of a group together.

The files are streamed: ranks are merged by the number of the lock step, and nothing is kept but a bounded number of
violations.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from onbeat_proofs.play.table import step_text
from onbeat_proofs.play.tally import require_known
from onbeat_proofs.traces.rank import COMPLETE, Position, RankReplay, TraceFinding
from onbeat_proofs.traces.tally import ALONE, UNSEEN, UNSEEN_OF_GROUP, TraceTally
from onbeat_spec.catalogue import CATALOGUE, GROUP_CATALOGUE
from onbeat_spec.errors import EmptyTrace, TraceError
from onbeat_spec.group_monitor import GroupMonitor, judge
from onbeat_spec.records import GroupStep, Member
from onbeat_spec.trace import Header
from onbeat_spec.trace_read import TraceFile

TraceVerdict = Literal["holds", "violated", "vacuous", "not asked"]
"""`not asked`: no trace, or none of a rank on its own, can show it."""
Progress = Callable[[int, int, int], None]
"""Takes bytes read, bytes in all, steps so far."""

ALL = (*CATALOGUE, *GROUP_CATALOGUE, COMPLETE)
"""What a trace is checked for, by ids."""
MOST_FINDINGS = 20
"""Findings kept of one invariant; all are counted."""
EVERY = 1 << 20
"""Bytes between two reports of progress."""


@dataclass(frozen=True, slots=True)
class InvariantVerdict:
    """What a trace says about one invariant."""

    invariant: str
    verdict: TraceVerdict
    met: int
    """How often its premise was met."""
    violations: int
    why: str
    """What was never seen, if it is vacuous or not asked."""


@dataclass(slots=True)
class TraceReport:
    """What a check found."""

    files: int = 0
    ranks: list[int] = field(default_factory=list)
    steps: int = 0
    lock_steps: int = 0
    """Lock steps in which ranks were compared."""
    bytes: int = 0
    seconds: float = 0.0
    rows: list[InvariantVerdict] = field(default_factory=list)
    findings: list[TraceFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a reader should know: cut lines, files that are not there, ranks that end before others."""
    allow_vacuous: Collection[str] = ()
    """Ids of invariants that need not be put to the test."""

    @property
    def exit_code(self) -> int:
        """0: all holds; 1: something is violated; 2: there was no step, or something was never put to the test."""
        if any(row.violations for row in self.rows):
            return 1
        vacuous = {row.invariant for row in self.rows if row.verdict == "vacuous"} - {*self.allow_vacuous}
        return 2 if vacuous or not self.steps else 0

    def as_json(self) -> dict[str, Any]:
        """Return the report as values of JSON."""
        return {
            "files": self.files,
            "ranks": self.ranks,
            "steps": self.steps,
            "lock_steps": self.lock_steps,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "exit_code": self.exit_code,
            "notes": self.notes,
            "invariants": [
                {"id": r.invariant, "verdict": r.verdict, "met": r.met, "violations": r.violations} for r in self.rows
            ],
            "findings": [
                {
                    "invariant": finding.invariant,
                    "file": finding.at.path,
                    "line": finding.at.line,
                    "rank": finding.at.rank,
                    "step": finding.at.step,
                    "requests": list(finding.ids),
                    "message": finding.message,
                    "table": step_text(finding.history) if finding.history else None,
                }
                for finding in self.findings
            ],
        }


def check_trace(
    paths: Sequence[str], *, context: int = 0, allow_vacuous: Collection[str] = (), progress: Progress | None = None
) -> TraceReport:
    """Check trace files, several of one rank or of several ranks of one group.

    Args:
        paths: the files, in any order.
        context: steps shown before and after each violation.
        allow_vacuous: ids of invariants that need not be put to the test for the exit code to be 0.
        progress: told how far it is.

    Raises:
        TraceError: a file cannot be read, or the files do not belong together. OSError: a file cannot be opened.
        OnbeatError: `allow_vacuous` names no invariant.
    """
    require_known(allow_vacuous, ALL)
    began = perf_counter()
    check = _Check(context, progress, sum(Path(path).stat().st_size for path in paths))
    report = check.report
    report.allow_vacuous = allow_vacuous
    for group in _groups(paths, report.notes):
        check.group(group)
    report.files = len(paths)
    report.rows = check.rows()
    report.seconds = perf_counter() - began
    return report


def _groups(paths: Sequence[str], notes: list[str]) -> list[dict[int, list[str]]]:
    """Sort files by group, rank and part; a rank on its own is a group, each of its runs another one.

    A group that was started again is another group, if its ranks say which.
    """
    runs: dict[tuple[int, str, int, str], dict[int, str]] = {}
    for path in paths:
        try:
            header = _header(path)
        except EmptyTrace as error:
            notes.append(str(error))
            continue
        parts = runs.setdefault((header.ranks, header.group, header.rank, header.run), {})
        if header.part in parts:
            raise TraceError(f"{path}: it is part {header.part} of run {header.run!r}, as {parts[header.part]} is")
        parts[header.part] = path
    alone: list[dict[int, list[str]]] = []
    groups: dict[str, dict[int, list[str]]] = {}
    sizes = {ranks for ranks, *_ in runs if ranks > 1}
    if len(sizes) > 1:
        raise TraceError(
            f"the files are of groups of {' and '.join(map(str, sorted(sizes)))} ranks; check each by itself"
        )
    for (ranks, group, rank, run), parts in sorted(runs.items()):
        files = [parts[part] for part in sorted(parts)]
        if ranks == 1:
            alone.append({rank: files})
            continue
        together = groups.setdefault(group, {})
        if rank in together:
            raise TraceError(f"{files[0]}: rank {rank} also has another run than {run!r}; check each run by itself")
        together[rank] = files
    return [*groups.values(), *alone]


def _header(path: str) -> Header:
    file = TraceFile(path)
    file.close()
    return file.header


class _Check:
    """A check under way."""

    def __init__(self, context: int, progress: Progress | None, total: int) -> None:
        self.context = context
        self.progress = progress
        self.total = total
        self.report = TraceReport()
        self.tally = TraceTally()
        self.counts: Counter[str] = Counter()
        self.open: dict[int, list[TraceFinding]] = {}
        """For each rank, findings whose history is not complete."""
        self.groups = 0
        """Groups of two ranks or more, as their files say; not all of them need be there."""
        self._reported = 0
        self._done = 0

    def group(self, files: dict[int, list[str]]) -> None:
        """Check one group."""
        self.groups += any(_header(parts[0]).ranks > 1 for parts in files.values())
        replays = {rank: RankReplay(paths, self.tally, self.context) for rank, paths in files.items()}
        merged = {rank: self._follow(rank, replay) for rank, replay in replays.items()}
        monitor, ends = GroupMonitor(files), dict[int, int]()
        while (rank := monitor.lacking()) is not None:
            member = next(merged[rank], None)
            if member is not None:
                ends[rank] = member.lock.number
            for step in monitor.gone(rank) if member is None else monitor.observe(rank, member):
                self._lock_step(step, replays)
        self._sum_up(replays, ends)
        self.open.clear()  # what comes next is no part of these histories

    def _follow(self, rank: int, replay: RankReplay) -> Iterator[Member]:
        """Replay a rank up to each of its lock steps; note what is found on the way."""
        steps = 0
        for _, member in replay.members():
            if replay.steps > steps:
                steps = replay.steps
                self._continue(rank, replay)
            for violation in replay.drain():
                self._found(replay.finding(violation), replay)
            self._tell(replay)
            if member is not None:
                yield member
        self.report.steps += replay.steps
        self.report.bytes += replay.position

    def _lock_step(self, step: GroupStep, replays: dict[int, RankReplay]) -> None:
        self.report.lock_steps += 1
        first = next(iter(step.members))
        self.tally.lock_step(step)
        for invariant, number, message in judge(step):
            replay = replays[first]
            self._found(TraceFinding(invariant, f"lock step {number}: {message}", replay.at), replay)

    def _found(self, finding: TraceFinding, replay: RankReplay) -> None:
        self.counts[finding.invariant] += 1
        if self.counts[finding.invariant] > MOST_FINDINGS:
            return
        if self.context:
            finding.history = list(replay.recent)
            finding.due = self.context
            self.open.setdefault(finding.at.rank, []).append(finding)
        self.report.findings.append(finding)

    def _continue(self, rank: int, replay: RankReplay) -> None:
        """A step was replayed: it is the next one of the histories that are not complete."""
        if not self.open.get(rank):
            return
        for finding in self.open[rank]:
            finding.history.append(replay.recent[-1])
            finding.due -= 1
        self.open[rank] = [finding for finding in self.open[rank] if finding.due > 0]

    def _tell(self, replay: RankReplay) -> None:
        if self.progress is None or replay.position - self._reported < EVERY:
            return
        self._reported = replay.position
        self.progress(self.report.bytes + replay.position, self.total, self.report.steps + replay.steps)

    def _sum_up(self, replays: dict[int, RankReplay], ends: dict[int, int]) -> None:
        notes = self.report.notes
        self.report.ranks = sorted({*self.report.ranks, *replays})
        for replay in replays.values():
            notes += replay.gaps
            notes += [f"{path}: its last line was cut off, and is not counted" for path in replay.cut]
        latest = max(ends.values(), default=0)
        for rank, end in sorted(ends.items()):
            if end < latest:
                notes.append(f"rank {rank} ends with lock step {end}, others go on to {latest}")

    def rows(self) -> list[InvariantVerdict]:
        """Return a row for each invariant, those of a group last."""
        met = self.tally.met
        rows = []
        for id, entry in CATALOGUE.items():
            why = UNSEEN if entry.in_traces is None else f"never seen: {entry.in_traces.words}"
            rows.append(self._row(id, met[id], why, asked=entry.in_traces is not None))
        for id, entry in GROUP_CATALOGUE.items():
            if entry.in_traces is None:
                why = UNSEEN_OF_GROUP
            else:
                why = f"never seen: {entry.in_traces.words}" if self.groups else ALONE
            rows.append(self._row(id, met[id], why, asked=entry.in_traces is not None and self.groups > 0))
        return [*rows, self._row(COMPLETE, self.report.steps, "never seen: a step", asked=True)]

    def _row(self, id: str, met: int, why: str, *, asked: bool) -> InvariantVerdict:
        count = self.counts[id]
        verdict: TraceVerdict = "violated" if count else "holds" if met else "vacuous" if asked else "not asked"
        return InvariantVerdict(id, verdict, met, count, "" if met else why)


__all__ = ["TraceFinding", "Position", "InvariantVerdict", "TraceReport", "check_trace"]
