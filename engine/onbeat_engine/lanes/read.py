"""Trace files as lanes: the newest run of each rank, its parts in order."""

from collections.abc import Sequence

from onbeat_engine.wire.lane_steps import Lanes, LaneStep
from onbeat_engine.wire.lane_tracker import LaneTracker
from onbeat_spec.errors import EmptyTrace, TraceError
from onbeat_spec.trace import Header, Idle, Record, StepRecord, Update
from onbeat_spec.trace_read import TraceFile


def read_lanes(paths: Sequence[str]) -> Lanes:
    """Read the lanes of one deployment.

    Of a rank with several runs the newest is taken. A file without one whole line is passed over.

    Raises:
        TraceError: a file cannot be read, or there is no step in any. OSError: a file cannot be opened.
    """
    notes: list[str] = []
    files: dict[int, dict[str, list[tuple[Header, str]]]] = {}
    for path in paths:
        try:
            file = TraceFile(path)
        except EmptyTrace:
            notes.append(f"{path} has no whole line in it")
            continue
        file.close()
        files.setdefault(file.header.rank, {}).setdefault(file.header.run, []).append((file.header, path))
    lanes: dict[int, tuple[LaneStep, ...]] = {}
    headers: list[Header] = []
    for rank, runs in sorted(files.items()):
        newest = max(runs.values(), key=lambda parts: max(header.started for header, _ in parts))
        if len(runs) > 1:
            notes.append(f"rank {rank} has {len(runs)} runs; the newest is drawn, {newest[0][0].run}")
        newest.sort(key=lambda each: each[0].part)
        headers.append(newest[0][0])
        rank_lane = RankLane(rank)
        for _, path in newest:
            rank_lane.read(path)
        lanes[rank] = tuple(sorted(rank_lane.steps, key=lambda step: step.number))
        notes += rank_lane.notes(headers[-1].ranks)
    if not any(lanes.values()):
        raise TraceError(f"{', '.join(paths)}: there is no step in any; give traces of a run that scheduled something")
    intervals = {header.config.prefill_schedule_interval for header in headers}
    if len(intervals) > 1:
        notes.append(f"the ranks have different intervals: {', '.join(map(str, sorted(intervals)))}")
    return Lanes(_from_zero(lanes), max(intervals), any(header.ranks > 1 for header in headers), tuple(notes))


def _from_zero(lanes: dict[int, tuple[LaneStep, ...]]) -> dict[int, tuple[LaneStep, ...]]:
    """Count seconds from the first step of all."""
    first = min(steps[0].start for steps in lanes.values() if steps)
    return {rank: tuple(s._replace(start=round(s.start - first, 6)) for s in steps) for rank, steps in lanes.items()}


class RankLane:
    """Collects the steps of one rank, file by file."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._ended: list[LaneStep] = []
        self._tracker = LaneTracker(rank)
        self._unlocked = 0
        self._cut = False

    @property
    def steps(self) -> list[LaneStep]:
        """All steps so far, those without outputs at the end."""
        return [*self._ended, *self._tracker.open.values()]

    def read(self, path: str) -> None:
        """Take a file."""
        file = TraceFile(path)
        try:
            for _, record in file:
                self._take(record, file.header.started)
            self._cut = self._cut or file.cut
        finally:
            file.close()

    def notes(self, ranks: int) -> list[str]:
        """Return what a reader should know, once all was read."""
        found = []
        steps = self.steps
        untimed = sum(step.duration is None and step.kind not in ("exchange", "empty") for step in steps)
        if untimed:
            found.append(f"rank {self.rank}: {untimed:,} of {len(steps):,} steps have no time recorded")
        if self._unlocked and ranks > 1:
            found.append(f"rank {self.rank}: no lock step numbers recorded; its columns are its own steps")
        if self._cut:
            found.append(f"rank {self.rank}: the last line is cut off, and left out")
        return found

    def _take(self, record: Record, started: float) -> None:
        match record:
            case StepRecord():
                self._unlocked += record.lock is None
                time = started + record.time
                self._tracker.scheduled(record.step, record.lock, saturated=record.before.saturated, time=time)
            case Idle():
                took = record.took or None
                self._ended.append(self._tracker.idle(record.lock, time=started + record.time, took=took))
            case Update():
                step = self._tracker.ended(record.step, started + record.time if record.time else None)
                if step is not None:
                    self._ended.append(step)
            case _:
                pass
