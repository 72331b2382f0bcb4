"""Record a short run: `python examples/record.py traces` writes one of the reference's scheduler and one of Hasty."""

import sys
from pathlib import Path

from onbeat_reference import Request, Scheduler
from onbeat_reference.recorder import RecorderMixin
from onbeat_reference.trace_writer import TraceOptions
from onbeat_spec import Config, clock_for

sys.path.insert(0, str(Path(__file__).parent))

from hasty import Hasty

CONFIG = Config(block_size=4, num_blocks=8, max_num_batched_tokens=8, prefill_schedule_interval=2)


class Recorded(RecorderMixin, Scheduler):
    """The reference's scheduler, recorded."""


class RecordedHasty(RecorderMixin, Hasty):
    """The one with a fault, recorded."""


def run(cls: type[Recorded] | type[RecordedHasty], folder: Path) -> None:
    """Serve three requests, and write down how."""
    scheduler = cls(CONFIG, trace=TraceOptions(str(folder)))
    clock = clock_for(CONFIG.prefill_schedule_interval, CONFIG.data_parallel_size)
    for id, prompt in (("a", 3), ("b", 18), ("c", 14)):
        scheduler.add_request(Request(id, prompt=[1] * prompt, max_tokens=4))
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule(clock.throttle())
        clock.executed(sum(step.scheduled.values()), step.prefill, step.holding)
        scheduler.update(step, {id: [7] for id in step.scheduled})


if __name__ == "__main__":
    run(Recorded, Path(sys.argv[1], "reference"))
    run(RecordedHasty, Path(sys.argv[1], "hasty"))
