"""Two runs from one state: the invariants that compare a throttled step with the step that might have been.

`Driver` watches what happens. `Runs` asks before every step, on copies of the scheduler, what would happen with the
throttle, without it, and without the feature, and holds the answers against each other.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Self, cast

from onbeat_proofs.foreign.branching import branch
from onbeat_proofs.foreign.families import DecidesItself, Factory, TakesPolicy
from onbeat_proofs.foreign.policies import policy_of, without_hold
from onbeat_proofs.foreign.targets import is_ours
from onbeat_proofs.foreign.watchdog import CRASHES, GUARD, Hang
from onbeat_proofs.play.drain import AT_REST, drain
from onbeat_proofs.play.driver import Driver, narrowed
from onbeat_proofs.play.fake_model import Due
from onbeat_proofs.play.keeps_text import Comparison
from onbeat_proofs.play.letters import live
from onbeat_proofs.play.replay import Replay, play
from onbeat_proofs.play.tally import Tally
from onbeat_proofs.scenarios.operations import Add, Op, Scenario, Schedule
from onbeat_reference.lifecycle import Outputs
from onbeat_reference.schedulable import Schedulable
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.catalogue import CATALOGUE, Pair
from onbeat_spec.config import Config
from onbeat_spec.errors import OnbeatError
from onbeat_spec.invariants import RUNS_PREDICATES
from onbeat_spec.monitor import Monitor
from onbeat_spec.policy import Policy
from onbeat_spec.records import Facts, Violation


class Runs(Driver):
    """A driver that also compares two runs from every state in which a step is scheduled.

    Args:
        config: sizes and modes.
        factory: makes the scheduler; it must be deterministic.
        policy: by default the one that `config.policy` names.
        tally: counts the premises met; shared by all forks.
        most: compare before so many steps, then no more; None: before all.
        since: compare before no step of a lower index.
        compares: False leaves the comparing to whoever calls `compare`.
        rests: `AT_REST` drains the rank first; False: it is an expectation like others.
    """

    def __init__(
        self,
        config: Config,
        factory: Factory = Scheduler,
        *,
        policy: Policy | None = None,
        tally: Tally | None = None,
        compares: bool = True,
        most: int | None = None,
        since: int = 0,
        rests: bool = True,
    ) -> None:
        super().__init__(config, factory, policy=policy)
        self.judges = (AT_REST,) if rests else ()
        self.tally = tally if tally is not None else Tally()
        self.compares = compares
        self.most, self.since = most, since
        self._off = without_hold(cast(TakesPolicy, self.scheduler).policy if self._takes_policy else self.policy)

    def fork(self) -> Self:
        new = super().fork()
        new.tally, new.compares, new.most, new._off = self.tally, self.compares, self.most, self._off
        new.since, new.judges = self.since, self.judges
        return new

    def apply(self, op: Op) -> None:
        if self.ended:
            return
        self.tally.count("call")
        if op in self.judges:
            self._require_rest()  # by operations of its own, each watched
        else:
            self.trail = (op, self.trail)
        with self._watched():
            self._apply(op)

    def _apply(self, op: Op) -> None:
        step = len(self.history)
        compared = self.compares and self.since <= step and (self.most is None or step < self.most)
        if isinstance(op, Schedule) and compared and self.in_flight < self.config.async_depth:
            self._compare_runs(op.throttle is None, op.budget)
        refused = len(self.refused)
        super().apply(op)
        if len(self.refused) > refused and isinstance(op, Add):
            self.tally.count("refused", not self.config.fits(op.prompt))

    def _require_rest(self) -> None:
        """Let everybody finish; whoever cannot is stuck."""
        drain(self)
        left = [track.request.id for track in live(self)]
        if left and not self.ended:
            self._report("progress", f"{', '.join(left)} never ended, though nothing kept the rank from working")

    def compare(self, by_clock: bool, budget: int | None = None) -> None:
        """Compare what the next step would be: throttled, unthrottled, without the feature, and on a beat.

        Args:
            by_clock: the clock chooses the flag of the next step.
            budget: most tokens of that step, if fewer than configured.
        """
        with self._watched(Schedule(None if by_clock else True)):
            self._compare_runs(by_clock, budget)

    @contextmanager
    def _watched(self, about_to: Op | None = None) -> Iterator[None]:
        """Watch what follows, if this process watches; what the class raises where it is only read is a crash."""
        guard, trail = GUARD.get(), self.trail if about_to is None else (about_to, self.trail)
        try:
            with nullcontext() if guard is None else guard.during(self.config, trail):
                yield
        except OnbeatError:
            raise
        except CRASHES as error:
            if is_ours(error) and not isinstance(error, Hang):
                raise
            self._crash(error)

    def _compare_runs(self, by_clock: bool, budget: int | None) -> None:
        config = self.config if budget is None else narrowed(self.config, budget)
        before = self.observed()

        def attempt(throttle: bool, scheduler: Schedulable) -> Facts:
            scheduler.config = config
            return Facts(config, before, scheduler.schedule(throttle), self.observed(scheduler))

        try:
            one, other = branch(self.scheduler, {}), branch(self.scheduler, {})
            throttled, unthrottled = attempt(True, one), attempt(False, other)
            pairs: dict[Pair, tuple[Facts, Facts]] = {"throttle": (throttled, unthrottled)}
            featureless = self._without_feature()
            if featureless is not None:
                pairs["feature"] = unthrottled, attempt(False, featureless)
            on_beat = by_clock and not self._clock.throttle()
            if on_beat:
                pairs["beat"] = attempt(self._clock.throttle(), branch(self.scheduler, {})), unthrottled
        except CRASHES as error:
            self._crash(error)
            return
        now = throttled.step.index
        try:
            matters = self.tally.runs(throttled, unthrottled)
            if self._decides_itself:
                self._hold_against_text(throttled, unthrottled, cast(DecidesItself, one), cast(DecidesItself, other))
            for entry, check in RUNS_PREDICATES:
                pair = pairs.get(entry.pair)
                verdict = check(*pair) if pair is not None else None
                if verdict is not None:
                    self._report(entry.id, verdict, now)
        except KeyError as error:
            self._report("one-place", f"the step speaks of {error.args[0]!r}, which is not live", now)
            return
        if on_beat and self.config.prefill_schedule_interval > 1:
            self.tally.count("beat", matters)

    def _without_feature(self) -> Schedulable | None:
        """Return a copy of the scheduler without the throttle, as far as its family allows; None: not at all."""
        scheduler = branch(self.scheduler, {})
        if self._takes_policy:
            cast(TakesPolicy, scheduler).policy = self._off
        elif self._decides_itself:
            cast(DecidesItself, scheduler).flip_flag()
        else:
            return None
        return scheduler

    def _hold_against_text(
        self, throttled: Facts, unthrottled: Facts, one: DecidesItself, other: DecidesItself
    ) -> None:
        """Ask whether a scheduler that decides by itself keeps the text; the reference is given its policy.

        Args:
            throttled: a step.
            unthrottled: the same one without the throttle.
            one: the scheduler after the former.
            other: the scheduler after the latter.
        """
        chunks = self.by_itself.counted_as_chunks if self.by_itself is not None else None
        comparison = Comparison(self.policy, throttled, unthrottled, chunks, (one.aside, other.aside))
        for id, message in comparison.strays():
            self._report(id, message, throttled.step.index)
        self.tally.met.update(comparison.met())
        self.tally.count("by_text", comparison.by_text())

    # --- What is counted -----------------------------------------------------------------------------------------

    def _watch(self, monitor: Monitor, facts: Facts) -> None:
        super()._watch(monitor, facts)
        self.tally.step(facts)

    def _notice(self, call: Any, known: bool, *args: object) -> None:
        self.tally.count("notice", known)
        super()._notice(call, known, *args)

    def _compare(self, index: int, outputs: Outputs, dues: Sequence[Due]) -> None:
        super()._compare(index, outputs, dues)
        self.tally.count("delivered", any(track.num_preemptions or self.in_flight for track, _, _ in dues))
        if outputs.finished and not self.scheduler.has_unfinished_requests():
            self.tally.count("rest")


def replay_runs(
    scenario: Scenario,
    factory: Factory = Scheduler,
    policy: Policy | None = None,
    *,
    tally: Tally | None = None,
    most: int | None = None,
    expects: bool = True,
    rests: bool = True,
) -> Replay:
    """Run one scenario as `replay` does, and compare two runs before its steps.

    Args:
        scenario: what to run.
        factory: makes the scheduler, from configuration and policy.
        policy: by default the one that the scenario's configuration names, relative to its file.
        tally: counts the premises met.
        most: compare before so many steps, then no more; None: before all.
        expects: False asks for the invariants only, not for what the scenario expects.
        rests: as of `Runs`.

    Raises:
        ScenarioError: an operation or expectation is impossible whatever the scheduler does.
        PolicyError: there is no such policy.
        NotAScheduler: what the factory makes cannot be driven.
    """
    if policy is None:
        policy = policy_of(scenario.config.policy, scenario.origin.parent if scenario.origin else None)()
    driver = Runs(scenario.config, factory, policy=policy, tally=tally, most=most, rests=rests)
    outcome = play(scenario, driver, expects=expects)
    outcome.met = driver.tally.met
    return outcome


def compares(scenario: Scenario) -> bool:
    """Whether a scenario speaks of an invariant that compares two runs, or that only such a comparison tests."""
    entries = [CATALOGUE[id] for id in (*scenario.invariants, *scenario.violates) if id in CATALOGUE]
    return any(entry.runs is not None or entry.premise.runs or entry.premise.beat for entry in entries)


def violation_in(
    scenario: Scenario, invariant: str, factory: Factory = Scheduler, policy: Policy | None = None
) -> Violation | None:
    """Return the first violation of an invariant in a scenario, two runs compared before each step; None: it holds.

    Raises:
        as `replay_runs`.
    """
    violations = replay_runs(scenario, factory, policy).violations
    return next((violation for violation in violations if violation.invariant == invariant), None)
