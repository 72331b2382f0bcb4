"""The monitor inside vLLM: every invariant of a step, evaluated on what was really scheduled.

It is asked for by environment variables, not by vLLM's `--additional-config`: that is part of the key of vLLM's
compilation cache, so that a look at the invariants would compile the model anew.
"""

import os
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace

from onbeat_engine.vllm.releases import LOGGER
from onbeat_engine.vllm.stock import Vllm
from onbeat_engine.vllm.turn import ScheduleCall
from onbeat_reference.observe_vllm import Arrivals, config_of, facts_of, observe_vllm, paused, step_of
from onbeat_spec.errors import ConfigError, InvariantViolated
from onbeat_spec.monitor import Monitor
from onbeat_spec.records import Facts, Place, State, Step

MONITOR = "ONBEAT_MONITOR"
FATAL = "ONBEAT_MONITOR_FATAL"

STOCKS_OWN = frozenset({"visit-once", "full-sequence-fits", "oldest-finishes"})
"""What vLLM's own step does not keep, throttled or not. A chunk may take the budget before a decode behind it, and a
decode goes without the memory that a step in flight still holds; what is admitted gets no promise; victims are chosen
by the order of admission, not of arrival. The policy is laid around that step and does not change it."""
STOCKS_OWN_UNHELD = STOCKS_OWN | {"order-kept"}
"""The same for a step that holds nobody: a failed load goes to the front of the queue."""


class Watch:
    """Evaluates the monitor on every step of one scheduler.

    Attributes:
        violations: counted by invariant id.
        fatal: raise at the first violation, instead of logging the first one of each invariant.
    """

    def __init__(self, violations: Counter[str], fatal: bool = False) -> None:
        self.violations = violations
        self.fatal = fatal
        self._arrivals = Arrivals()
        self._monitor: Monitor | None = None
        self._before: State | None = None
        self._seen: Set[str] = frozenset()
        """Who was there after the last step."""
        self._paused: str | None = None
        self._index = 0
        self._in_flight = 0
        self._broken = False

    @classmethod
    def if_asked(cls, violations: Counter[str], environment: Mapping[str, str] = os.environ) -> "Watch | None":
        """Return a watch if the environment asks for one.

        Raises:
            ConfigError: a variable has a value that means neither yes nor no.
        """
        fatal = _switch(environment, FATAL)
        return cls(violations, fatal) if fatal or _switch(environment, MONITOR) else None

    def came(self, id: str) -> None:
        """A request is about to be added."""
        self._arrivals.came(id)

    def updated(self) -> None:
        """The outputs of one step have come back."""
        self._in_flight -= 1

    def before(self, scheduler: Vllm) -> None:
        """A step is about to be scheduled."""
        if self._broken:
            return
        try:
            self._paused = paused(scheduler)
            self._before = self._observe(scheduler)
        except Exception as error:  # whatever it is: looking must not end the serving
            self._give_up(error)

    def after(self, scheduler: Vllm, output: Vllm) -> None:
        """A step has been scheduled.

        Raises:
            InvariantViolated: something did not hold, and `fatal`.
        """
        self._in_flight += 1
        if self._broken or self._before is None:
            return
        try:
            facts = self._facts(scheduler, output, self._before)
            monitor = self._evaluate(scheduler, facts)
        except Exception as error:  # as above
            self._give_up(error)
            return
        found, monitor.violations, hold = monitor.violations, [], facts.step.hold
        for violation in found:
            self.violations[violation.invariant] += 1
            if violation.invariant in (STOCKS_OWN if hold else STOCKS_OWN_UNHELD):
                continue  # it is counted, and neither logged nor fatal
            told = f"{violation.invariant} does not hold at step {violation.step}: {violation.message}"
            if self.fatal:
                raise InvariantViolated(f"{told}; unset {FATAL} to go on")
            if self.violations[violation.invariant] == 1:
                LOGGER.warning("%s (further ones are only counted)", told)

    def _observe(self, scheduler: Vllm) -> State:
        return observe_vllm(scheduler, self._arrivals, in_flight=self._in_flight)

    def _facts(self, scheduler: Vllm, output: Vllm, before: State) -> Facts:
        """Return the step as records: what vLLM tells, and what our own decisions were."""
        if self._monitor is None:
            config = config_of(scheduler, "onbeat")
            self._monitor = Monitor(config)
            if config.prefill_schedule_interval == 1:
                self._monitor.interval = 0  # whoever throttles all the same keeps a clock of his own
        config, turn, after = self._monitor.config, scheduler.onbeat_turn, self._observe(scheduler)
        step = step_of(
            output,
            before,
            after,
            config,
            index=self._index,
            throttle=turn.throttle,
            hold=turn.hold,
            paused=self._paused,
        )
        _tell(step, turn)
        return facts_of(config, _with_offers(before, turn), step, _with_loads(after, before, turn))

    def _evaluate(self, scheduler: Vllm, facts: Facts) -> Monitor:
        assert self._monitor is not None
        self._index += 1
        for id in self._seen - facts.before.requests.keys():
            self._monitor.finished(id, "", facts.step.index)
        self._seen = frozenset(facts.after.requests)
        self._monitor.step(facts)
        self._monitor.state(facts.after, facts.step.index)
        return self._monitor

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        LOGGER.warning(
            "The monitor stops: it cannot read this scheduler (%s: %s). Serving goes on; please report it",
            type(error).__name__,
            error,
        )


def _tell(step: Step, turn: ScheduleCall) -> None:
    """Put what the scheduler knows of its own decisions in place of what was inferred from outside."""
    step.lifted, step.wrote_flag = turn.lifted, turn.wrote_flag
    victims = {victim for victim, _, _ in step.evictions}
    step.held = [id for id in turn.held if id not in victims]


def _with_offers(before: State, turn: ScheduleCall) -> State:
    """Return the state before the step with the offers that vLLM only learns of within it."""
    requests = dict(before.requests)
    for id, tokens in turn.remote.items():
        if requests[id].external == 0:
            requests[id] = requests[id]._replace(remote_tokens=tokens)
    return replace(before, requests=requests)


def _with_loads(after: State, before: State, turn: ScheduleCall) -> State:
    """Return the state after the step with what was loaded within it: vLLM tells that of nobody who runs."""
    requests = dict(after.requests)
    for id, tokens in turn.remote.items():
        if before.requests[id].external == 0 and requests[id].place is Place.RUNNING:
            requests[id] = requests[id]._replace(external=tokens)
    return replace(after, requests=requests)


def _switch(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "0")
    if value not in ("0", "1", ""):
        raise ConfigError(f"{name} is {value!r}; it must be 0 or 1")
    return value == "1"
