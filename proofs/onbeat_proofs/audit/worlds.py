"""The small worlds that `search` explores: a configuration and an alphabet each.

Every scope is small on purpose (a few blocks, slots and requests), so that all sequences of its letters fit into
seconds; most of them even close: at some depth no new state turns up, and what holds then holds for all sequences of
any length. The random histories of `histories.py` mix what the scopes keep apart.
"""

from dataclasses import dataclass, replace

from onbeat_proofs.play.letters import (
    Letter,
    abort,
    abort_late,
    add,
    again,
    deliver,
    failed,
    ineligible,
    landed,
    landed_late,
    pause,
    reset,
    resume,
    schedule,
    stop,
)
from onbeat_proofs.scenarios.operations import Add, Op, Schedule
from onbeat_spec.config import Config

SMALL = Config(block_size=2, num_blocks=5, max_num_batched_tokens=4, max_num_seqs=2, max_model_len=12, max_hold_steps=2)
BOTH = (schedule(False), schedule(True))


@dataclass(frozen=True, slots=True)
class SmallWorld:
    """A configuration, an alphabet, and how far it is explored.

    Attributes:
        depths: most operations in a sequence, for the budgets quick, standard and deep. 20 or more stands for "until it
            closes", as all do with the reference but those of lesser depths, and `priority`, where preemptions are
            counted without end.
        late: some letters speak of requests that have ended.
    """

    name: str
    description: str
    config: Config
    letters: tuple[Letter, ...]
    depths: tuple[int, int, int]
    late: bool = False
    opening: tuple[Op, ...] = ()
    """What happens before the search begins."""


SCOPES = (
    SmallWorld(
        "core",
        "chunks, decodes, one-token prompts and preemption, first come first served",
        replace(SMALL, max_num_batched_tokens=5, max_num_seqs=3),
        (*BOTH, add(Add("", 7, 2)), add(Add("", 3, 4)), add(Add("", 1, 2)), abort(0)),
        (8, 20, 20),
    ),
    SmallWorld(
        "priority",
        "the same with two priorities",
        replace(SMALL, scheduling="priority", num_blocks=4, max_num_seqs=3),
        (*BOTH, add(Add("", 3, 4, priority=1)), add(Add("", 3, 3)), add(Add("", 5, 2, priority=2)), abort(-1)),
        (7, 14, 40),
    ),
    SmallWorld(
        "tight",
        "a decode that must make room for itself while an older or better chunk is held",
        replace(SMALL, scheduling="priority"),
        (*BOTH, add(Add("", 1, 6, priority=1), 2), add(Add("", 8, 1), 2), add(Add("", 2, 4, priority=2))),
        (9, 20, 20),
    ),
    SmallWorld(
        "remote",
        "remote loads, waited for or within a step, that land, fail, or pass their deadline",
        replace(SMALL, scheduling="priority", num_blocks=6, max_num_seqs=3, remote_load_timeout=2),
        (
            *BOTH,
            add(Add("", 5, 2, priority=1, remote_tokens=4)),
            add(Add("", 4, 2, priority=1, remote_tokens=3, remote_mode="sync")),
            add(Add("", 7, 3)),
            landed(0),
            landed(-1),
            failed(0),
            failed(1),
            abort(0),
        ),
        (6, 20, 20),
    ),
    SmallWorld(
        "resumes",
        "beside a decode: remote loads that leave one token of work, or more, and a fresh prefill of better priority",
        replace(SMALL, scheduling="priority", num_blocks=9, max_num_seqs=3),
        (
            *BOTH,
            add(Add("", 4, 2, priority=1, remote_tokens=2)),
            add(Add("", 4, 2, priority=1, remote_tokens=4)),
            add(Add("", 2, 1)),
            landed(0),
            landed(-1),
        ),
        (6, 9, 20),
        opening=(Add("d", 1, 6), Schedule(throttle=False)),
    ),
    SmallWorld(
        "ahead",
        "steps scheduled one ahead of their outputs",
        replace(SMALL, async_depth=2),
        (*BOTH, deliver, add(Add("", 3, 3)), add(Add("", 2, 1)), add(Add("", 5, 2)), abort(0), reset, ineligible(0, 1)),
        (5, 7, 9),
    ),
    SmallWorld(
        "prefix",
        "prompts with a common prefix, found in the cache, and shared blocks that free nothing",
        replace(SMALL, scheduling="priority", num_blocks=4, enable_prefix_caching=True, max_num_seqs=3),
        (
            *BOTH,
            add(Add("", 4, 3, priority=1, prefix=("x", 4))),
            add(Add("", 6, 2, prefix=("x", 5))),
            add(Add("", 2, 4)),
            ineligible(0, 4),
        ),
        (7, 8, 10),
    ),
    SmallWorld(
        "control",
        "pauses, ineligible requests, stop tokens, and notices that come late",
        replace(SMALL, max_num_seqs=3),
        (
            *BOTH,
            add(Add("", 4, 3), 2),
            add(Add("", 12, 1), 2),
            again,
            pause("new"),
            pause("all"),
            resume,
            ineligible(0, 2),
            stop,
            abort(0),
            abort_late,
            landed_late,
        ),
        (5, 10, 16),
        late=True,
    ),
    SmallWorld(
        "drafts",
        "draft tokens, some of them right",
        replace(SMALL, num_draft_tokens=2, max_num_batched_tokens=5),
        (*BOTH, schedule(True, accept=1), add(Add("", 3, 4)), add(Add("", 5, 5)), abort(0)),
        (7, 30, 30),
    ),
    SmallWorld(
        "beat",
        "the clock of a lock-step group chooses the flag, one step in three is on the beat",
        replace(SMALL, max_num_seqs=3, num_blocks=6, prefill_schedule_interval=3, data_parallel_size=2),
        (schedule(None), add(Add("", 6, 2)), add(Add("", 3, 4)), add(Add("", 1, 3)), abort(0)),
        (7, 40, 40),
    ),
    SmallWorld(
        "local",
        "the clock of a rank on its own chooses the flag; remote loads come and land",
        replace(SMALL, max_num_seqs=3, num_blocks=6, prefill_schedule_interval=2),
        (
            schedule(None),
            add(Add("", 6, 2)),
            add(Add("", 3, 4)),
            add(Add("", 3, 3, remote_tokens=1)),
            landed(0),
            abort(0),
        ),
        (7, 30, 30),
    ),
)
