"""Records what a scheduler of the reference's kind does: `class Recorded(RecorderMixin, Scheduler)`.

The trace is for `onbeat check-trace`. Recording changes nothing: no decision depends on it, and no error of it is ever
raised into the scheduler.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onbeat_reference.lifecycle import Lifecycle, Outputs, PauseMode
from onbeat_reference.observe import observe
from onbeat_reference.parts import Parts
from onbeat_reference.request import Request
from onbeat_reference.trace_writer import TraceOptions, TraceWriter
from onbeat_spec.errors import OnbeatError, RequestRefused
from onbeat_spec.records import LockStep, State, Step
from onbeat_spec.trace import (
    Accepted,
    CacheReset,
    Crashed,
    Header,
    Idle,
    Notice,
    NoticeKind,
    PauseChanged,
    Refused,
    StepRecord,
    Update,
)

if TYPE_CHECKING:
    from onbeat_reference.scheduler import Scheduler

    Base = Scheduler
else:
    Base = object


class Recorder:
    """Writes down one scheduler; the mixin below calls it.

    Args:
        scheduler: the scheduler, before its first step.
        options: where the trace goes, and how much of it is kept.
        rank: of how many `ranks` this one is.
        group: names the start of their group, the same on all; empty: nobody said.
        any_flag: the caller passes any throttle flag it likes; otherwise a clock with the configured interval does.
        software: versions to put into the header, by name.
    """

    def __init__(
        self,
        scheduler: Lifecycle,
        options: TraceOptions,
        *,
        rank: int = 0,
        ranks: int | None = None,
        group: str = "",
        any_flag: bool = False,
        software: Mapping[str, str] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.rank = rank
        self.ranks = ranks or scheduler.config.data_parallel_size
        self.group = group
        self.any_flag = any_flag
        self.software = {"python": sys.version.partition(" ")[0], **(software or {})}
        self.audit_every = options.audit_every
        self.lock: LockStep | None = None
        """The lock step that the next call of `schedule()` is; whoever drives the group sets it."""
        self._parts = Parts(scheduler)
        self.writer = TraceWriter(options, rank, self._header)

    def __deepcopy__(self, memo: object) -> None:
        """A copy of a scheduler is somebody's experiment, and not recorded."""

    def _header(self, run: str, part: int, lost: int) -> Header:
        scheduler, kind = self.scheduler, type(self.scheduler)
        return Header(
            rank=self.rank,
            ranks=self.ranks,
            config=scheduler.config,
            policy=scheduler.policy.name,
            scheduler=f"{kind.__module__}:{kind.__qualname__}",
            state=observe(scheduler),
            run=run,
            part=part,
            group=self.group,
            next_step=scheduler.num_steps,
            started=round(time.time(), 3),
            software=self.software,
            any_flag=self.any_flag,
            lost=lost,
            flights=tuple((flight.step.index, flight.step.scheduled) for flight in scheduler.in_flight),
        )

    def step(self, step: Step) -> None:
        """A step was scheduled."""
        scheduler = self.scheduler
        before, after = self._parts.around(step)
        whole = step.index % self.audit_every == 0 or not scheduler.requests
        lock, self.lock = self.lock, None
        self.writer.write(
            StepRecord(
                step, before, after, observe(scheduler) if whole else None, scheduler.paused, lock, self.writer.now()
            )
        )

    def took_part(self, lock: LockStep, took: float = 0.0) -> None:
        """The rank took part in a lock step without scheduling anything; in seconds, how long that `took`."""
        self.writer.write(Idle(lock, self.writer.now(), round(took, 5)))

    def updated(self, step: Step, outputs: Outputs) -> None:
        """Outputs of a step were delivered."""
        delivered = outputs.tokens
        tokens = {id: count for id in step.scheduled if (count := len(delivered.get(id, ()))) != 1}
        tokens.update((id, len(more)) for id, more in delivered.items() if id not in step.scheduled)
        finished = {r.id: "error" if r.finish_reason is None else r.finish_reason.value for r in outputs.finished}
        self.writer.write(Update(step.index, tokens, finished, self.writer.now()))

    def noticed(self, kind: NoticeKind, id: str, known: bool, before: State, after: State) -> None:
        """A request was aborted, or its load ended; these were the sums around it."""
        changed = not known and before != after
        self.writer.write(Notice(kind, id, known, before if changed else None, after if changed else None))

    def sums(self) -> State:
        """Return a state that lists nobody: enough to see whether a late notice did anything."""
        scheduler = self.scheduler
        parts = self._parts.totals()
        return State(
            requests={},
            running=(),
            waiting=tuple(r.id for r in scheduler.waiting) if len(scheduler.waiting) <= 64 else (),
            parked=tuple(r.id for r in scheduler.parked),
            saturated=scheduler.saturated,
            held=-1,
            **parts._asdict(),
        )


class RecorderMixin(Base):
    """Records the scheduler class that stands behind it.

    Args:
        trace: where the trace goes; None: nothing is recorded.
        trace_rank: the rank of this scheduler in its group.
        trace_group: see `Recorder`; likewise the next.
        trace_any_flag: see there.
    """

    recorder: Recorder | None

    def __init__(
        self,
        *args: Any,
        trace: TraceOptions | None = None,
        trace_rank: int = 0,
        trace_group: str = "",
        trace_any_flag: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.recorder = (
            None
            if trace is None
            else Recorder(self, trace, rank=trace_rank, group=trace_group, any_flag=trace_any_flag)
        )

    def schedule(self, throttle_prefills: bool = False) -> Step:
        """Schedule, and record the step."""
        if self.recorder is None:
            return super().schedule(throttle_prefills)
        try:
            step = super().schedule(throttle_prefills)
        except Exception as error:
            self._crashed("schedule", error)
            raise
        self.recorder.step(step)
        return step

    def update(
        self, step: Step, sampled: Mapping[str, Sequence[int]], drafts: Mapping[str, int] | None = None
    ) -> Outputs:
        """Take outputs, and record what was delivered."""
        if self.recorder is None:
            return super().update(step, sampled, drafts)
        try:
            outputs = super().update(step, sampled, drafts)
        except Exception as error:
            self._crashed("update", error)
            raise
        self.recorder.updated(step, outputs)
        return outputs

    def add_request(self, request: Request) -> None:
        """Accept a request, and record that; or that it was refused for its size."""
        if self.recorder is None:
            super().add_request(request)
            return
        another = request.id in self.requests or any(orphan.id == request.id for orphan in self.orphans)
        try:
            super().add_request(request)
        except RequestRefused:
            well_formed = request.num_prompt > 0 and request.max_tokens > 0
            if not another and well_formed and 0 <= request.remote_tokens <= request.num_prompt:
                self.recorder.writer.write(Refused(request.id, request.num_prompt))
            raise
        except Exception as error:
            self._crashed("add_request", error)
            raise
        self.recorder.writer.write(Accepted(request.id, request.num_prompt, request.limit))

    def abort(self, request: Request) -> bool:
        """Abort, and record it."""
        known = self.requests.get(request.id) is request
        return bool(self._told("abort", known, request, super().abort))

    def load_finished(self, request: Request) -> None:
        """Take a landed load, and record it."""
        self._told("load_finished", request in self.parked or request in self.orphans, request, super().load_finished)

    def load_failed(self, request: Request, from_block: int = 0) -> None:
        """Take a failed load, and record it."""
        known = request in self.parked or request in self.orphans
        known = known or any(request in flight.loads for flight in self.in_flight)
        self._told("load_failed", known, request, super().load_failed, from_block)

    def pause(self, mode: PauseMode = "new") -> None:
        """Pause, and record it."""
        super().pause(mode)
        if self.recorder is not None:
            self.recorder.writer.write(PauseChanged(mode))

    def resume(self) -> None:
        """Resume, and record it."""
        super().resume()
        if self.recorder is not None:
            self.recorder.writer.write(PauseChanged(None))

    def reset_prefix_cache(self) -> None:
        """Preempt whatever runs, and record whom."""
        ran = tuple(request.id for request in self.running)
        super().reset_prefix_cache()
        if self.recorder is not None:
            self.recorder.writer.write(CacheReset(ran))

    def _told(self, kind: NoticeKind, known: bool, request: Request, call: Any, *more: Any) -> object:
        if self.recorder is None:
            return call(request, *more)
        before = self.recorder.sums()
        try:
            result = call(request, *more)
        except Exception as error:
            self._crashed(kind, error)
            raise
        self.recorder.noticed(kind, request.id, known, before, self.recorder.sums())
        return result

    def _crashed(self, call: str, error: Exception) -> None:
        """Record an error that the call does not declare."""
        if self.recorder is not None and not isinstance(error, OnbeatError):
            self.recorder.writer.write(Crashed(f"{call}: {type(error).__name__}: {error}"))
            self.recorder.writer.flush()
