"""Lanes read from recorded traces."""

from pathlib import Path

import pytest

from onbeat_engine.lanes.read import read_lanes
from onbeat_engine.wire.lane_steps import Lanes
from onbeat_spec.config import Config
from onbeat_spec.errors import TraceError
from onbeat_spec.records import LockStep, Step
from onbeat_spec.trace import Header, Idle, Record, StepRecord, Update
from onbeat_spec.trace_read import trace_paths
from onbeat_spec.trace_write import NO_STATE, line
from tests.engine.lanes.traces import record

CONFIG = Config(prefill_schedule_interval=2, data_parallel_size=2)


def put(path: Path, *records: Record, started: float = 50.0, run: str = "r", part: int = 0, rank: int = 0) -> Path:
    header = Header(rank, 2, CONFIG, "onbeat", "x:Y", NO_STATE, run=run, part=part, started=started)
    path.write_text("".join(line(each, CONFIG.max_num_batched_tokens) for each in (header, *records)))
    return path


def scheduled(index: int, time: float, number: int | None = None) -> StepRecord:
    lock = None if number is None else LockStep(number, number % 2)
    return StepRecord(Step(index, False, scheduled={"a": 1}), NO_STATE, NO_STATE, lock=lock, time=time)


def lane(lanes: Lanes, rank: int = 0) -> list[tuple[int, float, float | None]]:
    return [(s.number, s.start, s.duration) for s in lanes.steps[rank]]


def test_a_step_lasts_until_its_outputs(tmp_path: Path) -> None:
    path = put(tmp_path / "a", scheduled(0, 1.0, 5), Update(0, time=1.25), scheduled(1, 1.5, 6), Update(1, time=2.5))
    assert lane(read_lanes([str(path)])) == [(5, 0.0, 0.25), (6, 0.5, 1.0)]


def test_a_step_scheduled_ahead_begins_when_the_one_before_it_ends(tmp_path: Path) -> None:
    records: list[Record] = [scheduled(0, 1.0, 5), scheduled(1, 1.1, 6), Update(0, time=2.0), Update(1, time=2.75)]
    assert lane(read_lanes([str(put(tmp_path / "a", *records))])) == [(5, 0.0, 1.0), (6, 1.0, 0.75)]


def test_idle_lock_steps_have_their_own_time(tmp_path: Path) -> None:
    path = put(tmp_path / "a", scheduled(0, 1.0, 1), Update(0, time=1.5), Idle(LockStep(2, 0), 3.0, 0.5))
    assert lane(read_lanes([str(path)])) == [(1, 0.0, 0.5), (2, 1.5, 0.5)]


def test_what_has_no_time_is_told(tmp_path: Path) -> None:
    lanes = read_lanes([str(put(tmp_path / "a", scheduled(0, 1.0, 1), Update(0), Idle(LockStep(2, 0))))])
    assert [duration for _, _, duration in lane(lanes)] == [None, None]
    assert lanes.notes == ("rank 0: 2 of 2 steps have no time recorded",)


def test_parts_are_put_in_order_and_a_step_may_end_in_the_next(tmp_path: Path) -> None:
    second = put(tmp_path / "a", Update(0, time=0.5), scheduled(1, 1.0, 6), started=60.0, part=1)
    first = put(tmp_path / "b", scheduled(0, 9.0, 5), started=50.0)
    assert lane(read_lanes([str(second), str(first)])) == [(5, 0.0, 1.5), (6, 2.0, None)]


def test_the_newest_run_of_a_rank_is_drawn(tmp_path: Path) -> None:
    put(tmp_path / "a.ndjson", scheduled(0, 0.0, 5), started=50.0, run="old")
    put(tmp_path / "b.ndjson", scheduled(0, 0.0, 6), started=90.0, run="new")
    put(tmp_path / "c.ndjson", started=90.0, run="other", rank=1)
    lanes = read_lanes(trace_paths([str(tmp_path)]))
    assert [s.number for s in lanes] == [6]
    assert "rank 0 has 2 runs; the newest is drawn, new" in lanes.notes


def test_ranks_without_lock_steps_are_told(tmp_path: Path) -> None:
    lanes = read_lanes([str(put(tmp_path / "a", scheduled(0, 0.0), Update(0, time=1.0)))])
    assert lanes.notes == ("rank 0: no lock step numbers recorded; its columns are its own steps",)


def test_a_cut_line_is_told_and_an_empty_file_passed_over(tmp_path: Path) -> None:
    path = put(tmp_path / "a", scheduled(0, 0.0, 1), Update(0, time=1.0))
    path.write_text(path.read_text() + '{"step":')
    (tmp_path / "b").touch()
    lanes = read_lanes([str(path), str(tmp_path / "b")])
    assert any("cut off" in note for note in lanes.notes)
    assert any("no whole line" in note for note in lanes.notes)


def test_no_step_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no step in any"):
        read_lanes([str(put(tmp_path / "a"))])
    with pytest.raises(TraceError, match=r"no \.ndjson file"):
        trace_paths([str(tmp_path)])


@pytest.mark.parametrize("interval", [1, 2, 4])
def test_a_recorded_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: int) -> None:
    lanes = read_lanes(trace_paths([str(record(tmp_path, interval, monkeypatch))]))
    assert (sorted(lanes.steps), lanes.interval, lanes.lock_step, lanes.notes) == ([0, 1], interval, True, ())
    by_number = {step.number: step for step in lanes.steps[1]}
    assert [step.number for step in lanes.steps[0]] == sorted(by_number)
    for step in lanes.steps[0]:
        other = by_number[step.number]
        # Both take as long as the larger batch: 1 ms and 30 us a token.
        most = max(step.prefill_tokens + step.decode_tokens, other.prefill_tokens + other.decode_tokens)
        assert step.duration == pytest.approx(0.001 + 0.00003 * most, abs=2e-5)
        assert other.duration == pytest.approx(step.duration, abs=2e-5)
        assert step.beat == other.beat == (step.number % interval == 0)
    kinds = {step.kind for step in lanes}
    assert kinds == {"prefill", "mixed", "decode", "dummy"}
    assert any(step.held for step in lanes) == (interval > 1)
    assert all(step.why for step in lanes if step.prefills and not step.beat)
