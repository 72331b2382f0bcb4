"""Drives one scheduler through operations, plays its model and its clients, and reports what did not hold."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Self

from onbeat_proofs.foreign.branching import Memo, branch
from onbeat_proofs.foreign.families import Factory
from onbeat_proofs.foreign.watchdog import CRASHES
from onbeat_proofs.play.clients import Clients
from onbeat_proofs.play.fake_model import Due
from onbeat_proofs.play.history import PlayedStep
from onbeat_proofs.scenarios.operations import (
    Abort,
    Add,
    Check,
    Deliver,
    Ineligible,
    Op,
    Pause,
    RemoteDone,
    RemoteFailed,
    Repeat,
    ResetPrefixCache,
    Resume,
    Schedule,
    Stop,
    flatten,
)
from onbeat_reference.lifecycle import Outputs
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.config import Config
from onbeat_spec.errors import NotAScheduler, ScenarioError
from onbeat_spec.monitor import Monitor
from onbeat_spec.policy import Policy
from onbeat_spec.records import Facts, Place, Step

_NOTHING: Mapping[str, int] = {}
_NO_REASONS: Mapping[str, str] = {}


class Driver(Clients):
    """One scheduler object, driven operation by operation.

    Args:
        config: sizes and modes.
        factory: called with `config` and `policy`; a class with the interface of the reference's `Scheduler`.
        policy: by default the one that `config.policy` names.
        monitor: evaluate every invariant of one rank on every step and state. Without it, only what the model and
            the clients notice by themselves is reported: exactly-once, no-crash, and unknown requests (one-place).

    Attributes:
        violations: what did not hold, in the order seen.
        history: one entry for each `schedule` call.
        tracks: for every id that was added, the requests accepted under it.
        refused: ids of the requests that were refused, in order.
        ended: the scheduler crashed; further operations do nothing.

    Raises:
        PolicyError: `config.policy` names no policy.
        NotAScheduler: the factory fails, or what it makes lacks something of `Schedulable`.
    """

    def __init__(
        self, config: Config, factory: Factory = Scheduler, *, policy: Policy | None = None, monitor: bool = True
    ) -> None:
        super().__init__(config, factory, policy, monitor)

    @property
    def in_flight(self) -> int:
        """Steps whose outputs have not come back."""
        return len(self._model.flights)

    def apply(self, op: Op) -> None:
        """Execute one operation.

        Raises:
            ScenarioError: the operation is impossible whatever the scheduler does: an id that was never added, one
                step in flight too many, or outputs of steps that are not.
            NotAScheduler: a call returned something else than the reference returns.
        """
        if self.ended:
            return
        _OPERATIONS[type(op)](self, op)
        if self.monitor is not None and not self.ended:
            self.monitor.state(self.observed(), self.now)

    def run(self, ops: Iterable[Op]) -> Self:
        """Execute operations one after the other, and `finish`."""
        for op in ops:
            self.apply(op)
        self.finish()
        return self

    def finish(self) -> None:
        """Deliver whatever is in flight."""
        while self._model.flights and not self.ended:
            self.apply(_DELIVER)

    def fork(self) -> Self:
        """Return an independent copy: from here on nothing done to one is seen by the other."""
        memo: Memo = {}
        new = object.__new__(type(self))
        new.config, new.policy = self.config, self.policy
        new.scheduler = branch(self.scheduler, memo)
        new._takes_policy, new._decides_itself = self._takes_policy, self._decides_itself
        new.monitor = branch(self.monitor, memo)
        new.violations = new.monitor.violations if new.monitor is not None else self.violations.copy()
        new.history = self.history.copy()
        new.tracks = branch(self.tracks, memo)
        new.refused = self.refused.copy()
        new.ended = self.ended
        new.trail = self.trail
        new._model = self._model.fork(memo)
        for flight in new._model.flights:
            new.history[flight.turn] = new.history[flight.turn]._replace(delivered={})
        new._clock = branch(self._clock, memo)
        new._lock_step = self._lock_step
        new._added = self._added
        return new

    def schedule(self, op: Schedule) -> None:
        """One step; with `async_depth` 1 its outputs come back at once."""
        scheduler, monitor = self.scheduler, self.monitor
        if self.in_flight >= self.config.async_depth:
            raise ScenarioError(
                f"schedule: {self.in_flight} steps are in flight and async_depth is {self.config.async_depth}; "
                "deliver first"
            )
        throttle = op.throttle
        if throttle is None:
            throttle = self._clock.throttle()
        elif monitor is not None:
            monitor.interval = 0
        config = self.config if op.budget is None else narrowed(self.config, op.budget)
        before = self.observed() if monitor is not None else None
        counts = {r.id: (r.num_computed, r.num_tokens + r.num_placeholders) for r in scheduler.running}
        scheduler.config = config
        try:
            step = scheduler.schedule(throttle)
        except CRASHES as error:
            self._crash(error)
            return
        finally:
            scheduler.config = self.config
        if not isinstance(step, Step):
            raise NotAScheduler(f"schedule() returned a {type(step).__name__}; it must return an onbeat_spec Step")
        self._record(step, *self._model.run(step, self.tracks, counts, op.accept or _NOTHING))
        if monitor is not None and before is not None:
            self._watch(monitor, Facts(config, before, step, self.observed()))
        self._clock.executed(sum(step.scheduled.values()), step.prefill, step.holding)
        if self.config.async_depth == 1:
            self._land()
        self._idle()

    def _record(self, step: Step, prefill: Sequence[str], strangers: Sequence[str]) -> None:
        for id in strangers:
            self._report("one-place", f"{id} was scheduled and is no live request", step.index)
        for eviction in step.evictions:
            self._preempted(eviction.victim)
        waiting = tuple([r.id for r in self.scheduler.waiting])
        parked = tuple([r.id for r in self.scheduler.parked])
        running = tuple([r.id for r in self.scheduler.running])
        self.history.append(PlayedStep(step, tuple(prefill), waiting, parked, {}, running))

    def _watch(self, monitor: Monitor, facts: Facts) -> None:
        try:
            monitor.step(facts)
        except KeyError as error:
            self._report("one-place", f"the step speaks of {error.args[0]!r}, which is not live", facts.step.index)

    def deliver(self, op: Deliver) -> None:
        """The outputs of the oldest steps in flight come back."""
        if op.count > self.in_flight:
            raise ScenarioError(f"deliver: {op.count} steps, and {self.in_flight} are in flight; schedule first")
        for _ in range(op.count):
            if not self.ended:
                self._land()
        self._idle()

    def _land(self) -> None:
        """Hand the outputs of the oldest step back."""
        flight, sampled, dues = self._model.land()
        drafts = None
        if most := self.config.num_draft_tokens:
            drafts = {track.request.id: most for track, _, _ in dues if track.request.place is not Place.FINISHED}
        try:
            outputs = self.scheduler.update(flight.step, sampled, drafts)
        except CRASHES as error:
            self._crash(error)
            return
        if not isinstance(outputs, Outputs):
            raise NotAScheduler(f"update() returned a {type(outputs).__name__}; it must return the reference's Outputs")
        self.history[flight.turn].delivered.update(outputs.tokens)
        self._compare(flight.step.index, outputs, dues)

    def _compare(self, index: int, outputs: Outputs, dues: Sequence[Due]) -> None:
        """Hold what was delivered and who ended against what was due."""
        delivered, monitor = outputs.tokens, self.monitor
        reasons: Mapping[str, str] = _NO_REASONS
        if outputs.finished:
            reasons = {r.id: r.finish_reason.value for r in outputs.finished if r.finish_reason is not None}
        met = 0
        for track, tokens, due in dues:
            id = track.request.id
            received: Sequence[int] | None = delivered.get(id)
            if received is None:
                received = ()
            else:
                met += 1
            if monitor is not None:
                monitor.delivered(id, index, received, tokens)
            elif received is not tokens and list(received) != tokens:
                self._report("exactly-once", f"{id} was delivered {list(received)}; sampled was {tokens}", index)
            track.delivered += len(received)
            reason = reasons.get(id)
            if reason != due and reason != "error":  # noqa: PLR1714  (a tuple would be slower)
                self._report("exactly-once", f"{id} ended by {reason}; by its outputs it ends by {due}", index)
        if met < len(delivered):
            strangers = sorted(delivered.keys() - {track.request.id for track, _, _ in dues})
            self._report("exactly-once", f"tokens were delivered to {', '.join(strangers)}, who was due none", index)
        if monitor is not None:
            for id, reason in reasons.items():
                monitor.finished(id, reason, self.now)


_DELIVER = Deliver(1)


def narrowed(config: Config, budget: int) -> Config:
    """Return `config` with fewer tokens a step; also none at all, which a configuration may not have."""
    if budget >= config.max_num_batched_tokens:
        return config
    less = copy(config)
    object.__setattr__(less, "max_num_batched_tokens", budget)
    return less


def _ignore(driver: Driver, op: Check) -> None:
    """Expectations are for whoever replays the scenario."""


def _repeat(driver: Driver, op: Repeat) -> None:
    for _, inner in flatten((op,)):
        driver.apply(inner)


_OPERATIONS: dict[type, Callable[[Driver, Any], None]] = {
    Add: Driver.add,
    Abort: Driver.abort,
    Stop: Driver.stop,
    Schedule: Driver.schedule,
    RemoteDone: Driver.remote_done,
    RemoteFailed: Driver.remote_failed,
    Pause: Driver.pause,
    Resume: Driver.resume,
    ResetPrefixCache: Driver.reset_prefix_cache,
    Deliver: Driver.deliver,
    Ineligible: Driver.ineligible,
    Repeat: _repeat,
    Check: _ignore,
}
