"""The recorder writes down what happened, changes nothing, and harms nobody."""

import copy
import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from onbeat_reference import Request, Scheduler
from onbeat_reference.observe import observe
from onbeat_reference.recorder import RecorderMixin
from onbeat_reference.trace_writer import RETRY, TraceOptions, TraceWriter
from onbeat_reference.watch import Watch
from onbeat_spec.config import Config
from onbeat_spec.errors import ConfigError, EmptyTrace, ProtocolMisuse, RequestRefused
from onbeat_spec.records import Facts, LockStep, Step
from onbeat_spec.trace import (
    Accepted,
    CacheReset,
    Crashed,
    Header,
    Idle,
    Notice,
    PauseChanged,
    Record,
    Refused,
    StepRecord,
    Update,
)
from onbeat_spec.trace_read import TraceFile
from tests.reference.helpers import examples, land, photo, request, turn
from tests.reference.histories import CONFIGS, SEQUENCES, Run


class Recorded(RecorderMixin, Scheduler):
    """The reference's scheduler, recorded."""


def recorded(folder: Path, *requests: Request, audit_every: int = 256, **config: object) -> Recorded:
    values: dict[str, object] = {"block_size": 4, "num_blocks": 100, **config}
    made = Recorded(Config(**values), trace=TraceOptions(str(folder), audit_every=audit_every))  # type: ignore[arg-type]  # any configuration
    for each in requests:
        made.add_request(each)
    return made


def files(folder: Path) -> list[TraceFile]:
    return [TraceFile(path) for path in sorted(folder.glob("*.ndjson"))]


def records(folder: Path) -> Iterator[Record]:
    for file in files(folder):
        yield from (record for _, record in file)
        file.close()


def fields(step: Step) -> dict[str, object]:
    return {name: getattr(step, name) for name in Step.__slots__}


# --- What is written -------------------------------------------------------------------------------------------------


@examples(60)
@given(config=CONFIGS, sequence=SEQUENCES)
def test_a_trace_tells_what_a_watch_sees(
    tmp_path_factory: pytest.TempPathFactory, config: Config, sequence: list[tuple[str, int]]
) -> None:
    """Record by record the same steps and partial states, and now and then a whole one."""
    folder = tmp_path_factory.mktemp("trace")
    options = TraceOptions(str(folder), audit_every=4)
    run = Run(lambda config: Recorded(config, trace=options, trace_any_flag=True), config, False, 256)
    shown: list[Facts] = []
    show = run.watch.monitor.step

    def watch(facts: Facts) -> None:
        shown.append(facts)
        show(facts)

    run.watch.monitor.step = watch  # type: ignore[method-assign]  # it sees what the recorder saw
    for what, number in sequence:
        run.apply(what, number)
    read = list(records(folder))
    steps = [each for each in read if isinstance(each, StepRecord)]
    assert len(steps) == len(shown)
    for each, facts in zip(steps, shown, strict=True):
        assert fields(each.step) == fields(facts.step)
        assert (each.before, each.after) == (facts.before, facts.after)
    assert all(each.whole is not None for each in steps[::4])
    ends = sum(len(each.finished) for each in read if isinstance(each, Update))
    ends += sum(each.what == "abort" and each.known for each in read if isinstance(each, Notice))
    assert sum(isinstance(each, Accepted) for each in read) == len(run.asked)
    assert ends == len(run.asked) - len(run.scheduler.requests)


@examples(40)
@given(config=CONFIGS, sequence=SEQUENCES)
def test_recording_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, config: Config, sequence: list[tuple[str, int]]
) -> None:
    options = TraceOptions(str(tmp_path_factory.mktemp("trace")), max_bytes=2000)
    plain = Run(Scheduler, config, False, 256)
    other = Run(lambda config: Recorded(config, trace=options), config, False, 256)
    for what, number in sequence:
        plain.apply(what, number)
        other.apply(what, number)
        assert observe(plain.scheduler) == observe(other.scheduler)


def test_events_between_steps(tmp_path: Path) -> None:
    made = recorded(tmp_path, request("a", 8), max_model_len=64)
    with pytest.raises(RequestRefused):
        made.add_request(request("huge", 64))
    with pytest.raises(RequestRefused):
        made.add_request(request("a", 4))  # live already: that is no matter of size
    turn(made)
    made.pause("all")
    made.resume()
    made.reset_prefix_cache()
    assert made.recorder is not None
    made.recorder.took_part(LockStep(7, 1, ("all_gather",)), 0.25)
    made.recorder.lock = LockStep(8, 2)
    turn(made)
    a = made.requests["a"]
    assert made.abort(a)
    assert not made.abort(a)
    read = list(records(tmp_path))
    steps = [each for each in read if isinstance(each, StepRecord)]
    assert [each.lock for each in steps] == [None, LockStep(8, 2)]
    timed = [each for each in read if isinstance(each, Update | Idle)]
    assert all(0 < each.time < 60 for each in timed)
    untimed = [replace(each, time=0.0) if isinstance(each, Update | Idle) else each for each in read]
    assert [each for each in untimed if not isinstance(each, StepRecord)] == [
        Accepted("a", 8, 24),
        Refused("huge", 64),
        Update(0),
        PauseChanged("all"),
        PauseChanged(None),
        CacheReset(("a",)),
        Idle(LockStep(7, 1, ("all_gather",)), took=0.25),
        Update(1),
        Notice("abort", "a"),
        Notice("abort", "a", known=False),
    ]


def test_loads(tmp_path: Path) -> None:
    a, b = request("a", 8, remote=4), request("b", 8, remote=4)
    made = recorded(tmp_path, a, b)
    turn(made)
    made.load_finished(a)
    made.load_failed(b)
    made.load_failed(b)
    read = [each for each in records(tmp_path) if isinstance(each, Notice)]
    assert read == [
        Notice("load_finished", "a"),
        Notice("load_failed", "b"),
        Notice("load_failed", "b", known=False),
    ]


class Meddles(Recorded):
    """A late notice gives a block away, and the tenth step is too much."""

    def schedule(self, throttle_prefills: bool = False) -> Step:
        return super().schedule(throttle_prefills)

    def _landed(self, request: Request, valid: int) -> None:
        if request not in self.parked:
            self.pool.free -= 1
        super()._landed(request, valid)

    def _scan(self, *args: object) -> None:
        if self.num_steps == 1:
            raise ZeroDivisionError("a bug")
        super()._scan(*args)  # type: ignore[arg-type]  # passed on as they came


def test_faults_are_recorded_and_raised(tmp_path: Path) -> None:
    made = Meddles(Config(block_size=4, num_blocks=100), trace=TraceOptions(str(tmp_path)))
    a = request("a", 4)
    made.add_request(a)
    turn(made)
    made.load_finished(a)
    with pytest.raises(ZeroDivisionError):
        made.schedule()
    with pytest.raises(ProtocolMisuse):
        made.update(Step(9, False), {})
    notice, crashed = [each for each in records(tmp_path) if isinstance(each, Notice | Crashed)]
    assert isinstance(notice, Notice)
    assert notice.before is not None
    assert notice.after is not None
    assert (notice.before.free, notice.after.free) == (99, 98)
    assert crashed == Crashed("schedule: ZeroDivisionError: a bug")


def test_a_copy_of_a_scheduler_is_not_recorded(tmp_path: Path) -> None:
    made = recorded(tmp_path, request("a", 4))
    other = copy.deepcopy(made)
    turn(other)
    assert photo(other) != photo(made)
    assert [type(each) for each in records(tmp_path)] == [Accepted]


def test_without_options_nothing_is_recorded() -> None:
    made = Recorded(Config())
    made.add_request(request("a", 4))
    turn(made)
    made.pause()
    made.resume()
    made.reset_prefix_cache()
    assert made.abort(made.requests["a"])
    assert made.recorder is None


# --- Files -----------------------------------------------------------------------------------------------------------


def test_files_rotate_and_each_can_be_read_alone(tmp_path: Path) -> None:
    options = TraceOptions(str(tmp_path), max_bytes=4000, max_files=3)
    made = Recorded(Config(block_size=4, num_blocks=100, async_depth=2), trace=options)
    made.add_request(request("a", 9, max_tokens=200))
    watch = Watch(made)
    for _ in range(150):
        watch.step(made.schedule())
        if len(made.in_flight) == 2:
            watch.delivered(land(made))
    kept = files(tmp_path)
    assert len(kept) == 3
    assert all(path.stat().st_size < 4000 + 2000 for path in tmp_path.iterdir())
    assert len({file.header.run for file in kept}) == 1
    first = kept[0].header.part
    assert first > 0
    assert [file.header.part for file in kept] == [first, first + 1, first + 2]
    for file in kept:
        steps = [record.step.index for _, record in file if isinstance(record, StepRecord)]
        assert steps[:1] == [file.header.next_step][: len(steps)]
        assert file.header.state.requests["a"].num_tokens >= 9
        assert len(file.header.flights) == file.header.state.in_flight
        file.close()


def test_files_of_earlier_runs_are_bounded_too(tmp_path: Path) -> None:
    for name in ("20200101T000000-1-aa-rank0-000000", "20200101T000000-1-aa-rank1-000000"):
        (tmp_path / f"{name}.ndjson").touch()
    made = Recorded(Config(), trace=TraceOptions(str(tmp_path), max_files=1))
    assert made.recorder is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "20200101T000000-1-aa-rank1-000000.ndjson",
        made.recorder.writer.path.name if made.recorder.writer.path else "",
    ]


def test_records_wait_for_their_write(tmp_path: Path) -> None:
    options = TraceOptions(str(tmp_path), flush_every=3, fsync=True)
    made = Recorded(Config(), trace=options)
    made.add_request(request("a", 4))
    for count in range(1, 6):
        turn(made)
        assert sum(isinstance(each, StepRecord) for each in records(tmp_path)) == count // 3 * 3
    assert made.recorder is not None
    made.recorder.writer.close()
    assert sum(isinstance(each, StepRecord) for each in records(tmp_path)) == 5
    turn(made)
    assert made.recorder.writer.lost == 2


def test_a_full_disk_is_counted_said_once_and_told_in_the_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = recorded(tmp_path, request("a", 4, max_tokens=3 * RETRY))
    assert made.recorder is not None
    writer, write = made.recorder.writer, os.write

    def full(descriptor: int, text: bytes) -> int:
        write(descriptor, bytes(text[:10]))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with caplog.at_level(logging.ERROR):
        for _ in range(RETRY):
            turn(made)
    assert (writer.errors, writer.path is not None) == (2, True)
    assert [record.message.count("No space left on device") for record in caplog.records] == [1]
    monkeypatch.setattr(os, "write", write)
    for _ in range(RETRY):
        turn(made)
    assert writer.lost == 0
    broken, *_, last = files(tmp_path)
    assert list(broken)
    assert broken.cut
    assert last.header.lost > RETRY
    assert next(each.step.index for _, each in last if isinstance(each, StepRecord)) == last.header.next_step
    for file in files(tmp_path):
        file.close()
    broken.close()
    last.close()


def test_a_folder_that_cannot_be_made_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.ERROR):
        made = recorded(tmp_path / "file" / "trace", request("a", 4))
        turn(made)
    assert made.recorder is not None
    assert (made.recorder.writer.errors, made.recorder.writer.path) == (1, None)
    assert len(caplog.records) == 1


def test_what_cannot_be_written_down_stops_nothing(tmp_path: Path) -> None:
    made = recorded(tmp_path)
    made.add_request(request("a", 4))
    assert made.recorder is not None
    made.recorder.writer.write(Accepted("a", object(), 1))  # type: ignore[arg-type]  # that is the point
    assert (made.recorder.writer.errors, made.recorder.writer.lost) == (1, 1)


CHILD = """
import sys
from onbeat_reference import Request, Scheduler
from onbeat_reference.recorder import RecorderMixin
from onbeat_reference.trace_writer import TraceOptions
from onbeat_spec.config import Config

class Recorded(RecorderMixin, Scheduler):
    pass

made = Recorded(Config(num_blocks=100_000, max_model_len=10**6), trace=TraceOptions(sys.argv[1], max_bytes=50_000))
made.add_request(Request("a", [1, 2, 3], 10**6))
print("going", flush=True)
while True:
    step = made.schedule()
    made.update(step, {"a": [1]})
"""


def test_a_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, env=environment
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        while len(list(tmp_path.iterdir())) < 3:
            assert child.poll() is None
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        child.wait()
    newest = max(tmp_path.iterdir())
    try:
        TraceFile(newest).close()
    except EmptyTrace:  # killed before the header was whole: readers pass such a file over
        newest.unlink()
    steps = [each.step.index for each in records(tmp_path) if isinstance(each, StepRecord)]
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert len(steps) > 100


def test_options_from_the_environment() -> None:
    assert TraceOptions.from_environment({}) is None
    read = TraceOptions.from_environment(
        {"ONBEAT_TRACE_DIR": "x", "ONBEAT_TRACE_MAX_BYTES": "12", "ONBEAT_TRACE_FSYNC": "1"}
    )
    assert read == TraceOptions("x", max_bytes=12, fsync=True)


@pytest.mark.parametrize(
    ("name", "text"), [("MAX_FILES", "0"), ("MAX_FILES", "-1"), ("MAX_BYTES", "1e6"), ("FSYNC", "yes"), ("FSYNC", "")]
)
def test_an_option_that_makes_no_sense_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be"):
        TraceOptions.from_environment({"ONBEAT_TRACE_DIR": "x", f"ONBEAT_TRACE_{name}": text})


def test_a_writer_needs_no_scheduler(tmp_path: Path) -> None:
    config = Config()
    state = observe(Scheduler(config))
    writer = TraceWriter(
        TraceOptions(str(tmp_path)), 3, lambda run, part, lost: Header(3, 4, config, "p", "m:C", state, run, part)
    )
    writer.write(Accepted("a", 1, 2))
    assert list(records(tmp_path)) == [Accepted("a", 1, 2)]
