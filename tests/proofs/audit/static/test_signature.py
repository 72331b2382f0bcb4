"""What can be told of a class without running it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from onbeat_proofs.audit.static.signature import Misfit, misfits_of, probe
from onbeat_reference import CountingPool, Outputs, Request, Scheduler
from onbeat_spec.config import Config
from onbeat_spec.policy import Policy
from onbeat_spec.records import Step
from tests.proofs.audit.broken import FlagForwarded, NoFlag, OwnClock


def only(cls: type) -> Misfit:
    (misfit,) = misfits_of(cls)
    return misfit


def test_the_reference_fits() -> None:
    assert misfits_of(Scheduler) == []


def test_a_schedule_without_the_flag() -> None:
    misfit = only(NoFlag)
    assert misfit.fatal
    assert str(misfit).startswith("NoFlag.schedule: missing throttle flag: it is called with (throttle_prefills): ")
    assert "def schedule(self, throttle_prefills=False)" in misfit.message


class FlagByNameOnly(Scheduler):
    def schedule(self, *, throttle_prefills: bool = False) -> Step:  # type: ignore[override]
        return super().schedule(throttle_prefills)


class FlagRequired(Scheduler):
    def schedule(self, throttle_prefills: bool) -> Step:  # type: ignore[override]
        return super().schedule(throttle_prefills)


@pytest.mark.parametrize("cls", [FlagByNameOnly, FlagRequired])
def test_a_flag_that_callers_cannot_give(cls: type) -> None:
    misfit = only(cls)
    assert misfit.fatal
    assert "missing throttle flag" in misfit.message


def test_a_flag_found_in_a_class_in_between() -> None:
    class Derived(NoFlag):
        pass

    assert only(Derived).where == "NoFlag.schedule"


class MoreThanTheBase(Scheduler):
    def schedule(self, throttle_prefills: bool = False, trace: bool = False) -> Step:
        return super().schedule(throttle_prefills)

    def abort(self, request: Request, *, reason: str = "") -> bool:
        return super().abort(request)

    def load_failed(self, *args: Any, **kwargs: Any) -> None:
        super().load_failed(*args, **kwargs)


@pytest.mark.parametrize("cls", [FlagForwarded, MoreThanTheBase])
def test_what_takes_every_call_fits(cls: type) -> None:
    assert misfits_of(cls) == []


def test_a_hook_without_a_keyword() -> None:
    """B31: the base has learned a parameter, the override has not."""

    class Stale(Scheduler):
        def update(self, step: Step, sampled: Mapping[str, Sequence[int]]) -> Outputs:  # type: ignore[override]
            return super().update(step, sampled)

    misfit = only(Stale)
    assert misfit.where == "Stale.update"
    assert "called with (step, sampled, drafts): too many positional arguments" in misfit.message
    assert "take update(self, step, sampled, drafts=None), or *args and **kwargs" in misfit.message


def test_a_renamed_parameter_breaks_callers_by_name() -> None:
    class Renamed(Scheduler):
        def load_failed(self, request: Request, first_bad: int = 0) -> None:
            super().load_failed(request, first_bad)

    assert "from_block" in only(Renamed).message


def test_a_helper_with_a_stale_parameter_list() -> None:
    """B30: reached only by requests that wait for a remote load, so it would run for a long time."""

    class HalfCopied(Scheduler):
        def _start_load(self, request: Request) -> None:  # type: ignore[override]
            raise NotImplementedError

    misfit = only(HalfCopied)
    assert not misfit.fatal
    assert misfit.where == "HalfCopied._start_load"


def test_a_coroutine_is_not_awaited() -> None:
    class Async(Scheduler):
        async def schedule(self, throttle_prefills: bool = False) -> Step:  # type: ignore[override]
            raise NotImplementedError

    assert "coroutine" in only(Async).message


def test_methods_and_properties_are_not_the_same() -> None:
    class Swapped(Scheduler):
        def num_slots(self) -> int:  # type: ignore[override]
            return 0

        @property
        def has_unfinished_requests(self) -> bool:  # type: ignore[override]
            return False

        resume = None  # type: ignore[assignment]

    messages = {misfit.where: misfit.message for misfit in misfits_of(Swapped)}
    assert "property" in messages["Swapped.num_slots"]
    assert "it is called" in messages["Swapped.has_unfinished_requests"]
    assert messages["Swapped.resume"] == "is missing"


def test_constructors_take_config_and_policy() -> None:
    class Eager(Scheduler):
        def __init__(self, config: Config, pool: CountingPool, policy: Policy) -> None:
            super().__init__(config, policy, pool)

    class Plain(Scheduler):
        def __init__(self, config: Config) -> None:
            super().__init__(config)

    assert "it is called with (config)" in only(Eager).message
    assert "it is called with (config, policy)" in only(Plain).message
    assert only(Plain).fatal


def test_attributes_that_are_gone() -> None:
    """B31: a request's field has vanished; nothing shows it until the line is reached."""

    class Outdated(Scheduler):
        def abort(self, request: Request) -> bool:
            if request.num_output_placeholders and self.kv_cache_manager:  # type: ignore[attr-defined]
                return False
            self.aborted = request.id
            return super().abort(request)

        def pause(self, mode: Any = "new") -> None:
            assert self.aborted
            super().pause(mode)

    assert [str(misfit) for misfit in misfits_of(Outdated)] == [
        "Outdated.abort: reads request.num_output_placeholders, which a request does not have",
        "Outdated.abort: reads self.kv_cache_manager, which neither the class nor its base has",
    ]


def test_a_class_that_answers_for_anything_is_left_alone() -> None:
    class Anything(Scheduler):
        def __getattr__(self, name: str) -> int:
            return 0

        def resume(self) -> None:
            assert not self.whatever

    assert misfits_of(Anything) == []


def test_a_class_of_its_own_is_held_to_the_calls_that_are_made() -> None:
    class Alone:
        def __init__(self, config: Config, policy: Policy | None = None) -> None: ...

        def schedule(self, throttle: bool = False) -> None: ...

        def add_request(self, request: Request) -> None: ...

        def update(self, step: Step, sampled: Any) -> None: ...

    wheres = {misfit.where: misfit.message for misfit in misfits_of(Alone)}
    assert wheres["Alone.abort"] == "is missing"
    assert "drafts" in wheres["Alone.update"]


def test_the_step_counter_is_part_of_the_contract() -> None:
    assert probe(Scheduler, Policy()) is None
    misfit = probe(OwnClock, Policy())
    assert misfit is not None
    assert str(misfit).startswith("OwnClock.num_steps: is 0, 1, 1, 1 after 0 to 3 steps")
