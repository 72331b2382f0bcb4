"""One rank: the protocol's state, a scheduler, a monitor and an executor, and the loop's turn that joins them.

No process, no socket, no clock in here: messages are handed in (`read`), turns are taken (`turn`), and what is to be
sent is fetched (`take`). In whatever surrounds it, the order is: read all that has arrived, take one turn, send.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from onbeat_engine.rank.compiling import Compiling
from onbeat_engine.rank.group_turns import GroupTurns
from onbeat_engine.rank.monitoring import RankMonitor
from onbeat_engine.rank.parts import Built
from onbeat_engine.rank.reporting import Reporter
from onbeat_engine.runner.executor import BatchRow, EngineRequest, Pending, StepOutputs
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.lane_tracker import LaneTracker
from onbeat_engine.wire.messages import (
    Abort,
    Answer,
    Compile,
    Ended,
    FromRank,
    LogEntry,
    NewRequest,
    RankStats,
    ResetPrefixCache,
    ToRank,
)
from onbeat_reference.recorder import RecorderMixin
from onbeat_reference.request import FinishReason
from onbeat_reference.scheduler import Scheduler
from onbeat_reference.trace_writer import TraceOptions
from onbeat_spec import protocol
from onbeat_spec.cadence import clock_for
from onbeat_spec.errors import OnbeatError, RequestRefused
from onbeat_spec.protocol import (
    Agreement,
    Event,
    Rank,
    Turn,
    after_step,
    before_step,
    lost,
    read,
)
from onbeat_spec.records import Filler, LockStep, Step

log = logging.getLogger("onbeat.core")


class RecordedScheduler(RecorderMixin, Scheduler):
    """The reference's scheduler; it writes a trace if told where."""


def trace_options(config: EngineConfig) -> TraceOptions | None:
    """Return where the trace goes; the environment variables ONBEAT_TRACE_... count, the configured folder before.

    Raises:
        ConfigError: one is no number.
    """
    folder = {"ONBEAT_TRACE_DIR": config.trace_dir} if config.trace_dir else {}
    return TraceOptions.from_environment({**os.environ, **folder})


class StepInFlight(NamedTuple):
    """A step that was begun."""

    step: Step
    rows: list[BatchRow]
    pending: Pending | None
    """None: there was nothing to execute."""


class EngineCore:
    """One rank.

    Args:
        config: the deployment's.
        built: this rank's parts.
        rank: its number in the deployment.
        epoch: how often it was started again.
        group: names the start of its group, for the trace.
    """

    def __init__(self, config: EngineConfig, built: Built, *, rank: int = 0, epoch: int = 0, group: str = "") -> None:
        self.rank = rank
        self.config = config
        self.executor = built.executor
        self.exchange = built.exchange
        self.settings = config.settings
        self.state = Rank(members=built.exchange.size)
        self.scheduler = RecordedScheduler(
            config.scheduler_config(
                num_blocks=built.num_blocks, max_model_len=built.max_model_len, lock_step=built.exchange.size
            ),
            trace=trace_options(config),
            trace_rank=rank,
            trace_group=group,
        )
        self.monitor = RankMonitor(self.scheduler, rank, config.on_violation) if config.monitor else None
        self.reporter = Reporter(
            RankStats(rank=rank, epoch=epoch), self.scheduler, self.monitor.counts if self.monitor else {}
        )
        self._lanes = LaneTracker(rank)
        self.flights: deque[StepInFlight] = deque()
        self.coupled = built.exchange.size > 1
        self._turns: GroupTurns | None = None
        if self.coupled:
            reporter = self.reporter if config.monitor else None
            self._turns = GroupTurns(self.scheduler, self.scheduler.recorder, reporter)
        self._clock = clock_for(config.prefill_schedule_interval, 1)  # asked where a turn leaves it to the rank
        self._depth = self.scheduler.config.async_depth
        self._structured: set[str] = set()
        """Live requests whose next step needs the token of the one before: they are not scheduled ahead."""
        self._over: list[EngineRequest] = []
        """Ended, but steps in flight may still speak of them."""
        self._asleep = False
        self.compiling = Compiling(rank, built.compile_grammar)
        self.failed = False
        """It has ended though nobody wanted that."""
        self._sent: list[FromRank] = []

    # --- Messages ----------------------------------------------------------------------------------------------------

    def read(self, message: ToRank) -> None:
        """Take a message from the front end; between two turns only."""
        match message:
            case LogEntry():
                self._event(message)
            case Abort():
                for id in message.ids:
                    if id in self.scheduler.requests:
                        self._abort(id)
            case Compile():
                self.compiling.start(message)
            case ResetPrefixCache():
                if not self.state.ended:
                    self._guarded(self._reset)
                self._sent.append(Answer(rank=self.rank, call=message.call, ok=not self.ended, message=self.ended))

    def take(self, *, idle: bool = False) -> list[FromRank]:
        """Return what is to be sent to the front end since the last call; the rank's stats too if they changed.

        Args:
            idle: no turn follows.
        """
        sent, self._sent = [*self._sent, *self.compiling.take()], []
        outputs = self.reporter.take(self.state, idle=idle)
        if outputs is not None:
            sent.insert(0, outputs)
        return sent

    def shut_down(self, why: str = "the engine was shut down") -> None:
        """End: what is unfinished is aborted, and told so."""
        if not self.state.ended:
            self._end(why, expected=True)

    @property
    def ended(self) -> str:
        """Why this rank takes no more turns; empty: it goes on."""
        return self.state.ended

    def _event(self, entry: LogEntry) -> None:
        already_ended = self.state.ended
        self.state, effect = read(self.state, Event(entry.number, entry.kind, entry.mode))
        if entry.request is not None and (effect == "accept" or self.state.ended):
            self._accept(entry.request)
        if self.state.ended and not already_ended:
            self._end(self.state.ended)
        elif effect == "abort" and not already_ended:
            for id in tuple(self.scheduler.requests):
                self._abort(id)
        self._guarded(self._follow)

    def _accept(self, new: NewRequest) -> None:
        if self.state.ended:
            self.reporter.refused(new, f"rank {self.rank} has ended: {self.state.ended}", later=True)
            return
        request = EngineRequest(
            new.id,
            new.prompt,
            new.max_tokens,
            new.params,
            seed=new.seed,
            priority=new.priority,
            stop_token_ids=new.stop_token_ids,
            cache_salt=new.cache_salt,
        )
        try:
            self.scheduler.add_request(request)
        except RequestRefused as error:
            self.reporter.refused(new, str(error))
            return
        self.reporter.accepted(request)
        if new.params.structured is not None:
            self._structured.add(new.id)

    def _follow(self) -> None:
        """Do what the protocol's state says: pause or go on, sleep or wake up."""
        paused = None if protocol.may_run(self.state, True) else "all"
        if paused != self.scheduler.paused:
            if paused:
                self.scheduler.pause("all")
            else:
                self.scheduler.resume()
        if self.state.asleep and not self._asleep:
            self._reset()
            self.executor.sleep()
        elif self._asleep and not self.state.asleep:
            self.executor.wake_up()
        self._asleep = self.state.asleep

    def _reset(self) -> None:
        """Forget all KV that is resident: whatever runs is preempted, and computed again."""
        self._drain()
        if self.monitor is not None:
            self.monitor.released(self.scheduler.running)
        self.scheduler.reset_prefix_cache()

    # --- Turns -------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a request has not ended, be it blocked or not."""
        return self.scheduler.has_unfinished_requests()

    @property
    def may_run(self) -> bool:
        """Whether it has work that the protocol lets run."""
        return protocol.may_run(self.state, self.has_work)

    def turn(self) -> bool:
        """Take the next turn; False: there is none until a message comes."""
        return self._guarded(self._turn)

    def _turn(self) -> bool:
        if not self.may_run:
            self._drain()
        turn = before_step(self.state, self.has_work, self.settings)
        if turn.kind == "idle":
            self._clock.idle()
            return False
        if self._turns is not None:
            self._turns.begins()
        agreement: Agreement | None = None
        if turn.vote is not None:
            agreement = self.exchange.exchange(turn.vote)
            self._ran("exchange")
        elif turn.kind == "dummy":
            self._take_part(turn)
        else:
            self._step(turn)
        self.state = after_step(self.state, self.settings, agreement)
        if turn.vote is not None and self._turns is not None:
            self._idle(*self._turns.took_part(turn, last=self.state.read == self.state.agreed, may_run=self.may_run))
        if self.state.ended:
            self._end(self.state.ended, expected=True)
        else:
            self._follow()
        return True

    def _step(self, turn: Turn) -> None:
        """Schedule and begin a step; then take the outputs of the oldest that was not waited for."""
        throttle = self._clock.throttle() if turn.throttle is None else turn.throttle
        lock = None if self._turns is None else self._turns.steps(turn)
        saturated = self.scheduler.saturated
        step = self.scheduler.schedule(throttle)
        rows = self._rows(step)
        may_run = self.may_run
        self._lanes.scheduled(step, lock, saturated=saturated, time=time.monotonic())
        pending: Pending | None = None
        if rows:
            pending = self.executor.execute(rows)
            self._ran("forward")
        elif protocol.shares(self.state):
            self.executor.dummy()
            self._ran("forward")
        if self._turns is not None:
            self._turns.stepped(turn, step, may_run=may_run)
        self.flights.append(StepInFlight(step, rows, pending))
        self._clock.executed(len(rows), step.prefill, step.holding)
        self.reporter.step(step)
        if self.monitor is not None:
            self.monitor.step(step)
        ahead = self._depth - 1 if rows and self._structured.isdisjoint(step.scheduled) else 0
        while len(self.flights) > ahead:
            self._land()

    def _rows(self, step: Step) -> list[BatchRow]:
        if not step.scheduled:
            return []
        requests = self.scheduler.requests
        samples = {request.id for request in self.scheduler.in_flight[-1].sampling}
        rows = []
        for id, tokens in step.scheduled.items():
            request = requests[id]
            assert isinstance(request, EngineRequest)
            rows.append(BatchRow(request, request.num_computed - tokens, tokens, id in samples, request.blocks))
        return rows

    def _take_part(self, turn: Turn) -> None:
        """Run a forward without any token of one's own, since others have work. Alone it would be for nobody."""
        if self._turns is not None and protocol.shares(self.state):
            free = self.scheduler.pool.free
            rows = self.executor.dummy()
            self._ran("forward")
            self.reporter.dummies += 1
            filler = Filler(free - self.scheduler.pool.free, rows)
            self._idle(*self._turns.took_part(turn, last=False, may_run=self.may_run, filler=filler))
            if self.monitor is not None:
                self.monitor.took_part(may_run=self.may_run)

    def _ran(self, collective: str) -> None:
        if self._turns is not None:
            self._turns.ran(collective)

    def _idle(self, lock: LockStep, took: float) -> None:
        self.reporter.lane_steps.append(self._lanes.idle(lock, time=time.monotonic(), took=took))

    def _drain(self) -> None:
        while self.flights:
            self._land()

    def _land(self) -> None:
        """Wait for the oldest step, and take its outputs."""
        flight = self.flights.popleft()
        outputs = StepOutputs() if flight.pending is None else flight.pending.wait()
        done = self.scheduler.update(flight.step, outputs.tokens)
        if (ended := self._lanes.ended(flight.step.index, time.monotonic())) is not None:
            self.reporter.lane_steps.append(ended)
        if self.monitor is not None:
            self.monitor.delivered(done)
        self.reporter.delivered(flight.rows, outputs, done)
        for request in done.finished:
            assert isinstance(request, EngineRequest)
            self._forget(request)
        if self._over:
            self._release()

    # --- Ends --------------------------------------------------------------------------------------------------------

    def _abort(self, id: str, reason: FinishReason = FinishReason.ABORT, error: str | None = None) -> None:
        request = self.scheduler.requests[id]
        assert isinstance(request, EngineRequest)
        self.scheduler.abort(request)
        if self.monitor is not None:
            self.monitor.aborted(id)
        self.reporter.ended(request, reason, error)
        self._forget(request)
        self._release()

    def _forget(self, request: EngineRequest) -> None:
        self._structured.discard(request.id)
        self._over.append(request)

    def _release(self) -> None:
        """Let the executor forget requests that ended, once no step in flight speaks of them."""
        kept = []
        for request in self._over:
            if any(request.id in flight.step.scheduled for flight in self.flights):
                kept.append(request)
            elif not self.state.ended:
                self.executor.release(request)
        self._over = kept

    def _guarded(self, call: Callable[[], bool | None]) -> bool:
        """Make a call; whatever it raises ends this rank, with the reason."""
        if self.state.ended:
            return False
        try:
            return bool(call())
        except OnbeatError as error:
            log.error("rank %d ends: %s", self.rank, error)
            self._end(str(error))
            return False
        except Exception as error:  # an executor may raise anything; those who wait for outputs must be told
            log.exception("rank %d ends", self.rank)
            self._end(f"{type(error).__name__}: {error}")
            return False

    def _end(self, why: str, *, expected: bool = False) -> None:
        """End this rank: everybody who waits for it is told why."""
        self.state, _ = lost(self.state, why)
        self.failed = self.failed or not expected
        self.flights.clear()
        reason = FinishReason.ABORT if expected else FinishReason.ERROR
        for id in tuple(self.scheduler.requests):
            self._abort(id, reason, f"rank {self.rank} has ended: {why}")
        if self.scheduler.recorder is not None:
            self.scheduler.recorder.writer.flush()
        self._sent.append(Ended(rank=self.rank, why=why, expected=expected))
