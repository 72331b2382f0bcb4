"""Measure what recording costs: `schedule()` and `update()` of a pure-decode step, with a recorder and without.

Both schedulers run in this one process and take turns in rounds; of each the round with the least median counts. The
garbage collector stays on. The trace goes to a temporary folder and is checked afterwards, so bytes a step and checked
steps a second are those of the same run.
"""

import argparse
import gc
import statistics
import tempfile
from pathlib import Path
from time import perf_counter_ns
from typing import NamedTuple

from benchmarks._measure import build_requests, build_scheduler, sampled
from onbeat_proofs.traces.check import check_trace
from onbeat_reference import Scheduler
from onbeat_reference.recorder import RecorderMixin
from onbeat_reference.trace_writer import TraceOptions


class Recorded(RecorderMixin, Scheduler):
    """What is measured beside the plain one."""


class Row(NamedTuple):
    """The result for one number of running decodes. Times are median microseconds of one step."""

    decodes: int
    plain_us: float
    recorded_us: float
    bytes_per_step: float
    checked_per_second: float

    @property
    def ratio(self) -> float:
        """How much longer a recorded step takes."""
        return self.recorded_us / self.plain_us


def start(scheduler: Scheduler, decodes: int) -> None:
    """Step until so many requests only decode."""
    for request in build_requests(decodes):
        scheduler.add_request(request)
    while any(request.num_tokens == request.num_prompt for request in scheduler.requests.values()):
        step = scheduler.schedule()
        scheduler.update(step, sampled(scheduler, step, 1))
    gc.collect()


def timed(scheduler: Scheduler, steps: int) -> float:
    """Return the median microseconds of so many steps."""
    samples = []
    for token in range(steps):
        began = perf_counter_ns()
        step = scheduler.schedule()
        spent = perf_counter_ns() - began
        outputs = sampled(scheduler, step, token)
        began = perf_counter_ns()
        scheduler.update(step, outputs)
        samples.append(spent + perf_counter_ns() - began)
    return statistics.median(samples) / 1000


def measure(decodes: int, steps: int, rounds: int, options: dict[str, int | bool]) -> Row:
    """Measure one shape, side by side."""
    config = build_scheduler(False).config
    with tempfile.TemporaryDirectory() as folder:
        trace = TraceOptions(folder, max_files=1_000, **options)  # type: ignore[arg-type]  # its own names
        plain, recorded = Scheduler(config), Recorded(config, trace=trace)
        for scheduler in (plain, recorded):
            start(scheduler, decodes)
        before, first = _bytes(folder), recorded.num_steps
        both = [(timed(plain, steps), timed(recorded, steps)) for _ in range(rounds)]
        assert recorded.recorder is not None
        recorded.recorder.writer.close()
        if recorded.recorder.writer.errors:
            raise RuntimeError("the trace could not be written")
        written = (_bytes(folder) - before) / (recorded.num_steps - first)
        report = check_trace([str(path) for path in Path(folder).iterdir()])
    if report.findings or not report.steps:
        raise RuntimeError("the trace of the benchmark does not hold")
    return Row(
        decodes, min(one for one, _ in both), min(other for _, other in both), written, report.steps / report.seconds
    )


def _bytes(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).iterdir())


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="recorder.py", description="Measure what recording a scheduler costs.")
    parser.add_argument("--decodes", default="1,64,256,1024", help="running decodes, as 1,64")
    parser.add_argument("--steps", type=int, default=200, help="measured steps of each round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in turn")
    parser.add_argument("--flush-every", type=int, default=1, help="steps between two writes")
    parser.add_argument("--fsync", action="store_true", help="wait for the disk at every write")
    options = parser.parse_args(arguments)
    print("decodes  plain us  recorded us  ratio  bytes/step  checked steps/s")
    for decodes in map(int, options.decodes.split(",")):
        row = measure(
            decodes, options.steps, options.rounds, {"flush_every": options.flush_every, "fsync": options.fsync}
        )
        print(
            f"{row.decodes:>7}  {row.plain_us:>8.1f}  {row.recorded_us:>11.1f}  {row.ratio:>5.2f}  "
            f"{row.bytes_per_step:>10.0f}  {row.checked_per_second:>15,.0f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
