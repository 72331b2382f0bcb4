"""Each check on delayers that break it, and on ones that do not."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from onbeat_proofs.delayer.audit import DelayerJob, DelayerReport, audit
from onbeat_proofs.delayer.cadence import Cadence
from onbeat_proofs.delayer.decision import OfClass
from onbeat_proofs.delayer.graph import explore, idle, passes
from onbeat_proofs.delayer.results import HOLDS, UNDECIDED, VACUOUS, VIOLATED, DelayerResult
from onbeat_proofs.delayer.rows import FINE, IDLE, Row, Settings, alphabet
from onbeat_spec.cadence import PhaseClock
from onbeat_spec.errors import ConfigError, NotADelayer

FILE = Path(__file__).with_name("delayers.py")


def audited(name: str, *, ranks: tuple[int, ...] = (2,), extra: bool = False, **numbers: Any) -> DelayerReport:
    return audit(DelayerJob(f"{FILE}:{name}", Settings(**numbers), ranks, extra))


def verdicts(report: DelayerReport) -> dict[str, str]:
    return {result.check: result.verdict for result in report.results}


def only(report: DelayerReport, check: str) -> DelayerResult:
    (found,) = [result for result in report.results if result.check == check]
    return found


def violated(report: DelayerReport) -> set[str]:
    return {result.check for result in report.results if result.verdict == VIOLATED}


@pytest.mark.parametrize("name", ["Patient", "Keeps", "Harmless"])
def test_right_ones_hold(name: str) -> None:
    report = audited(name, ranks=(1, 2, 3))
    assert set(verdicts(report).values()) == {HOLDS}
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("OffByOne", {"held-at-most"}),
        ("Unbounded", {"held-at-most", "bounded-delay"}),
        ("Selfish", {"phase-agrees"}),
        ("Idler", {"no-empty-step"}),
        ("Latched", {"no-latched-state"}),
        ("Crashes", {"no-crash"}),
        ("Exits", {"no-crash"}),
        ("Answers", {"no-crash"}),
        ("Lists", {"no-crash"}),
    ],
)
def test_each_fault_is_caught_by_its_check(name: str, checks: set[str]) -> None:
    report = audited(name)
    assert violated(report) == checks
    assert report.exit_code == 1


@pytest.mark.parametrize("name", ["Unbounded", "OffByOne", "Idler", "Latched"])
def test_faults_are_caught_with_three_ranks(name: str) -> None:
    assert violated(audited(name, ranks=(3,))) == violated(audited(name, ranks=(2,)))


def test_the_longest_wait_is_told() -> None:
    assert (
        only(audited("Patient", max_delay_passes=5), "held-at-most").detail
        == "at most 5 in a row, the stated bound is 5"
    )
    assert only(audited("Patient", max_delay_passes=5), "bounded-delay").detail == (
        "after at most 5 refusals, from each of 6 states"
    )


def test_a_wait_too_long_is_shown_whole() -> None:
    run = only(audited("OffByOne", max_delay_passes=2), "held-at-most").run
    assert run is not None
    assert run.loop is None
    assert [turn.allow for turn in run.turns] == [(False, False)] * 3
    assert all(turn.rows[0].prefillable for turn in run.turns)


def test_a_wait_for_ever_is_a_loop() -> None:
    run = only(audited("Unbounded"), "bounded-delay").run
    assert run is not None
    assert (len(run.turns), run.loop) == (1, 0)
    assert run.turns[0].allow == (False, False)


def test_a_count_that_grows_is_undecided() -> None:
    report = audited("Growing")
    assert verdicts(report) == {
        "held-at-most": VIOLATED,
        "no-empty-step": UNDECIDED,
        "phase-agrees": UNDECIDED,
        "no-latched-state": UNDECIDED,
        "bounded-delay": UNDECIDED,
        "no-crash": UNDECIDED,
    }
    assert "cut off 20 passes deep" in only(report, "bounded-delay").detail


def test_an_empty_pass_is_one_pass_long() -> None:
    run = only(audited("Idler"), "no-empty-step").run
    assert run is not None
    assert len(run.turns) == 1
    assert not any(row.running for row in run.turns[0].rows)
    assert not any(run.turns[0].allow)


def test_a_latch_is_shown_with_what_it_changes() -> None:
    result = only(audited("Latched"), "no-latched-state")
    assert result.detail == "after all work was gone rank 0 may prefill where, at the start, it may not"
    assert result.run is not None
    first, *rest, last = result.run.turns
    assert max(row.running for row in first.rows) == 2
    assert [turn.rows for turn in rest] == [idle(2)]
    assert last.allow == (True, True)


def test_disagreeing_ranks_are_named() -> None:
    result = only(audited("Selfish"), "phase-agrees")
    assert "may prefill and rank" in result.detail
    assert result.run is not None
    assert len(set(result.run.turns[-1].allow)) == 2


def test_who_refuses_nobody_was_not_put_to_the_test() -> None:
    report = audited("Never")
    assert verdicts(report) == {
        "held-at-most": VACUOUS,
        "no-empty-step": VACUOUS,
        "phase-agrees": VACUOUS,
        "no-latched-state": HOLDS,
        "bounded-delay": VACUOUS,
        "no-crash": HOLDS,
    }
    assert report.exit_code == 2


def test_gaps() -> None:
    assert verdicts(audited("Keeps", extra=True))["gap-keeps-wait"] == HOLDS
    result = only(audited("Patient", extra=True), "gap-keeps-wait")
    assert result.verdict == VIOLATED
    assert result.run is not None
    assert result.run.loop is not None
    assert not any(turn.allow[0] for turn in result.run.turns[result.run.loop :] if turn.rows[0].prefillable)


def test_prefills_first() -> None:
    result = only(audited("PrefillsFirst", extra=True), "decode-gets-pass")
    assert result.verdict == VIOLATED
    assert result.run is not None
    assert all(turn.rows[0].running and turn.allow[0] for turn in result.run.turns)
    assert verdicts(audited("Patient", extra=True))["decode-gets-pass"] == HOLDS


def test_a_crash_is_shown_with_its_rows() -> None:
    result = only(audited("Crashes", max_delay_passes=2), "no-crash")
    assert result.detail.startswith("ZeroDivisionError: integer division or modulo by zero at ")
    assert result.run is not None
    assert len(result.run.turns) == 2
    assert result.run.failed is not None
    others = verdicts(audited("Crashes"))
    assert others["phase-agrees"] == UNDECIDED


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Secret", "two answers to one state and rows"),
        ("Demanding", "cannot be made: TypeError"),
        ("Undecided", "has no method decide"),
        ("Absent", "has no 'Absent'"),
    ],
)
def test_what_cannot_be_audited(name: str, message: str) -> None:
    with pytest.raises(NotADelayer, match=message):
        audited(name)


def test_the_cadence_holds_and_keeps_the_clock_of_the_spec() -> None:
    report = audit(DelayerJob("onbeat", Settings(max_delay_passes=3)))
    assert set(verdicts(report).values()) == {HOLDS}
    clock, delayer, state = PhaseClock(4), Cadence(3), 0
    busy = (Row(prefillable=True, running=1, waiting=1),)
    for _ in range(9):
        throttled = clock.throttle()
        allow, state = delayer.decide(state, 0, busy)
        clock.executed(1, allow, not allow)
        assert allow == (not throttled)
        assert state == clock.phase


def test_the_alphabet_varies_what_the_settings_switch_on() -> None:
    plain = alphabet(Settings())
    assert len(plain) == 3 + 9
    assert IDLE in plain
    assert not any(row.low_usage or row.late for row in plain)
    assert len(alphabet(Settings(token_usage_low_watermark=0.5))) == 2 * len(plain)
    assert len(alphabet(Settings(queue_min_ratio=1.0))) == 2 * (3 + 9 * 2)
    large = alphabet(Settings(ranks=3, max_running_requests=16))
    assert {row.running for row in large} == {0, 16}
    assert len(large) ** 3 <= FINE


def test_passes_are_all_and_small_ones_first() -> None:
    every = passes([Row(), Row(True)], 2)
    assert len(every) == len(set(every)) == 4
    assert every[0] == idle(2)
    assert every[-1] == (Row(True), Row(True))


@pytest.mark.parametrize("numbers", [{"ranks": 0}, {"ranks": 5}, {"max_delay_passes": 0}, {"max_running_requests": 17}])
def test_numbers_out_of_range(numbers: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(numbers))} is"):
        Settings(**numbers)


def test_time_runs_out() -> None:
    settings = Settings()
    spec = spec_from_file_location("delayers", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    graph = explore(OfClass(module.Patient, settings, "patient"), {}, depth=20, seconds=-1.0)
    assert not graph.closed
    assert graph.limit == "cut off after -1 s"
