"""SGLang's delayer: the loader on a file of the same interface, and the real one where ONBEAT_SGLANG names it."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from onbeat_proofs.delayer import estimate, theorems
from onbeat_proofs.delayer.audit import DelayerJob, audit, decision_of
from onbeat_proofs.delayer.graph import passes
from onbeat_proofs.delayer.results import HOLDS, UNDECIDED, VIOLATED
from onbeat_proofs.delayer.rows import IDLE, Row, Settings
from onbeat_proofs.delayer.sglang import SGLang
from onbeat_proofs.delayer.sglang_file import UNKNOWN, find, load
from onbeat_spec.errors import NotADelayer

FILE = Path(__file__).with_name("prefill_delayer.py")
TEXT = FILE.read_text(encoding="utf-8")
REAL = os.environ.get("ONBEAT_SGLANG", "")
BUSY = Row(prefillable=True, running=1, prefill_bs=1, waiting=1)

real = pytest.mark.skipif(not REAL, reason="ONBEAT_SGLANG is not set to SGLang's prefill_delayer.py or package folder")


def changed(folder: Path, old: str, new: str) -> str:
    assert old in TEXT
    file = folder / "prefill_delayer.py"
    file.write_text(TEXT.replace(old, new), encoding="utf-8")
    return str(file)


def found(target: str, **numbers: Any) -> dict[tuple[str, str], str]:
    report = audit(DelayerJob(target, Settings(**numbers), (2,)))
    return {(r.check, r.strength): r.verdict for r in report.results if r.check != estimate.CHECK}


def test_a_right_rule_holds_both_ways() -> None:
    verdicts = found(str(FILE))
    assert set(verdicts.values()) == {HOLDS}
    assert {strength for _, strength in verdicts} == {"exhaustive", "for all values"}


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ("count >= self._max", "count > self._max", "held-at-most"),
        ("and int(table[:, 2].max().item()) > 0", "", "no-empty-step"),
        ("# WAIT", "if not local_prefillable: return Output(None, True)", "phase-agrees"),
        ("        if not wait or count >= self._max_delay_passes", "        if not wait", "bounded-delay"),
    ],
)
def test_faults_are_found_for_all_values(tmp_path: Path, old: str, new: str, check: str) -> None:
    settings = Settings(queue_min_ratio=1.0)
    results = theorems.decide(load(changed(tmp_path, old, new), settings), settings)
    (result,) = [result for result in results if result.check == check]
    assert result.verdict == VIOLATED
    assert result.run is not None
    assert not all(result.run.turns[0].allow)


def test_clocks_of_ones_own_are_found_exhaustively(tmp_path: Path) -> None:
    target = changed(tmp_path, "# WAIT", "if late: return Output(None, True)")
    report = audit(DelayerJob(target, Settings(queue_min_ratio=1.0), (2,)))
    (result,) = [r for r in report.results if r.check == "phase-agrees" and r.strength == "exhaustive"]
    assert result.verdict == VIOLATED
    assert result.run is not None
    assert len({row.late for row in result.run.turns[-1].rows}) == 2


def test_where_symbolic_ints_do_not_go_it_is_undecided(tmp_path: Path) -> None:
    verdicts = found(changed(tmp_path, "# WAIT", "float(table[:, 3].max().item())"))
    assert verdicts["phase-agrees", "exhaustive"] == HOLDS
    assert verdicts["phase-agrees", "for all values"] == UNDECIDED


def test_a_flag_that_no_version_had_yet_is_kept_as_state(tmp_path: Path) -> None:
    target = changed(
        tmp_path, "# WAIT", "if running_batch == 2: self.flag = True\n        if self.flag: return Output(None, True)"
    )
    Path(target).write_text(
        Path(target)
        .read_text(encoding="utf-8")
        .replace("self.skip_first", "self.flag = False\n        self.skip_first"),
        encoding="utf-8",
    )
    assert found(target)["no-latched-state", "exhaustive"] == VIOLATED


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("class PrefillDelayerSingle", "class Single", "has no class PrefillDelayerSinglePassExecutor"),
        ("max_delay_passes: int,", "max_delay_passes: int, novelty: int,", "wants novelty"),
        ("def _negotiate_should_allow_prefill_pure", "def renamed", "has no _negotiate_should_allow_prefill_pure"),
        ("import torch", "import onbeat_no_such_module, torch", "needs the module 'onbeat_no_such_module'"),
        ("import torch", "1 / 0", "cannot be imported: ZeroDivisionError"),
        ("get_schedule().prefill_delayer_max_delay_ms", "get_novelty()", "cannot be made: NameError"),
        ("self.skip_first_delayer = False", "self.skipped = [False]", "cannot keep as state"),
    ],
)
def test_an_unknown_version_is_told(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(NotADelayer, match=message):
        audit(DelayerJob(changed(tmp_path, old, new), ranks=(2,)))


def test_another_file_is_not_taken_for_a_delayer() -> None:
    with pytest.raises(NotADelayer, match="has no class PrefillDelayer"):
        load(str(Path(__file__).with_name("delayers.py")), Settings())


def test_a_package_folder_is_found_with_its_version(tmp_path: Path) -> None:
    folder = tmp_path / "sglang" / "srt" / "managers"
    folder.mkdir(parents=True)
    file = folder / "prefill_delayer.py"
    file.write_text(TEXT, encoding="utf-8")
    assert find(str(tmp_path)) == find(str(tmp_path / "sglang")) == file
    assert load(str(tmp_path), Settings()).version == UNKNOWN
    (tmp_path / "sglang-1.2.3.dist-info").mkdir()
    assert load(str(tmp_path), Settings()).version == "1.2.3"
    (tmp_path / "sglang" / "_version.py").write_text('__version__ = version = "1.2.4"\n', encoding="utf-8")
    assert load(str(tmp_path), Settings()).name == "SGLang 1.2.4, PrefillDelayer"


def test_nothing_stays_behind() -> None:
    before = {name for name in sys.modules if name.partition(".")[0] in ("sglang", "torch")}
    load(str(FILE), Settings())
    assert {name for name in sys.modules if name.partition(".")[0] in ("sglang", "torch")} == before


def test_a_rank_without_a_prefill_sends_an_empty_row() -> None:
    settings = Settings()
    delayer = SGLang(load(str(FILE), settings), settings)
    alone = delayer.step(delayer.initial(), [Row(True, 0, 1, 1), Row(running=2)])
    assert alone.allow == (True, True)
    both = delayer.step(delayer.initial(), [Row(True, 2, 1, 1), IDLE])
    assert both.allow == (False, False)


# --- The real one ----------------------------------------------------------------------------------------------------


@real
def test_the_real_delayer_is_bounded_and_agrees() -> None:
    verdicts = found(REAL)
    for strength in ("exhaustive", "for all values"):
        assert verdicts["held-at-most", strength] == HOLDS
        assert verdicts["bounded-delay", strength] == HOLDS
        assert verdicts["phase-agrees", strength] == HOLDS
        assert verdicts["no-empty-step", strength] == VIOLATED
    assert verdicts["no-crash", "exhaustive"] == HOLDS


@real
def test_the_real_delayer_waits_one_pass_less_than_it_may() -> None:
    report = audit(DelayerJob(REAL, Settings(max_delay_passes=4), (2,)))
    details = [r.detail for r in report.results if r.check == "held-at-most" and r.strength == "exhaustive"]
    assert details == ["at most 3 in a row, the stated bound is 4"]


@real
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_real_tensors_give_the_same_answers() -> None:
    settings = Settings(queue_min_ratio=2.0, max_running_requests=3, token_usage_low_watermark=0.5)
    plain, _ = decision_of(DelayerJob(REAL, tensors="plain"), settings)
    tensors, _ = decision_of(DelayerJob(REAL, tensors="torch"), settings)
    every = passes(plain.rows(), settings.ranks)
    state = plain.initial(), tensors.initial()
    for rows in every[:: max(1, len(every) // 2000)]:
        one, other = plain.step(state[0], rows), tensors.step(state[1], rows)
        assert (one.allow, plain.show(one.state)) == (other.allow, tensors.show(other.state))
        state = one.state, other.state


def test_torch_is_asked_for_only_where_it_is_wanted(tmp_path: Path) -> None:
    if find_spec("torch") is not None:
        pytest.skip("torch is installed here")
    with pytest.raises(NotADelayer, match=r"needs the module 'torch'.*--tensors plain"):
        load(str(FILE), Settings(), "torch")
