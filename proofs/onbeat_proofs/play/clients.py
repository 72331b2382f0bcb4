"""The world around one scheduler: its clients, the remote store, the operator. `driver` adds the steps."""

from collections.abc import Callable
from typing import cast

from onbeat_proofs.foreign import watchdog
from onbeat_proofs.foreign.families import DecidesItself, Factory, TakesPolicy, lacks
from onbeat_proofs.foreign.policies import policy_of
from onbeat_proofs.foreign.targets import where_raised
from onbeat_proofs.foreign.watchdog import CRASHES, Trail
from onbeat_proofs.play.fake_model import FakeModel, Track, request_for
from onbeat_proofs.play.history import PlayedStep
from onbeat_proofs.scenarios.operations import (
    Abort,
    Add,
    Ineligible,
    Op,
    Pause,
    RemoteDone,
    RemoteFailed,
    ResetPrefixCache,
    Resume,
    Stop,
)
from onbeat_reference.observe import observe
from onbeat_reference.request import Request
from onbeat_reference.schedulable import Schedulable
from onbeat_spec.cadence import clock_for
from onbeat_spec.config import Config
from onbeat_spec.errors import NotAScheduler, OnbeatError, RequestRefused, ScenarioError
from onbeat_spec.monitor import Monitor
from onbeat_spec.policy import Policy
from onbeat_spec.records import Place, State, Violation


class Clients:
    """Everything that happens to a scheduler but its steps; see `onbeat_proofs.play.driver.Driver`."""

    judges: tuple[Op, ...] = ()
    """Operations whose expectation the driver itself reports on."""

    def __init__(self, config: Config, factory: Factory, policy: Policy | None, monitor: bool) -> None:
        self.config = config
        self.policy = policy if policy is not None else policy_of(config.policy)()
        self.scheduler = _make(factory, config, self.policy)
        # Asked once: it takes long.
        self._takes_policy = not lacks(self.scheduler, TakesPolicy)
        self._decides_itself = not lacks(self.scheduler, DecidesItself)
        self.monitor = Monitor(config) if monitor else None
        self.violations: list[Violation] = self.monitor.violations if self.monitor is not None else []
        self.history: list[PlayedStep] = []
        self.tracks: dict[str, list[Track]] = {}
        self.refused: list[str] = []
        self.ended = False
        self.trail: Trail = ()
        """The operations so far."""
        self._model = FakeModel()
        self._clock = clock_for(config.prefill_schedule_interval, config.data_parallel_size)
        self._lock_step = config.data_parallel_size > 1
        self._added = 0

    @property
    def now(self) -> int:
        """Index of the latest step; 0 before the first."""
        return len(self.history) - 1 if self.history else 0

    def can(self, op: Op) -> bool:
        """Whether an operation means anything to this scheduler; some families lack some."""
        return self.by_itself is None or self.by_itself.cannot(op) is None

    def require(self, op: Op) -> None:
        """Insist that an operation means something.

        Raises:
            ScenarioError: it does not.
        """
        reason = None if self.by_itself is None else self.by_itself.cannot(op)
        if reason is not None:
            raise ScenarioError(f"{type(op).__name__}: {reason}")

    @property
    def by_itself(self) -> DecidesItself | None:
        """The scheduler, if it is of a family that has its policy built in."""
        return cast(DecidesItself, self.scheduler) if self._decides_itself else None

    def observed(self, scheduler: Schedulable | None = None) -> State:
        """Return the whole state of the scheduler, or of a copy of it."""
        loads_hold_slots = self.by_itself is None or self.by_itself.loads_hold_slots
        return observe(self.scheduler if scheduler is None else scheduler, loads_hold_slots=loads_hold_slots)

    # --- Requests ----------------------------------------------------------------------------------------------------

    def add(self, op: Add) -> None:
        """A request comes."""
        request = request_for(op, self._added)
        tracks = self.tracks.setdefault(op.id, [])
        twin = bool(tracks) and tracks[-1].request.place is not Place.FINISHED
        # An id also stays taken until the load that its last bearer left behind has ended.
        twin = twin or any(orphan.id == op.id for orphan in self.scheduler.orphans)
        fits = self.config.fits(op.prompt)
        try:
            self.scheduler.add_request(request)
        except RequestRefused:
            self.refused.append(op.id)
            sound = not twin and op.prompt > 0 and op.max_tokens > 0 and op.remote_tokens <= op.prompt
            if self.monitor is not None and sound:
                self.monitor.refused(op.id, op.prompt, fits, self.now)
            return
        except CRASHES as error:
            self._crash(error)
            return
        if twin:
            self._report("one-place", f"{op.id} was accepted while another request of this id was live")
        if self.monitor is not None:
            self.monitor.accepted(op.id, op.prompt, fits, self.now)
        tracks.append(Track(request, self._added, op, len(self.history)))
        self._added += 1

    def abort(self, op: Abort) -> None:
        """The client of a request goes away."""
        track = self._track(op.id, op, op.instance)
        if track is None:
            return
        request = track.request
        live = request.place is not Place.FINISHED
        self._notice(self.scheduler.abort, live, request)
        if live and request.place is Place.FINISHED and self.monitor is not None:
            self.monitor.finished(op.id, "abort", self.now)

    def stop(self, op: Stop) -> None:
        """The next token delivered to a request will be a stop token."""
        track = self._track(op.id, op)
        if track is not None:
            track.stopping = True

    def ineligible(self, op: Ineligible) -> None:
        """A request cannot run in the next steps."""
        track = self._track(op.id, op)
        if track is not None:
            request = track.request
            request.eligible_at = max(request.eligible_at, self.scheduler.num_steps + op.steps)

    def _track(self, id: str, op: object, instance: int | None = None) -> Track | None:
        """Return the request that an operation means; None if the scheduler refused it."""
        tracks = self.tracks.get(id)
        if tracks is None:
            raise ScenarioError(f"{type(op).__name__}: no request {id!r} has been added before")
        if instance is not None and instance >= len(tracks):
            if instance >= len(tracks) + self.refused.count(id):
                raise ScenarioError(
                    f"{type(op).__name__}: instance {instance} of {id!r}, and only {len(tracks)} have been added before"
                )
            return None
        return tracks[-1 if instance is None else instance] if tracks else None

    # --- The remote store --------------------------------------------------------------------------------------------

    def remote_done(self, op: RemoteDone) -> None:
        """A load has landed."""
        track = self._track(op.id, op)
        if track is not None:
            self._notice(self.scheduler.load_finished, self._is_loading(track.request), track.request)

    def remote_failed(self, op: RemoteFailed) -> None:
        """A load ended, and not all of it is valid."""
        track = self._track(op.id, op)
        if track is None:
            return
        request = track.request
        spoilt = self._model.spoil(track, op.from_block * self.config.block_size)
        live = spoilt or self._is_loading(request)
        self._notice(self.scheduler.load_failed, live, request, op.from_block)

    def _is_loading(self, request: Request) -> bool:
        return request.place is Place.PARKED or request in self.scheduler.orphans

    def _notice(self, call: Callable[..., object], known: bool, *args: object) -> None:
        """Hand the scheduler a notice; `known`: it speaks of something live, so it may change something."""
        before = self.observed() if self.monitor is not None else None
        self._call(call, *args)
        if self.monitor is not None and before is not None and not self.ended:
            self.monitor.notice(before, self.observed(), known, self.now)
        self._idle()

    # --- The operator ------------------------------------------------------------------------------------------------

    def pause(self, op: Pause) -> None:
        """Admission, or everything, stops."""
        self._call(self.scheduler.pause, op.mode)

    def resume(self, op: Resume) -> None:
        """A pause ends."""
        self._call(self.scheduler.resume)

    def reset_prefix_cache(self, op: ResetPrefixCache) -> None:
        """The cache is emptied; whatever runs is preempted."""
        ran = list(self.scheduler.running)
        self._call(self.scheduler.reset_prefix_cache)
        for request in ran:
            if request.place is Place.WAITING:
                self._preempted(request.id)

    # --- Book-keeping ------------------------------------------------------------------------------------------------

    def _preempted(self, id: str) -> None:
        for track in self.tracks.get(id, ())[-1:]:
            track.num_preemptions += 1

    def _idle(self) -> None:
        """With nothing left to do a wave ends."""
        if self._lock_step and not self.ended and not self.scheduler.has_unfinished_requests():
            self._clock.idle()

    def _call(self, call: Callable[..., object], *args: object) -> None:
        try:
            call(*args)
        except CRASHES as error:
            self._crash(error)

    def _report(self, invariant: str, message: str, step: int | None = None) -> None:
        self.violations.append(Violation(invariant, self.now if step is None else step, message))

    def _crash(self, error: BaseException) -> None:
        """The scheduler raised what it does not declare; there is no telling what state it is in."""
        self.ended = True
        self._report("no-crash", where_raised(error, own=watchdog.__file__))


def _make(factory: Factory, config: Config, policy: Policy) -> Schedulable:
    try:
        scheduler = factory(config, policy)
    except OnbeatError:
        raise
    except CRASHES as error:
        raise NotAScheduler(f"the scheduler cannot be made from (config, policy): {where_raised(error)}") from error
    if lacking := lacks(scheduler):
        raise NotAScheduler(
            f"{type(scheduler).__name__} has no {', '.join(lacking)}; it must have the interface of the reference"
        )
    return scheduler
