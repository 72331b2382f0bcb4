"""Record two ranks in lock step: `python examples/record_group.py traces 2` serves made-up arrivals at interval 2.

There is no model: a forward is a pause, longer with more tokens, and as long as that of the slowest rank.
"""

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from onbeat_reference import Request, Scheduler
from onbeat_reference.recorder import RecorderMixin
from onbeat_reference.trace_writer import TraceOptions
from onbeat_spec import Config, clock_for
from onbeat_spec.records import LockStep

RANKS = 2


class Recorded(RecorderMixin, Scheduler):
    """The reference's scheduler, recorded."""


def seconds(tokens: int) -> float:
    """How long a forward of so many tokens is made to take."""
    return 0.001 + 0.00003 * tokens


def run(
    folder: str | Path, interval: int, *, steps: int = 400, seed: int = 0, pause: Callable[[float], object] = time.sleep
) -> None:
    """Serve random arrivals for so many lock steps, and then those that are left."""
    draw = random.Random(seed)
    config = Config(
        max_num_batched_tokens=512, num_blocks=2000, prefill_schedule_interval=interval, data_parallel_size=RANKS
    )
    ranks = [Recorded(config, trace=TraceOptions(str(folder)), trace_rank=rank) for rank in range(RANKS)]
    clocks = [clock_for(interval, RANKS) for _ in ranks]
    number = 0
    while number < steps or any(rank.has_unfinished_requests() for rank in ranks):
        for at, rank in enumerate(ranks):
            # The last rank has nothing to do every now and then.
            if number < steps and draw.random() < 0.12 and not (at == RANKS - 1 and number % 200 > 120):
                prompt, output = draw.randint(20, 700), draw.randint(5, 60)
                rank.add_request(Request(f"{at}-{number}", prompt=[1] * prompt, max_tokens=output))
        phase = getattr(clocks[0], "phase", None)
        lock = LockStep(number, phase, ("forward",))
        scheduled = []
        for rank, clock in zip(ranks, clocks, strict=True):
            step = None
            if rank.has_unfinished_requests():
                assert rank.recorder is not None
                rank.recorder.lock = lock
                step = rank.schedule(clock.throttle())
            scheduled.append(step)
            clock.executed(*(sum(step.scheduled.values()), step.prefill, step.holding) if step else (0, False, False))
        took = seconds(max(sum(step.scheduled.values()) if step else 0 for step in scheduled))
        pause(took)
        for rank, step in zip(ranks, scheduled, strict=True):
            assert rank.recorder is not None
            if step is None:
                rank.recorder.took_part(lock, took)
            else:
                rank.update(step, {r.id: [7] for r in rank.running if r.id in step.scheduled and samples(r)})
        number += 1


def samples(request: Request) -> bool:
    """Whether the step in flight computes the last known token of a request."""
    return request.num_placeholders > 0


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
