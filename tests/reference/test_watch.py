"""The live monitor: it sees what it was made to see, and says nothing that a full look would not say."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from onbeat_reference import Request, Scheduler
from onbeat_reference.lifecycle import InFlight, Lifecycle
from onbeat_reference.observe import observe
from onbeat_reference.watch import Watch
from onbeat_spec.config import Config
from onbeat_spec.monitor import Monitor
from onbeat_spec.policy import Policy
from onbeat_spec.records import Facts, Place, Step
from tests.reference.helpers import examples, land, request, scheduler, turn
from tests.reference.histories import CONFIGS, SEQUENCES, Run

# --- Schedulers with one fault each ----------------------------------------------------------------------------------


class OverBudget(Scheduler):
    """Everybody gets all the tokens that he needs."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, self.Generous())

    class Generous(Policy):
        def grant(self, *, work: int, budget: int, cap: int) -> int:
            return work


class LeavesOut(Scheduler):
    """The last of the running list is not visited."""

    def _serve(
        self, flight: InFlight, requests: Sequence[Request], hold: bool, owed: Sequence[int] | None = None
    ) -> tuple[list[Request], list[int]]:
        return super()._serve(flight, requests[:-1] if len(requests) > 1 else requests, hold, owed)


class NewestFirst(Scheduler):
    """The waiting list is looked through from its end."""

    def _scan(self, flight: InFlight, requests: Sequence[Request], hold: bool) -> None:
        super()._scan(flight, requests[::-1], hold)


class TurnsRound(Scheduler):
    """What is left waiting is put back in reverse."""

    def _scan(self, flight: InFlight, requests: Sequence[Request], hold: bool) -> None:
        super()._scan(flight, requests, hold)
        self.waiting.reverse()


class FlagInHolds(Scheduler):
    """A step that held writes the flag: those held are backlog to it."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, self.Eager())

    class Eager(Policy):
        def writes_flag(self, *, hold: bool, preempted: bool, open: bool) -> bool:
            return open and not preempted


class FlagStuck(Scheduler):
    """Once set, the flag stays set."""

    def _write_flag(self, step: Step) -> None:
        before = self.saturated
        super()._write_flag(step)
        self.saturated = self.saturated or before


class HoldsDecodes(Scheduler):
    """A hold passes over decodes as well, but for the first."""

    def _serve(
        self, flight: InFlight, requests: Sequence[Request], hold: bool, owed: Sequence[int] | None = None
    ) -> tuple[list[Request], list[int]]:
        if not hold or len(requests) < 2:
            return super()._serve(flight, requests, hold, owed)
        flight.step.held.extend(each.id for each in requests[1:])
        return super()._serve(flight, requests[:1], hold, owed)


class Forgets(Scheduler):
    """A victim keeps its count of computed tokens."""

    def _drop_kv(self, request: Request) -> int:
        computed = request.num_computed
        released = super()._drop_kv(request)
        request.num_computed = computed if request.num_tokens > computed else 0
        return released


class PaysNothing(Scheduler):
    """The oldest goes for the youngest."""

    def _victim(self, step: Step, request: Request) -> Request:
        return self.running[0]


class LoadsTwice(Scheduler):
    """The offer of the remote store is not used up."""

    def _start_load(self, step: Step, request: Request) -> None:
        offered = request.remote_tokens
        super()._start_load(step, request)
        request.remote_tokens = offered


class Promises(Scheduler):
    """What a newcomer still needs is not set aside for it."""

    def _admit(self, flight: InFlight, request: Request, at_hand: int, external: int) -> None:
        super()._admit(flight, request, at_hand, external)
        self.pool.promised -= request.reserved
        request.reserved = 0


FAULTS: list[type[Scheduler]] = [
    OverBudget,
    LeavesOut,
    NewestFirst,
    TurnsRound,
    FlagInHolds,
    FlagStuck,
    HoldsDecodes,
    Forgets,
    PaysNothing,
    LoadsTwice,
    Promises,
]


# --- One fault, one violation ----------------------------------------------------------------------------------------


def seen(kind: type[Scheduler], *rounds: tuple[list[Request], bool], **config: Any) -> list[tuple[str, int]]:
    """What the watch sees: before each step these requests come, and the step is throttled or not."""
    made = kind(Config(**{"block_size": 4, "num_blocks": 100, **config}))
    watch = Watch(made, any_flag=True)
    for newcomers, throttle in rounds:
        for each in newcomers:
            made.add_request(each)
        watch.step(made.schedule(throttle))
        watch.delivered(land(made))
    return [(violation.invariant, violation.step) for violation in watch.violations]


def r(id: str, prompt: int = 4, **more: Any) -> Request:
    return request(id, prompt, **more)


QUIET: tuple[list[Request], bool] = ([], False)


def test_more_tokens_than_the_budget() -> None:
    rounds = ([r("a", 6), r("b", 6)], False), QUIET
    assert seen(Scheduler, *rounds, max_num_batched_tokens=8) == []
    assert ("budget", 0) in seen(OverBudget, ([r("a", 6), r("b", 6)], False), QUIET, max_num_batched_tokens=8)


def test_a_decode_left_out() -> None:
    assert seen(LeavesOut, ([r("a"), r("b")], False)) == []
    assert seen(LeavesOut, ([r("a"), r("b")], False), QUIET) == [("visit-once", 1)]


def test_a_decode_held() -> None:
    assert seen(HoldsDecodes, ([r("a"), r("b")], False), QUIET) == []
    violations = seen(HoldsDecodes, ([r("a"), r("b")], False), ([], True))
    assert ("decode-never-held", 1) in violations
    assert ("one-token-passes", 1) in violations


def test_the_younger_admitted_first() -> None:
    assert seen(NewestFirst, ([r("a")], False), ([r("b")], False)) == []
    assert ("order-kept", 0) in seen(NewestFirst, ([r("a"), r("b")], False), max_num_seqs=1)


def test_the_flag_written_by_a_step_that_held() -> None:
    assert seen(FlagInHolds, ([r("a")], False), QUIET, ([], True)) == []
    assert ("flag-only-when-open", 1) in seen(FlagInHolds, ([r("a")], False), ([r("b")], True))


def test_the_flag_that_stays() -> None:
    alone: dict[str, Any] = {"max_num_seqs": 1}
    ends = ([r("a", max_tokens=1), r("b", max_tokens=9)], False)
    assert seen(FlagStuck, ends, **alone) == []
    assert seen(FlagStuck, ([r("a", max_tokens=1), r("b", max_tokens=9)], False), QUIET, **alone) == [
        ("flag-means-backlog", 1)
    ]


def test_a_backlog_without_the_flag() -> None:
    class Never(Policy):
        def saturated(self, *, backlog: bool, waiting: bool) -> bool:
            return False

    made = Scheduler(Config(max_num_seqs=1), Never())
    watch = Watch(made)
    made.add_request(r("a"))
    made.add_request(r("b"))
    watch.step(made.schedule())
    assert [violation.invariant for violation in watch.violations] == ["flag-means-backlog"]


def test_the_flag_changed_by_a_paused_step() -> None:
    """Nothing else stands out in that step: the one that waited is gone."""
    made = scheduler(r("a", max_tokens=9), r("b"), policy="local-work", max_num_seqs=1)
    watch = Watch(made)
    watch.step(made.schedule())
    land(made)
    assert made.saturated
    made.abort(made.waiting[0])
    made.pause("new")
    watch.step(made.schedule())
    assert [violation.invariant for violation in watch.violations] == ["flag-only-when-open"]


@pytest.mark.parametrize("first", [{"prompt": 8, "remote": 4}, {"prompt": 1}], ids=["one that will load", "one token"])
def test_the_younger_admitted_first_behind_one_whom_anybody_may_overtake(first: dict[str, int]) -> None:
    """Who stands first of those left proves nothing; the first fresh prefill behind him does."""
    rounds = ([r("l", **first), r("old", 8), r("young", 8)], False)
    assert seen(NewestFirst, rounds, max_num_seqs=1) == [("order-kept", 0)]


def test_the_younger_admitted_first_behind_a_landed_one() -> None:
    landed = r("l", 8, remote=4)
    made = NewestFirst(Config(block_size=4, num_blocks=100, max_num_seqs=2, max_num_batched_tokens=8))
    made.add_request(landed)
    turn(made)
    made.load_finished(landed)
    for each in (r("old", 8), r("young", 8)):
        made.add_request(each)
    watch = Watch(made)
    assert watch.scheduler is made
    watch.step(made.schedule())
    assert [each.id for each in made.waiting] == ["l", "old"]
    assert [violation.invariant for violation in watch.violations] == ["order-kept"]


def test_a_victim_with_its_counts() -> None:
    rounds = [([r("a", 7), r("b", 7)], False), QUIET, QUIET]
    assert seen(Forgets, *rounds[:2], num_blocks=4) == []
    rounds = [([r("a", 7), r("b", 7)], False), QUIET, QUIET]
    assert ("evicted-is-out", 2) in seen(Forgets, *rounds, num_blocks=4)


def test_the_oldest_as_victim() -> None:
    rounds = [([r("a", 6), r("b", 7)], False), QUIET, QUIET]
    assert ("oldest-finishes", 2) in seen(PaysNothing, *rounds, num_blocks=4)


def test_a_load_that_leaves_its_offer() -> None:
    assert ("load-once", 0) in seen(LoadsTwice, ([r("a", 8, remote=4)], False))


def test_a_newcomer_without_its_promise() -> None:
    assert ("full-sequence-fits", 0) in seen(Promises, ([r("a", 12)], False), max_num_batched_tokens=4)


@pytest.mark.parametrize("newcomer", [{"prompt": 8, "remote": 4}, {"prompt": 8}, {"prompt": 1}])
def test_whoever_lacks_a_slot_is_the_backlog_that_the_flag_speaks_of(newcomer: dict[str, int]) -> None:
    assert seen(Scheduler, ([r("a"), r("b", **newcomer)], False), QUIET, max_num_seqs=1) == []


def waits(made: Scheduler, steps: int) -> list[str]:
    """What the watch says of so many steps that do nothing."""
    watch = Watch(made)
    for _ in range(steps):
        step = made.schedule()
        assert not step.scheduled
        assert not step.loading
        watch.step(step)
        watch.delivered(land(made))
    return [violation.invariant for violation in watch.violations]


def test_blocks_of_an_ended_load_are_waited_for() -> None:
    each = r("l", 16, remote=16)
    made = scheduler(each, num_blocks=5)
    turn(made)
    made.abort(each)
    made.add_request(r("w", 8))
    assert waits(made, 5) == []


def test_a_landed_request_that_may_not_run_is_waited_for() -> None:
    """It holds the only slot."""
    each = r("l", 8, remote=4)
    made = scheduler(each, max_num_seqs=1)
    turn(made)
    made.load_finished(each)
    each.eligible_at = 99
    made.add_request(r("w", 8))
    assert waits(made, 5) == []


def test_nobody_is_waited_for_who_may_not_run_and_holds_nothing() -> None:
    """A scheduler that never looks at its waiting list has no excuse."""

    class Idle(Policy):
        def scans(self, *, preempted: bool, open: bool) -> bool:
            return False

        def writes_flag(self, *, hold: bool, preempted: bool, open: bool) -> bool:
            return False

    made = Scheduler(Config(block_size=4), Idle())
    aside = r("aside", 8)
    for each in (aside, r("w", 8)):
        made.add_request(each)
    aside.eligible_at = 99
    assert waits(made, 3).count("progress") == 1


def test_holds_that_last_too_long() -> None:
    """By its clock nobody is held two steps in a row at interval 2; with any flag the hard bound counts."""
    for any_flag, expected in ((False, ["flag-lag", "held-at-most"]), (True, [])):
        made = scheduler(r("a"), prefill_schedule_interval=2)
        watch = Watch(made, any_flag=any_flag)
        watch.step(made.schedule())
        land(made)
        made.add_request(r("b"))
        for _ in range(2):
            watch.step(made.schedule(throttle_prefills=True))
            land(made)
        assert [violation.invariant for violation in watch.violations] == expected


def test_the_whole_state_is_looked_at_now_and_then() -> None:
    """A leaked block shows in no step: only in the sum, every so many steps and at rest."""
    made = scheduler(r("a", max_tokens=99))
    watch = Watch(made, audit_every=4)
    for index in range(6):
        watch.step(made.schedule())
        watch.delivered(land(made))
        if index == 1:
            made.pool.free -= 1
    assert [(violation.invariant, violation.step) for violation in watch.violations] == [("blocks-conserved", 4)]
    made.abort(made.running[0])
    watch.step(made.schedule())
    assert [violation.step for violation in watch.violations] == [4, 6]


def test_it_watches_the_end_of_requests() -> None:
    """The next of a name that has ended begins anew: its load is not the second of one allocation."""
    made = scheduler()
    watch = Watch(made)
    for _ in range(3):
        each = r("a", 8, remote=4, max_tokens=1)
        made.add_request(each)
        watch.step(made.schedule())
        watch.delivered(land(made))
        made.load_finished(each)
        watch.step(made.schedule())
        watch.delivered(land(made))
        assert each.place is Place.FINISHED
    assert watch.violations == []


# --- Random runs -----------------------------------------------------------------------------------------------------


KNOWN = (
    "id",
    "priority",
    "arrival",
    "limit",
    "num_prompt",
    "num_tokens",
    "num_placeholders",
    "num_computed",
    "external",
    "remote_tokens",
    "place",
)
"""What a watch can tell of a request as it stood before a step, by what it sees after it."""


@examples(150)
@given(config=CONFIGS, sequence=SEQUENCES)
def test_what_it_shows_the_monitor_is_how_things_stood(config: Config, sequence: list[tuple[str, int]]) -> None:
    """Of those whom a step held, admitted, let load, or left out.

    Of a victim it is known only who it was, and one whose load is given up counts as landed from the start.
    """
    run = Run(Scheduler, config, False, 256)
    shown: list[Facts] = []
    step = run.watch.monitor.step

    def show(facts: Facts) -> None:
        shown.append(facts)
        step(facts)

    run.watch.monitor.step = show  # type: ignore[method-assign]
    for what, number in sequence:
        if what == "step" and len(run.scheduler.in_flight) == config.async_depth:
            run.land(0)
        before = observe(run.scheduler)
        run.apply(what, number)
        if what != "step":
            continue
        facts, after = shown.pop(), observe(run.scheduler)
        victims = {eviction.victim for eviction in facts.step.evictions}
        assert all(each == after.requests[id] for id, each in facts.after.requests.items())
        listed = {*facts.before.running, *facts.before.waiting, *facts.before.parked}
        for id in listed - set(facts.step.cancelled):
            each, was = facts.before.requests[id], before.requests[id]
            for name in ("place",) if id in victims else KNOWN:
                assert getattr(each, name) == getattr(was, name), (id, name)
            assert id in victims or (each.num_blocks > 0) == (was.num_blocks > 0)
        assert (facts.before.saturated, facts.after.saturated) == (before.saturated, after.saturated)
        assert (facts.after.num_loading, facts.after.num_slots) == (after.num_loading, after.num_slots)


def places(eye: Monitor | Watch) -> set[tuple[str, int]]:
    """Which invariants were violated, and in which steps."""
    return {(violation.invariant, violation.step) for violation in eye.violations}


@examples(200)
@given(config=CONFIGS, by_clock=st.booleans(), audit_every=st.sampled_from((1, 3, 256)), sequence=SEQUENCES)
def test_a_right_scheduler_gives_neither_anything_to_say(
    config: Config, by_clock: bool, audit_every: int, sequence: list[tuple[str, int]]
) -> None:
    """And everybody who was not aborted gets all of his tokens, and every block comes back."""
    run = Run(Scheduler, config, by_clock, audit_every)
    for step in sequence:
        run.apply(*step)
    run.drain()
    assert run.monitor.violations == []
    assert run.watch.violations == []
    assert (run.scheduler.pool.free, run.scheduler.pool.promised) == (config.num_blocks, 0)
    assert all(each.place is Place.FINISHED and each.num_placeholders == 0 for each in run.asked)
    assert all(each.num_tokens == len(each.tokens) <= each.limit for each in run.asked)


@pytest.mark.parametrize("kind", FAULTS)
@examples(40)
@given(config=CONFIGS, sequence=SEQUENCES)
def test_it_accuses_nobody_whom_a_full_look_acquits(
    kind: type[Scheduler], config: Config, sequence: list[tuple[str, int]]
) -> None:
    """A wrong scheduler up to its first violation: what the watch reports the monitor reports, in that step."""
    run = Run(kind, config, False, 1)
    for step in sequence:
        run.apply(*step)
        if run.watch.violations or run.monitor.violations:
            break
    event(f"seen: {sorted({id for id, _ in places(run.watch)})}")
    assert places(run.watch) <= places(run.monitor)


def test_a_watch_is_for_any_lifecycle() -> None:
    assert issubclass(Scheduler, Lifecycle)
