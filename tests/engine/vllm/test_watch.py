"""The monitor inside vLLM: asked for or not, counted, logged once, fatal on request; it never ends the serving."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from onbeat_engine.vllm.watch import FATAL, MONITOR, STOCKS_OWN, STOCKS_OWN_UNHELD, Watch
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.errors import ConfigError, InvariantViolated
from onbeat_spec.records import Violation


@pytest.mark.parametrize(
    ("environment", "watches", "fatal"),
    [({}, False, False), ({MONITOR: "0"}, False, False), ({MONITOR: "1"}, True, False), ({FATAL: "1"}, True, True)],
)
def test_the_environment_asks_for_it(environment: dict[str, str], watches: bool, fatal: bool) -> None:
    watch = Watch.if_asked(Counter(), environment)
    assert (watch is not None) is watches
    assert watch is None or watch.fatal is fatal


def test_a_word_that_means_neither_yes_nor_no_is_refused() -> None:
    with pytest.raises(ConfigError, match="ONBEAT_MONITOR is 'maybe'; it must be 0 or 1"):
        Watch.if_asked(Counter(), {MONITOR: "maybe"})


def test_what_stock_steps_do_not_keep_is_in_the_catalogue() -> None:
    assert CATALOGUE.keys() >= STOCKS_OWN_UNHELD > STOCKS_OWN


class Told(Watch):
    """Finds what it is told to find."""

    found: tuple[str, ...] = ()

    def before(self, scheduler: Any) -> None:
        self._before = SimpleNamespace()  # type: ignore[assignment]  # it is not looked at

    hold = True

    def _facts(self, *arguments: Any) -> Any:
        return SimpleNamespace(step=SimpleNamespace(hold=self.hold))

    def _evaluate(self, *arguments: Any) -> Any:
        return SimpleNamespace(violations=[Violation(each, 3, "so it is") for each in self.found])


def step(watch: Watch, *found: str) -> None:
    if isinstance(watch, Told):
        watch.found = found
    watch.before(None)
    watch.after(None, SimpleNamespace())


def test_violations_are_counted_and_the_first_of_each_is_logged(heard: pytest.LogCaptureFixture) -> None:
    counts: Counter[str] = Counter()
    watch = Told(counts)
    step(watch, "budget", "slots")
    step(watch, "budget")
    step(watch)
    assert counts == {"budget": 2, "slots": 1}
    assert [record.args for record in heard.records] == [
        ("budget does not hold at step 3: so it is",),
        ("slots does not hold at step 3: so it is",),
    ]


def test_fatal_raises_at_the_first() -> None:
    watch = Told(Counter(), fatal=True)
    with pytest.raises(InvariantViolated, match="budget does not hold at step 3: so it is; unset ONBEAT_MONITOR_FATAL"):
        step(watch, "budget")


def test_what_the_stock_step_does_not_keep_is_counted_and_not_fatal(heard: pytest.LogCaptureFixture) -> None:
    counts: Counter[str] = Counter()
    step(Told(counts, fatal=True), *sorted(STOCKS_OWN))
    assert counts == dict.fromkeys(STOCKS_OWN, 1)
    assert not heard.records


def test_order_is_the_policys_in_a_held_step_and_the_stock_steps_in_another() -> None:
    watch = Told(Counter(), fatal=True)
    watch.hold = False
    step(watch, "order-kept")
    watch.hold = True
    with pytest.raises(InvariantViolated, match="order-kept does not hold"):
        step(watch, "order-kept")


def test_an_error_in_the_monitor_ends_the_monitor_only(heard: pytest.LogCaptureFixture) -> None:
    watch = Watch(Counter(), fatal=True)
    watch.before(SimpleNamespace())
    watch.after(SimpleNamespace(), SimpleNamespace())
    watch.before(SimpleNamespace())
    assert [record.msg[:18] for record in heard.records] == ["The monitor stops:"]
