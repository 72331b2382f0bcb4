"""The monitor on a live scheduler, cheap enough to leave on.

It shows the monitor partial states: of a step's requests, those that were not plainly served. A decode batch in which
everybody got a token costs a few sums. Every `audit_every` steps, and at rest, the whole state is looked at.
"""

from onbeat_reference.lifecycle import Lifecycle, Outputs
from onbeat_reference.observe import observe
from onbeat_reference.request import Request
from onbeat_spec.monitor import Monitor
from onbeat_spec.policy import is_decode, local_work
from onbeat_spec.records import Facts, Place, State, Step, View, Violation, view


class Watch:
    """Watches one scheduler: call `step` after every `schedule()`, `delivered` after every `update()`.

    Args:
        scheduler: the scheduler, before its first step.
        audit_every: steps between two looks at the whole state.
        any_flag: the caller passes any throttle flag it likes; otherwise a clock with the configured interval does.
    """

    def __init__(self, scheduler: Lifecycle, *, audit_every: int = 256, any_flag: bool = False) -> None:
        self.scheduler = scheduler
        self.monitor = Monitor(scheduler.config)
        if any_flag:
            self.monitor.interval = 0
        self.audit_every = audit_every
        self._saturated = scheduler.saturated

    @property
    def violations(self) -> list[Violation]:
        """What did not hold, in the order seen."""
        return self.monitor.violations

    def step(self, step: Step) -> None:
        """A step was scheduled."""
        before, after = self._around(step)
        self.monitor.step(Facts(self.scheduler.config, before, step, after))
        whole = step.index % self.audit_every == 0 or not self.scheduler.requests
        self.monitor.state(observe(self.scheduler) if whole else after, step.index)

    def delivered(self, outputs: Outputs) -> None:
        """Outputs were delivered."""
        for request in outputs.finished:
            assert request.finish_reason is not None
            self.monitor.finished(request.id, request.finish_reason.value, self.scheduler.num_steps)

    def _around(self, step: Step) -> tuple[State, State]:
        """Return the parts of the states before and after a step that the step did not treat plainly."""
        scheduler = self.scheduler
        before: dict[str, View] = {}
        after: dict[str, View] = {}
        if len(scheduler.running) != len(step.scheduled):
            for request in scheduler.running:
                if request.id not in step.scheduled:
                    before[request.id] = after[request.id] = view(request)
        for id in (*step.held, *step.admitted, *step.loading, *(eviction.victim for eviction in step.evictions)):
            request = scheduler.requests[id]
            after[id] = view(request)
            before[id] = self._was(step, request, after[id])
        for request in self._left_waiting(step):
            after[request.id] = view(request)
            before.setdefault(request.id, after[request.id])
        was, self._saturated = self._saturated, scheduler.saturated
        now = self._part(after, scheduler.saturated)
        # Mostly nothing stands out, and one state is both sides.
        plain = not before and was == scheduler.saturated
        parts = now if plain else self._part(before, was), now
        for eviction in step.evictions:
            # Not listed: only who it is counts here, and what it held before is not known any more.
            before.setdefault(eviction.cause, view(scheduler.requests[eviction.cause]))
        return parts

    def _was(self, step: Step, request: Request, now: View) -> View:
        """Reconstruct how a request stood before a step that admitted, loaded, held or preempted it."""
        if request.id in step.scheduled:
            at_hand = now.num_computed - step.scheduled[request.id]
            landed = request.id in step.resumed
            return now._replace(
                place=Place.WAITING,
                num_computed=at_hand if landed else 0,
                num_placeholders=0,
                external=now.external if landed else 0,
                remote_tokens=0 if landed else now.external,
                num_blocks=now.num_blocks if landed else 0,
            )
        if request.place is Place.PARKED:
            return now._replace(place=Place.WAITING, remote_tokens=now.external, external=0, num_blocks=0)
        if request.place is Place.WAITING and request.id not in step.held:
            return now._replace(place=Place.RUNNING)
        return now

    def _left_waiting(self, step: Step) -> list[Request]:
        """Return the first waiting request that could run, the first fresh prefill, and holders that may not run."""
        left: list[Request] = []
        found = seen_fresh = False
        holders = self.scheduler.num_slots - len(self.scheduler.running) - len(self.scheduler.parked)
        for request in self.scheduler.waiting:
            if request.eligible_at > step.index:
                if request.num_blocks > 0:
                    left.append(request)
                continue
            fresh = request.num_blocks == 0 and request.remote_tokens == 0 and not is_decode(local_work(request))
            if (fresh and not seen_fresh) or not found:
                left.append(request)
            found, seen_fresh = True, seen_fresh or fresh
            if seen_fresh and not holders:
                break
        return left

    def _part(self, requests: dict[str, View], saturated: bool) -> State:
        scheduler = self.scheduler
        running, waiting, parked = (
            tuple([id for id, request in requests.items() if request.place is place])
            for place in (Place.RUNNING, Place.WAITING, Place.PARKED)
        )
        return State(
            requests=requests,
            running=running,
            waiting=waiting,
            parked=parked,
            free=scheduler.pool.free,
            promised=scheduler.pool.promised,
            saturated=saturated,
            num_running=len(scheduler.running),
            num_loading=len(scheduler.parked) + len(scheduler.orphans),
            num_slots=scheduler.num_slots,
            held=-1,
            in_flight=len(scheduler.in_flight),
        )
