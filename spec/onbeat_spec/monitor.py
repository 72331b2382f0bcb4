"""The monitor: every invariant, watched on a scheduler that runs.

It is fed by whoever drives the scheduler: a test, a search, a replay, a serving engine, or a trace read back. It
decides nothing and changes nothing.
"""

from collections.abc import Sequence

from onbeat_spec.catalogue import predicate
from onbeat_spec.config import Config
from onbeat_spec.invariants import STATE_PREDICATES, STEP_PREDICATES
from onbeat_spec.policy import runnable
from onbeat_spec.records import Facts, Place, State, Violation

IDLE_STEPS = 2
"""Steps in a row that may do nothing while work is there: one that evicts, one that the evicted then waits out."""


class Monitor:
    """Evaluates the invariants of one rank over one state, one step, and the history.

    Attributes:
        violations: what did not hold, in the order seen.
        interval: steps between beats, if a clock drives the throttle; 0 when the caller passes any flag it likes, so
            that only the hard bound `max_hold_steps` limits a hold.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.interval = config.prefill_schedule_interval
        self.violations: list[Violation] = []
        self._held: dict[str, int] = {}
        self._unwritten = 0
        self._idle = 0
        self._loading: dict[str, tuple[int, int]] = {}
        """For each request that loads or has loaded in its present allocation: since when, and its arrival."""

    # --- Events ------------------------------------------------------------------------------------------------------

    def step(self, facts: Facts) -> None:
        """A step was scheduled."""
        now = facts.step.index
        for entry, check in STEP_PREDICATES:
            verdict = check(facts)
            if verdict is not None:
                self._report(entry.id, now, verdict)
        self._watch_holds(facts)
        self._watch_flag(facts)
        self._watch_progress(facts)
        self._watch_loads(facts)

    def state(self, state: State, now: int) -> None:
        """Something happened; this is the state after it."""
        for entry, check in STATE_PREDICATES:
            verdict = check(self.config, state)
            if verdict is not None:
                self._report(entry.id, now, verdict)

    @predicate("never-fits-refused", "history")
    def accepted(self, id: str, num_prompt: int, fits: bool, now: int = 0) -> None:
        """A request was accepted; `fits` says whether prompt and first token can ever have room."""
        if not fits:
            self._report(
                "never-fits-refused", now, f"{id} with {num_prompt} prompt tokens can never fit; it was accepted"
            )

    def refused(self, id: str, num_prompt: int, fits: bool, now: int = 0) -> None:
        """A request was refused for its size."""
        if fits:
            self._report("never-fits-refused", now, f"{id} with {num_prompt} prompt tokens fits; it was refused")

    @predicate("exactly-once", "history")
    def delivered(self, id: str, now: int, tokens: Sequence[int], expected: Sequence[int]) -> None:
        """A step's outputs for one request were delivered; `expected` is what was sampled at these positions."""
        if list(tokens) != list(expected):
            self._report("exactly-once", now, f"{id} was delivered {list(tokens)}; sampled was {list(expected)}")

    def finished(self, id: str, reason: str, now: int) -> None:
        """A request ended."""
        self._held.pop(id, None)
        self._loading.pop(id, None)
        self._idle = 0

    def released(self, id: str) -> None:
        """A request lost its KV otherwise than by a step; its next load is the first of another allocation."""
        self._loading.pop(id, None)
        self._idle = 0

    def took_part(self, *, may_run: bool) -> None:
        """The rank took part in a forward of its group with a dummy; `may_run`: though it had work that might run.

        Without such work the group's clock went on without a step of this rank, and what counts steps in a row begins
        anew. A dummy in place of a step excuses nothing; it is itself against `wake-not-lost`, which the group watches.
        """
        if may_run:
            return
        self._held.clear()
        self._unwritten = 0
        self._idle = 0

    @predicate("late-is-harmless", "history")
    def notice(self, before: State, after: State, known: bool, now: int = 0) -> None:
        """A notice (load landed or failed, abort) was handled; it may change something only if its object was known."""
        self._idle = 0
        if not known and before != after:
            self._report("late-is-harmless", now, "a late notice changed the state")

    @predicate("no-crash", "history")
    def crashed(self, error: str, now: int) -> None:
        """A call raised what it does not declare."""
        self._report("no-crash", now, error)

    # --- Over time ---------------------------------------------------------------------------------------------------

    @predicate("held-at-most", "history")
    def _watch_holds(self, facts: Facts) -> None:
        """Count, for each held request, the steps in a row that held it."""
        most = self.config.max_hold_steps
        if self.interval:
            most = min(most, self.interval - 1)
        held = {id: self._held.get(id, 0) + 1 for id in facts.step.held}
        for id, count in held.items():
            if count > most:
                self._report(
                    "held-at-most", facts.step.index, f"{id} was held {count} steps in a row; {most} is the most"
                )
        self._held = held

    @predicate("flag-lag", "history")
    def _watch_flag(self, facts: Facts) -> None:
        """Count the steps in a row that could have written the flag and did not."""
        step = facts.step
        # A step that may not execute at all counts for no clock; it only occurs where a test asks for it.
        if step.wrote_flag or step.evictions or not step.open or facts.config.max_num_batched_tokens == 0:
            self._unwritten = 0
            return
        self._unwritten += 1
        most = min(self.interval - 1, self.config.max_hold_steps) if self.interval else self.config.max_hold_steps
        if self._unwritten > most:
            self._report(
                "flag-lag", step.index, f"the flag was not written for {self._unwritten} steps; {most} is the most"
            )

    @predicate("progress", "history")
    def _watch_progress(self, facts: Facts) -> None:
        """Count the steps in a row that did nothing with work that nothing else kept waiting."""
        step, before = facts.step, facts.before
        if step.scheduled or step.loading or not step.open or facts.config.max_num_batched_tokens == 0:
            self._idle = 0
            return
        listed = [before.requests[id] for id in (*before.running, *before.waiting)]
        owners = [request for request in listed if request.num_blocks > 0]
        others_due = before.num_loading > 0 or not all(runnable(request, step.index) for request in owners)
        could = any(runnable(request, step.index) for request in listed)
        self._idle = 0 if others_due or not could else self._idle + 1
        if self._idle > IDLE_STEPS:
            self._report("progress", step.index, f"{self._idle} steps in a row did nothing though work is there")

    @predicate("load-once", "history")
    @predicate("load-bounded", "history")
    def _watch_loads(self, facts: Facts) -> None:
        """Remember who loads since when; nobody does twice in one allocation, or beyond the deadline."""
        step, limit = facts.step, self.config.remote_load_timeout
        for eviction in step.evictions:
            self._loading.pop(eviction.victim, None)
        for id in step.loading:
            arrival = facts.after.requests[id].arrival
            if id in self._loading and self._loading[id][1] == arrival:
                self._report("load-once", step.index, f"{id} loads again within one allocation")
            self._loading[id] = step.index, arrival
        for id, (since, _) in self._loading.items():
            request = facts.after.requests.get(id)
            if limit and request is not None and request.place is Place.PARKED and step.index - since >= limit:
                self._report(
                    "load-bounded", step.index, f"{id} has been loading for {step.index - since} steps of {limit}"
                )

    def _report(self, invariant: str, now: int, message: str) -> None:
        self.violations.append(Violation(invariant, now, message))
