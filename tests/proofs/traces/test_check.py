"""`onbeat check-trace`: right traces hold, each falsified one is caught, and the invariant is named."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner
from hypothesis import given

from onbeat_proofs.traces import check
from onbeat_proofs.traces.check import MOST_FINDINGS, TraceReport
from onbeat_proofs.verbs.check_trace import command
from onbeat_reference import Scheduler
from onbeat_reference.recorder import RecorderMixin
from onbeat_reference.trace_writer import TraceOptions
from onbeat_spec.cadence import advance, throttles
from onbeat_spec.catalogue import CATALOGUE, GROUP_CATALOGUE
from onbeat_spec.config import Config
from onbeat_spec.errors import OnbeatError, TraceError
from onbeat_spec.records import Filler, LockStep
from tests.reference.helpers import examples, land, request, turn
from tests.reference.histories import CONFIGS, SEQUENCES, Run
from tests.reference.test_recorder import CHILD
from tests.reference.test_watch import FAULTS

Packed = dict[str, Any]


EVERY = (*CATALOGUE, *GROUP_CATALOGUE)
"""What these traces need not put to the test."""


def check_trace(paths: Sequence[str], context: int = 0) -> TraceReport:
    """Check traces that are too short to put everything to the test."""
    return check.check_trace(paths, context=context, allow_vacuous=EVERY)


class Recorded(RecorderMixin, Scheduler):
    """The reference's scheduler, recorded."""


def paths(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.glob("*.ndjson"))]


def violated(report: TraceReport) -> set[str]:
    return {row.invariant for row in report.rows if row.violations}


def verdict(report: TraceReport, invariant: str) -> str:
    return next(row.verdict for row in report.rows if row.invariant == invariant)


# --- Right ones ------------------------------------------------------------------------------------------------------


@examples(80)
@given(config=CONFIGS, sequence=SEQUENCES)
def test_traces_of_random_histories_hold(
    tmp_path_factory: pytest.TempPathFactory, config: Config, sequence: list[tuple[str, int]]
) -> None:
    """Whole, in pieces, and each piece alone."""
    folder = tmp_path_factory.mktemp("trace")
    options = TraceOptions(str(folder), max_bytes=3000, max_files=100, audit_every=3)
    run = Run(lambda config: Recorded(config, trace=options), config, True, 256)
    for what, number in sequence:
        run.apply(what, number)
    run.drain()
    report = check_trace(paths(folder))
    assert report.findings == []
    assert report.steps == run.scheduler.num_steps
    assert report.exit_code == (0 if report.steps else 2)
    assert report.notes == []
    for path in paths(folder):
        assert check_trace([path]).findings == []


@pytest.mark.parametrize("kind", FAULTS)
def test_a_wrong_scheduler_is_found_in_its_trace(
    tmp_path_factory: pytest.TempPathFactory, kind: type[Scheduler]
) -> None:
    """What its watch reports, its trace shows."""

    class RecordedFault(RecorderMixin, kind):  # type: ignore[misc, valid-type]  # whatever class it is
        pass

    folder = tmp_path_factory.mktemp("trace")
    seen: set[str] = set()
    shown: set[str] = set()

    @examples(100)
    @given(config=CONFIGS, sequence=SEQUENCES)
    def explore(config: Config, sequence: list[tuple[str, int]]) -> None:
        inner = folder / str(len(list(folder.iterdir())))
        options = TraceOptions(str(inner), audit_every=1)

        def make(config: Config) -> Scheduler:
            made: Scheduler = RecordedFault(config)
            made.recorder = None  # type: ignore[attr-defined]  # of the mixin
            return made

        def make_recorded(config: Config) -> Scheduler:
            from onbeat_reference.recorder import Recorder

            made = make(config)
            made.recorder = Recorder(made, options, any_flag=True)  # type: ignore[attr-defined]
            return made

        run = Run(make_recorded, config, False, 1)
        for what, number in sequence:
            try:
                run.apply(what, number)
            except Exception:
                break
            if run.watch.violations:
                break
        seen.update(violation.invariant for violation in run.watch.violations)
        now = violated(check_trace(paths(inner)))
        assert {violation.invariant for violation in run.watch.violations} <= now
        shown.update(now)

    explore()
    assert seen
    assert seen <= shown


def test_a_killed_process_leaves_a_checkable_trace(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, env=environment
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        # The third file has its header and a whole line of what happened.
        while len(paths(tmp_path)) < 3 or Path(paths(tmp_path)[-1]).read_bytes().count(b"\n") < 2:
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.wait()
    last = Path(paths(tmp_path)[-1])
    with last.open("ab") as file:
        file.write(b'{"step":')  # what a machine without power may leave
    report = check_trace(paths(tmp_path))
    assert (report.exit_code, violated(report)) == (0, set())
    assert [note for note in report.notes if "cut off" in note]


# --- Falsified ones --------------------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """One file: three requests, steps held and not, some preempted, audited every fourth step."""
    config = Config(block_size=4, num_blocks=14, max_num_batched_tokens=16, prefill_schedule_interval=3)
    options = TraceOptions(str(tmp_path / "right"), audit_every=4)
    made = Recorded(config, trace=options, trace_any_flag=True)
    for id, prompt in (("a", 6), ("b", 9), ("c", 9)):
        made.add_request(request(id, prompt, max_tokens=14))
    steps = 0
    while made.has_unfinished_requests():
        turn(made, throttles(steps % 3, 3))
        steps += 1
        if steps == 5:
            made.add_request(request("d", 12, max_tokens=3))
    (path,) = (tmp_path / "right").iterdir()
    report = check_trace([str(path)])
    assert violated(report) == set()
    for invariant in ("held-at-most", "evicted-is-out", "exactly-once", "blocks-conserved", "flag-means-backlog"):
        assert verdict(report, invariant) == "holds", invariant
    return path


def falsify(path: Path, change: Callable[[list[Packed]], object], name: str = "wrong.ndjson") -> str:
    """The same trace with its lines changed."""
    packed = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    change(packed)
    other = path.parent.parent / name
    other.write_text("".join(json.dumps(each) + "\n" for each in packed), encoding="utf-8")
    return str(other)


def where(lines: Sequence[Packed], holds: Callable[[Packed], object], which: int = 0) -> int:
    return [index for index, each in enumerate(lines) if holds(each)][which]


def step(index: int) -> Callable[[Packed], bool]:
    return lambda line: line.get("step") == index


def drop_token(lines: list[Packed]) -> None:
    update = lines[where(lines, lambda line: "update" in line, 9)]
    update.setdefault("tokens", {})["a"] = 0


def drop_last_token(lines: list[Packed]) -> None:
    update = lines[where(lines, lambda line: line.get("finished", {}).get("a") == "length")]
    update.setdefault("tokens", {})["a"] = 0


def double_token(lines: list[Packed]) -> None:
    lines[where(lines, lambda line: "update" in line, 7)].setdefault("tokens", {})["a"] = 2


def lose_block(lines: list[Packed]) -> None:
    lines[where(lines, lambda line: "whole" in line, 2)]["after"]["free"] += 1


def miss_step(lines: list[Packed]) -> None:
    del lines[where(lines, step(6))]


def miss_update(lines: list[Packed]) -> None:
    del lines[where(lines, lambda line: line.get("update") == 6)]


def hold_decode(lines: list[Packed]) -> None:
    line = lines[where(lines, lambda line: line.get("held"))]
    line["held"] = ["a"]
    line["before"] = {"requests": [{"id": "a", "num_prompt": 6, "num_tokens": 9, "num_computed": 8, "limit": 20}]}


def hold_without_flag(lines: list[Packed]) -> None:
    del lines[where(lines, lambda line: line.get("held"))]["throttle"]


def overspend(lines: list[Packed]) -> None:
    lines[where(lines, step(3))]["scheduled"]["a"] = 17


def keep_blocks(lines: list[Packed]) -> None:
    line = lines[where(lines, lambda line: line.get("evictions"))]
    victim = line["evictions"][0][0]
    for each in line["after"]["requests"]:
        if isinstance(each, dict) and each["id"] == victim:
            each["num_blocks"] = 1


def pay_nothing(lines: list[Packed]) -> None:
    line = lines[where(lines, lambda line: line.get("evictions"))]
    line["evictions"][0][2] = 0


def turn_flag(lines: list[Packed]) -> None:
    line = lines[where(lines, lambda line: line.get("saturated") is None and line.get("hold"))]
    shown = [each["id"] for each in line["after"].get("requests", [])]
    line["before"] = {"requests": shown, "saturated": False}
    line["after"]["saturated"] = True


def accept_what_never_fits(lines: list[Packed]) -> None:
    lines.insert(1, {"accepted": "huge", "num_prompt": 1000, "limit": 1001})


def refuse_what_fits(lines: list[Packed]) -> None:
    lines.insert(1, {"refused": "small", "num_prompt": 4})


def crash(lines: list[Packed]) -> None:
    lines.append({"crashed": "schedule: ZeroDivisionError: a bug"})


def late_notice(lines: list[Packed]) -> None:
    sums = {"free": 3, "num_running": 1, "num_slots": 1}
    lines.append({"notice": "abort", "id": "z", "known": False, "after": {**sums, "free": 2}, "before": sums})


def unknown_id(lines: list[Packed]) -> None:
    lines[where(lines, step(3))]["held"] = ["nobody"]


@pytest.mark.parametrize(
    ("change", "invariant", "requests"),
    [
        (drop_token, "exactly-once", ("a",)),
        (drop_last_token, "exactly-once", ("a",)),
        (double_token, "exactly-once", ("a",)),
        (lose_block, "blocks-conserved", ()),
        (miss_step, "trace-complete", ()),
        (miss_update, "exactly-once", None),
        (hold_decode, "decode-never-held", ("a",)),
        (hold_without_flag, "off-means-off", None),
        (overspend, "budget", ()),
        (keep_blocks, "evicted-is-out", None),
        (pay_nothing, "victim-can-pay", None),
        (turn_flag, "flag-only-when-open", None),
        (accept_what_never_fits, "never-fits-refused", ("huge",)),
        (refuse_what_fits, "never-fits-refused", ("small",)),
        (crash, "no-crash", ()),
        (late_notice, "late-is-harmless", ()),
        (unknown_id, "one-place", ()),
    ],
)
def test_a_falsified_trace_is_caught(
    trace: Path, change: Callable[[list[Packed]], object], invariant: str, requests: tuple[str, ...] | None
) -> None:
    wrong = falsify(trace, change)
    report = check_trace([wrong])
    assert invariant in violated(report)
    assert report.exit_code == 1
    finding = next(each for each in report.findings if each.invariant == invariant)
    assert finding.at.path == wrong
    assert 1 < finding.at.line <= len(Path(wrong).read_text(encoding="utf-8").splitlines())
    assert requests is None or finding.ids == requests
    assert finding.history == []


def test_a_gap_makes_no_other_accusation(trace: Path) -> None:
    """What goes over time starts anew behind it."""
    assert violated(check_trace([falsify(trace, miss_step)])) <= {"trace-complete", "exactly-once"}


def test_violations_are_counted_and_some_are_kept(trace: Path) -> None:
    wrong = falsify(trace, lambda lines: lines.extend([{"crashed": "schedule: E: x"}] * 100))
    report = check_trace([wrong])
    row = next(row for row in report.rows if row.invariant == "no-crash")
    assert (row.violations, len(report.findings)) == (100, MOST_FINDINGS)


# --- Files -----------------------------------------------------------------------------------------------------------


def test_a_line_cut_in_the_middle_is_an_error_and_at_the_end_a_note(trace: Path) -> None:
    lines = trace.read_bytes().splitlines(keepends=True)
    trace.write_bytes(b"".join([*lines[:-1], lines[-1][:-5]]))
    report = check_trace([str(trace)])
    assert (report.exit_code, len(report.notes)) == (0, 1)
    trace.write_bytes(b"".join([*lines[:5], lines[5][:-5] + b"\n", *lines[6:]]))
    with pytest.raises(TraceError, match=rf"{trace}:6: "):
        check_trace([str(trace)])


def pieces(folder: Path) -> list[str]:
    made = Recorded(Config(block_size=4, num_blocks=200), trace=TraceOptions(str(folder), max_bytes=3000))
    made.add_request(request("a", 9, max_tokens=100))
    while made.has_unfinished_requests():
        turn(made)
    return paths(folder)


def test_a_part_that_is_not_there_is_told(tmp_path: Path) -> None:
    files = pieces(tmp_path)
    assert len(files) > 3
    assert check_trace(files).notes == []
    report = check_trace([*files[2:][::-1], files[0]])
    assert report.exit_code == 0
    assert [note for note in report.notes if "part 1 is not among them" in note]
    assert [note for note in check_trace(files[1:]).notes if "before part 1" in note]
    with pytest.raises(TraceError, match="part 0 of run"):
        check_trace([files[0], files[0]])


def test_steps_between_parts_that_are_missing_are_violations(tmp_path: Path) -> None:
    files = pieces(tmp_path)
    lines = Path(files[0]).read_text(encoding="utf-8").splitlines(keepends=True)
    Path(files[0]).write_text("".join(lines[:-2]), encoding="utf-8")
    assert "trace-complete" in violated(check_trace(files))


def test_a_file_without_a_line_is_skipped_and_told(tmp_path: Path) -> None:
    files = pieces(tmp_path)
    empty = tmp_path / "empty.ndjson"
    empty.touch()
    report = check_trace([*files, str(empty)])
    assert (report.exit_code, len(report.notes)) == (0, 1)
    assert check_trace([str(empty)]).exit_code == 2


# --- Groups ----------------------------------------------------------------------------------------------------------


def group(folder: Path, ranks: int = 2, steps: int = 12, name: str = "") -> list[Path]:
    """One file of each rank: rank 0 has the work, the others take part without tokens, all stop at the end."""
    config = Config(block_size=4, num_blocks=50, data_parallel_size=ranks, prefill_schedule_interval=3)
    phase = 0
    made = [
        Recorded(config, trace=TraceOptions(str(folder / str(rank))), trace_rank=rank, trace_group=name)
        for rank in range(ranks)
    ]
    made[0].add_request(request("a", 5, max_tokens=steps - 3))
    for number in range(steps):
        for rank, each in enumerate(made):
            assert each.recorder is not None
            lock = LockStep(number, phase, ("all_gather", "all_reduce"), number == steps - 1)
            if rank % 2 and number % 2:
                each.recorder.took_part(lock._replace(filler=Filler(0, 0)))
                continue
            each.recorder.lock = lock
            each.schedule(throttles(phase, 3))
            land(each)
        phase = advance(phase, 3)
    return [next((folder / str(rank)).iterdir()) for rank in range(ranks)]


def test_a_right_group_holds(tmp_path: Path) -> None:
    report = check_trace([str(path) for path in group(tmp_path, 3)])
    assert violated(report) == set()
    assert (report.ranks, report.lock_steps, report.exit_code) == ([0, 1, 2], 12, 0)
    verdicts = {row.invariant: row.verdict for row in report.rows if row.invariant in GROUP_CATALOGUE}
    assert verdicts == {
        "phase-agrees": "holds",
        "collectives-align": "holds",
        "wake-not-lost": "holds",
        "pause-agreed": "holds",
        "sync-interval-free": "not asked",
        "end-is-clear": "not asked",
        "fillers-are-free": "holds",
    }


def locks(lines: list[Packed]) -> list[Packed]:
    """The lock steps of a file, to be changed."""
    return [line.get("lock") or line["idle"] for line in lines if "lock" in line or "idle" in line]


def shift_phase(lines: list[Packed]) -> None:
    for lock in locks(lines)[4:]:
        lock["phase"] = (lock["phase"] + 1) % 3


def other_collectives(lines: list[Packed]) -> None:
    locks(lines)[3]["collectives"] = ["all_reduce"]


def stay_away(lines: list[Packed]) -> None:
    del lines[where(lines, lambda line: "idle" in line, 2)]


def go_back(lines: list[Packed]) -> None:
    locks(lines)[5]["number"] = 2


def stop_alone(lines: list[Packed]) -> None:
    locks(lines)[6]["last"] = True


@pytest.mark.parametrize(
    ("change", "invariant"),
    [
        (shift_phase, "phase-agrees"),
        (other_collectives, "collectives-align"),
        (stay_away, "collectives-align"),
        (go_back, "collectives-align"),
        (stop_alone, "pause-agreed"),
    ],
)
def test_a_group_out_of_step_is_caught(
    tmp_path: Path, change: Callable[[list[Packed]], object], invariant: str
) -> None:
    first, second = group(tmp_path)
    report = check_trace([str(first), falsify(second, change)])
    assert invariant in violated(report)
    assert violated(report) <= {invariant, "collectives-align"}
    assert any("lock step" in each.message for each in report.findings if each.invariant == invariant)


def test_a_group_that_stops_with_work_left_is_caught(tmp_path: Path) -> None:
    def leave(lines: list[Packed]) -> None:
        lines.insert(4, {"accepted": "b", "num_prompt": 3, "limit": 9})

    first, second = group(tmp_path)
    report = check_trace([str(first), falsify(second, leave)])
    assert violated(report) == {"wake-not-lost"}


def beats(
    folder: Path, *, fault: bool, steps: int = 18, mode: Literal["new", "all"] = "all", **options: Any
) -> list[list[str]]:
    """Return the files of two ranks. Rank 1 takes dummies on all beats but the first: by a fault, or it is paused."""
    config = Config(block_size=4, num_blocks=50, data_parallel_size=2, prefill_schedule_interval=3)
    folders = [folder / "0", folder / "1"]
    made = [Recorded(config, trace=TraceOptions(str(at), **options), trace_rank=int(at.name)) for at in folders]
    for each in made:
        each.add_request(request("a", 5, max_tokens=steps))
    for number in range(steps):
        for rank, each in enumerate(made):
            assert each.recorder is not None
            lock = LockStep(number, number % 3, ("forward",))
            if rank and number == 1:
                each.add_request(request("b", 5))
            if rank and number and number % 3 == 0:
                if not fault:
                    each.pause(mode)
                each.recorder.took_part(lock)
                each.resume()
                continue
            each.recorder.lock = lock
            each.schedule(throttles(number % 3, 3))
            land(each)
    return [paths(at) for at in folders]


def dummies(report: TraceReport) -> list[str]:
    return [each.message for each in report.findings if each.invariant == "wake-not-lost"]


def test_a_rank_that_takes_dummies_with_work_is_caught(tmp_path: Path) -> None:
    first, second = beats(tmp_path, fault=True)
    report = check_trace([*first, *second])
    assert violated(report) == {"wake-not-lost", "held-at-most", "flag-lag"}
    says = "rank 1 runs a dummy, and has 2 requests that may run"
    assert dummies(report) == [f"lock step {number}: {says}" for number in range(3, 18, 3)]


@pytest.mark.parametrize("mode", ["new", "all"])
def test_a_rank_that_is_paused_takes_dummies(tmp_path: Path, mode: Literal["new", "all"]) -> None:
    """In a pause for new requests only, which no engine of ours makes, it is not known whether it had to."""
    first, second = beats(tmp_path, fault=False, mode=mode)
    report = check_trace([*first, *second])
    assert violated(report) == set()
    assert verdict(report, "wake-not-lost") == "holds"


@pytest.mark.parametrize("fault", [False, True])
def test_a_rank_may_have_been_paused_in_files_that_are_missing(tmp_path: Path, fault: bool) -> None:
    """As of a rank that keeps its latest files only. After its next step that is known again."""
    first, second = beats(tmp_path, fault=fault, max_bytes=1, max_files=1000)
    idle = next(number for number, path in enumerate(second) if '"idle"' in Path(path).read_text(encoding="utf-8"))
    report = check_trace([*first, *second[idle:]])
    assert [each.partition(":")[0] for each in dummies(report)] == [
        f"lock step {number}" for number in range(6, 18, 3) if fault
    ]


def test_where_collectives_were_not_recorded_nobody_is_accused_of_a_dummy(tmp_path: Path) -> None:
    def forget(lines: list[Packed]) -> None:
        for line in lines:
            if "idle" in line:
                del line["idle"]["collectives"]

    (first,), (second,) = beats(tmp_path, fault=True)
    report = check_trace([first, falsify(Path(second), forget)])
    assert violated(report) == {"held-at-most", "flag-lag"}
    assert verdict(report, "wake-not-lost") == "vacuous"


def test_a_rank_that_ends_early_is_told_and_one_on_its_own_is_vacuous(tmp_path: Path) -> None:
    first, second = group(tmp_path)
    lines = second.read_text(encoding="utf-8").splitlines(keepends=True)
    second.write_text("".join(lines[:8]), encoding="utf-8")
    report = check_trace([str(first), str(second)])
    assert violated(report) == set()
    assert [note for note in report.notes if note.startswith("rank 1 ends with lock step")]
    alone = check_trace([str(first)])
    unseen = {"sync-interval-free", "end-is-clear"}
    assert {verdict(alone, id) for id in GROUP_CATALOGUE if id not in unseen} == {"vacuous"}
    assert {verdict(alone, id) for id in unseen} == {"not asked"}


def test_a_group_that_was_started_again_is_another_group(tmp_path: Path) -> None:
    """Each of its starts is checked by itself, as long as its ranks say which one it was."""
    first, second = group(tmp_path / "first", name="x.0"), group(tmp_path / "second", name="x.1", steps=9)
    report = check_trace(list(map(str, [*first, *second])))
    assert violated(report) == set()
    assert (report.ranks, report.lock_steps, report.exit_code) == ([0, 1], 12 + 9, 0)
    wrong = falsify(second[1], shift_phase)
    assert violated(check_trace([*map(str, [*first, second[0]]), wrong])) == {"phase-agrees"}
    twice = group(tmp_path / "twice", name="x.0")
    with pytest.raises(TraceError, match="rank 0 also has another run"):
        check_trace(list(map(str, [*first, *twice])))


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    two, three = group(tmp_path / "two"), group(tmp_path / "three", 3)
    with pytest.raises(TraceError, match="groups of 2 and 3 ranks"):
        check_trace([str(two[0]), str(three[0])])
    again = group(tmp_path / "again")
    with pytest.raises(TraceError, match="rank 0 also has another run"):
        check_trace([str(two[0]), str(again[0])])


# --- The verb --------------------------------------------------------------------------------------------------------


ALLOWED = [part for id in EVERY for part in ("--allow-vacuous", id)]


def invoke(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, [*args, *ALLOWED], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.output


def test_the_verb_lists_every_invariant(trace: Path, tmp_path: Path) -> None:
    code, text = invoke(str(trace), "--json", str(tmp_path / "out.json"))
    assert code == 0
    for id in (*CATALOGUE, *GROUP_CATALOGUE, "trace-complete"):
        assert f" {id} " in text or f" {id}\n" in text
    assert "steps (" in text
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (report["exit_code"], report["findings"]) == (0, [])
    verdicts = {row["id"]: row["verdict"] for row in report["invariants"]}
    assert verdicts["saturation-opens"] == verdicts["phase-agrees"] == "not asked"
    assert verdicts["budget"] == "holds"


def test_the_verb_shows_the_steps_around_a_violation(trace: Path, tmp_path: Path) -> None:
    wrong = falsify(trace, overspend)
    code, text = invoke(wrong, "--context", "2", "--json", str(tmp_path / "out.json"))
    assert code == 1
    line = where([json.loads(line) for line in Path(wrong).read_text().splitlines()], step(3)) + 1
    assert f"VIOLATED  {wrong}:{line}: rank 0, step 3: budget: " in text
    (heading,) = {line for line in text.splitlines() if line.strip().startswith("step  ")}
    assert heading.split() == ["step", "2", "3", "4", "5"]
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert report["findings"][0]["line"] == line
    assert "mode" in report["findings"][0]["table"]


def test_the_verb_takes_folders_and_says_what_is_wrong_with_them(trace: Path, tmp_path: Path) -> None:
    assert invoke(str(trace.parent))[0] == 0
    (tmp_path / "none").mkdir()
    with pytest.raises(TraceError, match=r"no \.ndjson file"):
        invoke(str(tmp_path / "none"))


def test_a_trace_without_a_step_is_not_checked(trace: Path) -> None:
    def only_the_header(lines: list[Packed]) -> None:
        del lines[1:]

    code, text = invoke(falsify(trace, only_the_header))
    assert code == 2
    assert "nothing was checked" in text


def test_what_was_never_put_to_the_test_is_no_pass(tmp_path: Path) -> None:
    """One empty step: its outputs bring no token, so nothing was delivered."""
    made = Recorded(Config(), trace=TraceOptions(str(tmp_path)))
    made.update(made.schedule(), {})
    made.recorder.writer.close()  # type: ignore[union-attr]  # it is recorded
    report = check.check_trace(paths(tmp_path))
    assert report.steps == 1
    assert {verdict(report, id) for id in ("exactly-once", "budget", "order-kept")} == {"vacuous"}
    assert {verdict(report, id) for id in ("saturation-opens", "phase-agrees", "end-is-clear")} == {"not asked"}
    assert report.exit_code == 2
    assert check_trace(paths(tmp_path)).exit_code == 0
    vacuous = [row.invariant for row in report.rows if row.verdict == "vacuous"]
    assert check.check_trace(paths(tmp_path), allow_vacuous=vacuous).exit_code == 0
    assert check.check_trace(paths(tmp_path), allow_vacuous=vacuous[1:]).exit_code == 2
    with pytest.raises(OnbeatError, match="there is no invariant nobody"):
        check.check_trace(paths(tmp_path), allow_vacuous=["nobody"])


# --- Anything --------------------------------------------------------------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(leaf for key, each in inner for leaf in leaves(each, (*path, key)))]


def test_no_trace_makes_it_crash(trace: Path) -> None:
    """Values set, taken away and put in at random: each is an error of the reader, or a verdict."""
    draw = random.Random(1)
    values = [0, -1, 1, 10**30, True, None, "a", "nobody", "all", [], {}, ["a"], {"a": 1}, [["a", "b", 1]], 1.5]
    verdicts = {0: 0, 1: 0, 2: 0}
    for _ in range(600):
        packed = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
        for _ in range(draw.randint(1, 3)):
            *path, last = draw.choice(leaves(packed)[1:])
            inner: Any = packed
            for key in path:
                inner = inner[key]
            if draw.random() < 0.3:
                del inner[last]
            else:
                inner[last] = draw.choice(values)
        wrong = trace.parent.parent / "wrong.ndjson"
        wrong.write_text("".join(json.dumps(each) + "\n" for each in packed), encoding="utf-8")
        try:
            report = check_trace([str(wrong)], context=2)
        except TraceError:
            verdicts[2] += 1
        else:
            json.dumps(report.as_json())
            verdicts[report.exit_code] += 1
    assert min(verdicts.values()) > 20, verdicts
