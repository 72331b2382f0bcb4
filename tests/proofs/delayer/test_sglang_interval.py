"""SGLang's prefill-decode interval: two methods taken out of a scheduler's file."""

import os
from pathlib import Path

import pytest

from onbeat_proofs.delayer.audit import DelayerJob, DelayerReport, audit
from onbeat_proofs.delayer.results import HOLDS, VIOLATED
from onbeat_proofs.delayer.rows import Row, Settings
from onbeat_proofs.delayer.sglang_interval import Interval
from onbeat_spec.errors import NotADelayer

REAL = os.environ.get("ONBEAT_SGLANG", "")

# The interface of the real one, around the simplest rule: after a prefill anywhere, so many passes.
SCHEDULER = """
import a_module_that_is_not_there

class Scheduler:
    def other(self, batch: Missing) -> None: ...

    def _should_defer_prefill(self, running_batch: Missing) -> bool:
        if self._prefill_decode_interval_remaining == 0 or running_batch.batch_size() < MIN:
            return False
        self._prefill_decode_interval_remaining -= 1
        return True

    def _arm_prefill_decode_interval(self, batch: Missing) -> None:
        if batch is not None and batch.is_extend_in_batch:
            self._prefill_decode_interval_remaining = self.prefill_decode_interval
"""


def target(folder: Path, text: str = SCHEDULER, smallest: str = "0") -> str:
    managers = folder / "sglang" / "srt" / "managers"
    managers.mkdir(parents=True)
    (managers / "prefill_delayer.py").touch()
    (managers / "scheduler.py").write_text(text.replace("MIN", smallest), encoding="utf-8")
    return str(folder)


def audited(where: str, *, interval: int = 2, smallest: int = 0) -> DelayerReport:
    settings = Settings(prefill_decode_interval=interval, prefill_decode_interval_min_bs=smallest)
    return audit(DelayerJob(where, settings, (2,)))


def verdicts(report: DelayerReport) -> dict[str, str]:
    return {result.check: result.verdict for result in report.results}


def test_an_interval_of_passes_follows_a_prefill(tmp_path: Path) -> None:
    decision = Interval(target(tmp_path), Settings(prefill_decode_interval=2))
    busy = Row(True, 1, 0, 1)
    state, allowed = decision.initial(), []
    for _ in range(7):
        allow, state = decision.step(state, (busy, busy))
        allowed.append(allow[0])
    assert allowed == [True, False, False, True, False, False, True]


def test_a_prefill_anywhere_opens_the_interval_everywhere(tmp_path: Path) -> None:
    decision = Interval(target(tmp_path), Settings(prefill_decode_interval=2))
    assert decision.step((0, 0), (Row(True, 0, 0, 1), Row(running=1))).state == (2, 2)
    assert decision.step((0, 0), (Row(running=1), Row(running=1))).state == (0, 0)


def test_the_bound_is_the_interval(tmp_path: Path) -> None:
    report = audited(target(tmp_path))
    assert report.name == "SGLang of unknown version, prefill_decode_interval"
    assert verdicts(report)["held-at-most"] == HOLDS
    assert verdicts(report)["phase-agrees"] == HOLDS
    assert verdicts(report)["no-empty-step"] == VIOLATED


def test_a_rule_of_each_rank_lets_one_open_it_for_the_other_for_ever(tmp_path: Path) -> None:
    report = audited(target(tmp_path, smallest="1"))
    assert verdicts(report)["phase-agrees"] == VIOLATED
    (bounded,) = [result for result in report.results if result.check == "bounded-delay"]
    assert bounded.verdict == VIOLATED
    assert bounded.run is not None
    assert bounded.run.loop is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Scheduler: ...\n", "has no prefill-decode interval"),
        ("def broken(:\n", "cannot be read"),
    ],
)
def test_a_version_without_the_rule_is_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(NotADelayer, match=message):
        audited(target(tmp_path, text))


def test_the_delayers_file_alone_is_not_enough(tmp_path: Path) -> None:
    file = tmp_path / "prefill_delayer.py"
    file.touch()
    with pytest.raises(NotADelayer, match=r"there is no file .*scheduler\.py"):
        audited(str(file))


def test_with_the_delayer_behind_it_a_rank_that_defers_leaves_the_others_waiting(tmp_path: Path) -> None:
    where = target(tmp_path, smallest="1")
    file = Path(where, "sglang", "srt", "managers", "prefill_delayer.py")
    file.write_text(Path(__file__).with_name("prefill_delayer.py").read_text(encoding="utf-8"), encoding="utf-8")
    settings = Settings(prefill_decode_interval=2, enable_prefill_delayer=True)
    report = audit(DelayerJob(where, settings, (2,)))
    (crash,) = [result for result in report.results if result.check == "no-crash"]
    assert crash.verdict == VIOLATED
    assert crash.detail == "ranks [1] exchange rows for the delayer, ranks [0] defer and send none: a hang"


def test_with_the_delayer_behind_it_the_bounds_add_up(tmp_path: Path) -> None:
    where = target(tmp_path)
    file = Path(where, "sglang", "srt", "managers", "prefill_delayer.py")
    file.write_text(Path(__file__).with_name("prefill_delayer.py").read_text(encoding="utf-8"), encoding="utf-8")
    report = audit(DelayerJob(where, Settings(prefill_decode_interval=2, enable_prefill_delayer=True), (2,)))
    (held,) = [result for result in report.results if result.check == "held-at-most"]
    assert (held.verdict, held.detail) == (HOLDS, "at most 5 in a row, the stated bound is 5")


@pytest.mark.skipif(not REAL, reason="ONBEAT_SGLANG is not set to SGLang's package folder")
def test_the_real_one() -> None:
    always = verdicts(audited(REAL, interval=3))
    assert always["held-at-most"] == always["phase-agrees"] == always["bounded-delay"] == HOLDS
    assert always["no-empty-step"] == VIOLATED
    small = verdicts(audited(REAL, interval=3, smallest=1))
    assert small["no-empty-step"] == HOLDS
    assert small["phase-agrees"] == small["bounded-delay"] == VIOLATED
