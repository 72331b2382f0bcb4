"""The monitor: every invariant, watched on a scheduler that runs.

It is fed by whoever drives the scheduler: a test, a search, a replay, a serving engine, or a trace read back. It
decides nothing and changes nothing.
"""

from collections.abc import Sequence

from onbeat_spec.catalogue import Verdict
from onbeat_spec.config import Config
from onbeat_spec.invariants import HISTORIES, STATE_PREDICATES, STEP_PREDICATES
from onbeat_spec.invariants.lifecycle import (
    call_returned,
    delivered_as_sampled,
    exactly_once,
    late_changes_nothing,
    late_is_harmless,
    no_crash,
)
from onbeat_spec.invariants.memory import never_fits_refused, size_decides
from onbeat_spec.records import Facts, State, Violation


class Monitor:
    """Evaluates the invariants of one rank over one state, one step, and the history.

    Attributes:
        violations: what did not hold, in the order seen.
        interval: steps between beats, if a clock drives the throttle; 0 when the caller passes any flag it likes, so
            that only the hard bound `max_hold_steps` limits a hold.
        histories: what is remembered from step to step, by invariant.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.interval = config.prefill_schedule_interval
        self.violations: list[Violation] = []
        self.histories = {entry.id: history() for entry, history in HISTORIES}

    # --- Events ------------------------------------------------------------------------------------------------------

    def step(self, facts: Facts) -> None:
        """A step was scheduled."""
        now = facts.step.index
        for entry, check in STEP_PREDICATES:
            verdict = check(facts)
            if verdict is not None:
                self._judge(entry.id, now, verdict)
        for id, history in self.histories.items():
            for message in history.step(facts, self.interval):
                self._judge(id, now, message)

    def state(self, state: State, now: int) -> None:
        """Something happened; this is the state after it."""
        for entry, check in STATE_PREDICATES:
            verdict = check(self.config, state)
            if verdict is not None:
                self._judge(entry.id, now, verdict)

    def accepted(self, id: str, num_prompt: int, fits: bool, now: int = 0) -> None:
        """A request was accepted; `fits` says whether prompt and first token can ever have room."""
        self._judge(never_fits_refused.id, now, size_decides(id, num_prompt, fits=fits, accepted=True))

    def refused(self, id: str, num_prompt: int, fits: bool, now: int = 0) -> None:
        """A request was refused for its size."""
        self._judge(never_fits_refused.id, now, size_decides(id, num_prompt, fits=fits, accepted=False))

    def delivered(self, id: str, now: int, tokens: Sequence[int], expected: Sequence[int]) -> None:
        """A step's outputs for one request were delivered; `expected` is what was sampled at these positions."""
        self._judge(exactly_once.id, now, delivered_as_sampled(id, tokens, expected))

    def finished(self, id: str, reason: str, now: int) -> None:
        """A request ended."""
        for history in self.histories.values():
            history.finished(id)

    def released(self, id: str) -> None:
        """A request lost its KV otherwise than by a step; its next load is the first of another allocation."""
        for history in self.histories.values():
            history.released(id)

    def took_part(self, *, may_run: bool) -> None:
        """The rank took part in a forward of its group with a dummy; `may_run`: though it had work that might run.

        Without such work the group's clock went on without a step of this rank, and what counts steps in a row begins
        anew. A dummy in place of a step excuses nothing; it is itself against `wake-not-lost`, which the group watches.
        """
        if may_run:
            return
        for history in self.histories.values():
            history.took_part()

    def notice(self, before: State, after: State, known: bool, now: int = 0) -> None:
        """A notice (load landed or failed, abort) was handled; it may change something only if its object was known."""
        for history in self.histories.values():
            history.notice()
        self._judge(late_is_harmless.id, now, late_changes_nothing(before, after, known=known))

    def crashed(self, error: str, now: int) -> None:
        """A call raised what it does not declare."""
        self._judge(no_crash.id, now, call_returned(error))

    def _judge(self, invariant: str, now: int, verdict: Verdict) -> None:
        if verdict is not None:
            self.violations.append(Violation(invariant, now, verdict))
