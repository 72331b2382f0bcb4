"""Random histories of a scheduler, under a watch and under a full monitor."""

from collections.abc import Callable
from random import Random

from hypothesis import event
from hypothesis import strategies as st

from onbeat_reference import Scheduler
from onbeat_reference.observe import observe
from onbeat_reference.request import Request
from onbeat_reference.watch import Watch
from onbeat_spec.cadence import clock_for
from onbeat_spec.config import Config
from onbeat_spec.monitor import Monitor
from onbeat_spec.records import Facts
from tests.reference.helpers import land, request, text


class Run:
    """A scheduler under a watch and under a full monitor, driven by numbers."""

    def __init__(self, kind: Callable[[Config], Scheduler], config: Config, by_clock: bool, audit_every: int) -> None:
        self.scheduler = kind(config)
        self.by_clock = by_clock
        self.clock = clock_for(config.prefill_schedule_interval, config.data_parallel_size)
        self.watch = Watch(self.scheduler, audit_every=audit_every, any_flag=not by_clock)
        self.monitor = Monitor(config)
        if not by_clock:
            self.monitor.interval = 0
        self.added = 0
        self.asked: list[Request] = []

    def step(self, throttle: bool) -> None:
        made = self.scheduler
        if len(made.in_flight) == made.config.async_depth:
            self.land(0)
        if self.by_clock:
            throttle = self.clock.throttle()
        before = observe(made)
        step = made.schedule(throttle)
        self.monitor.step(Facts(made.config, before, step, observe(made)))
        self.watch.step(step)
        self.clock.executed(sum(step.scheduled.values()), step.prefill, step.holding)
        if step.evictions:
            event("preempts")
        if step.held:
            event("holds")
        if step.lifted:
            event("lifts")
        if step.drafts:
            event("drafts")
        if step.loading:
            event("loads")

    def land(self, number: int) -> None:
        made = self.scheduler
        if not made.in_flight:
            return
        most = made.config.num_draft_tokens
        flight = made.in_flight[0]
        accept = {each.id: min(number % 3, flight.step.drafts.get(each.id, 0)) for each in flight.sampling}
        outputs = land(made, accept=accept, drafts={each.id: most for each in flight.sampling})
        self.watch.delivered(outputs)
        for each in outputs.finished:
            assert each.finish_reason is not None
            self.monitor.finished(each.id, each.finish_reason.value, made.num_steps)
        if not made.has_unfinished_requests():
            self.clock.idle()

    def add(self, number: int) -> None:
        made, config = self.scheduler, self.scheduler.config
        if len(made.requests) > 4:
            return
        longest = min(config.capacity, config.max_model_len - 1)
        prompt = 1 + number % min(longest, 14)
        shared = prompt // 2
        each = request(
            f"r{self.added}",
            [*text("p", shared), *text(f"r{self.added}", prompt - shared)],
            1 + number // 7 % 9,
            priority=number // 3 % 3,
            # More than can be cached, so that every offer is taken.
            remote=shared + 1 + number // 5 % (prompt - shared) if number % 4 == 0 else 0,
            mode="sync" if number // 11 % 3 == 0 else "async",
        )
        self.added += 1
        self.asked.append(each)
        made.add_request(each)

    def apply(self, what: str, number: int) -> None:
        made = self.scheduler
        match what:
            case "step":
                self.step(number % 3 > 0)
            case "land":
                self.land(number)
            case "add":
                self.add(number)
            case "load" if made.parked:
                each = made.parked[number % len(made.parked)]
                if number % 3:
                    made.load_finished(each)
                else:
                    made.load_failed(each, number // 3 % 3)
                self.monitor.notice(observe(made), observe(made), known=True)
            case "orphan" if made.orphans:
                made.load_finished(made.orphans[0])
            case "abort" if made.requests:
                each = list(made.requests.values())[number % len(made.requests)]
                made.abort(each)
                self.monitor.finished(each.id, "abort", made.num_steps)
            case "pause":
                made.pause("all" if number % 2 else "new")
            case "resume":
                made.resume()
            case "reset":
                made.reset_prefix_cache()
            case "stand aside" if able := [*made.running, *(each for each in made.waiting if not each.blocks)]:
                each = able[number % len(able)]
                each.eligible_at = max(each.eligible_at, made.num_steps + number % 3)
        self.monitor.state(observe(made), made.num_steps)

    def drain(self) -> None:
        """Everything comes back, and everybody ends."""
        made = self.scheduler
        made.resume()
        for _ in range(600):
            for each in (*made.parked, *made.orphans):
                made.load_finished(each)
            if not made.has_unfinished_requests() and not made.in_flight:
                return
            self.step(False)
            while made.in_flight:
                self.land(0)
        raise AssertionError(f"{made.running} {made.waiting} never end")


KINDS = [*["step"] * 8, *["add"] * 4, *["land"] * 3, *["load"] * 2]
KINDS += ["orphan", "abort", "pause", *["resume"] * 3, "reset", "stand aside"]
LARGEST = 2**16


def uniform(number: int) -> list[tuple[str, int]]:
    """Many operations, whose kinds and numbers are as good as any: what Hypothesis draws itself is short and plain."""
    draw = Random(number)
    return [(draw.choice(KINDS), draw.randrange(LARGEST)) for _ in range(draw.randint(20, 80))]


SEQUENCES = st.one_of(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, LARGEST)), min_size=5, max_size=60),
    st.integers(0, 2**32).map(uniform),
    st.integers(0, 2**32).map(uniform),
    st.integers(0, 2**32).map(uniform),
)


def small(number: int) -> Config:
    """A small configuration, any feature on or off."""
    draw = Random(number)
    return Config(
        scheduling=draw.choice(("fcfs", "priority")),
        block_size=draw.randint(1, 4),
        num_blocks=draw.randint(4, 16),
        max_num_batched_tokens=draw.randint(2, 12),
        max_num_seqs=draw.randint(1, 4),
        max_model_len=draw.choice((40, 12)),
        enable_prefix_caching=draw.choice((False, True)),
        long_prefill_token_threshold=draw.choice((0, 0, 3)),
        num_draft_tokens=draw.choice((0, 0, 2)),
        async_depth=draw.choice((1, 2)),
        prefill_schedule_interval=draw.choice((4, 3, 2, 1)),
        data_parallel_size=draw.choice((1, 2)),
        remote_load_timeout=draw.choice((0, 4)),
        max_hold_steps=draw.choice((3, 64)),
    )


CONFIGS = st.integers(0, 2**32).map(small)
