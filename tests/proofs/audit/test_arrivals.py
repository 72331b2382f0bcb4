"""Driving a scheduler through a workload: nothing is lost, time is right, wrong schedulers are found out."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from onbeat_proofs.audit.arrivals import DEPLOYMENT, Percentiles, drive, percentiles, step_seconds
from onbeat_reference import Outputs, Request, Scheduler
from onbeat_reference.workload import Arrival, builtin
from onbeat_spec.config import Config
from onbeat_spec.errors import ConfigError
from onbeat_spec.records import Step, Violation

SMALL = Config(num_blocks=60, block_size=4, max_num_batched_tokens=32, max_num_seqs=6, max_model_len=200)


def burst(count: int, prompt: int = 20, output: int = 30) -> list[Arrival]:
    """Arrivals faster than `SMALL` can serve them."""
    return [Arrival(index * 0.01, prompt + index % 7, output + index % 5) for index in range(count)]


# --- Nothing is lost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_a_realistic_run_loses_nothing(interval: int) -> None:
    arrivals = builtin(seed=1, requests=300)
    report = drive(Scheduler, DEPLOYMENT, arrivals, interval=interval)
    assert (report.requests, report.finished, report.refused, report.lost) == (300, 300, 0, 0)
    assert (report.blocks_missing, report.blocks_promised, report.stalled) == (0, 0, False)
    assert report.clean
    # A request's first token comes with its prefill, each later one with a decode.
    assert report.prefill_tokens == sum(arrival.prompt_tokens for arrival in arrivals)
    assert report.decode_tokens == sum(arrival.output_tokens - 1 for arrival in arrivals)
    assert report.executed_steps == report.steps
    assert (report.held_steps > 0) == (interval > 1)
    assert report.duration_s > arrivals[-1].time_s
    assert report.wall_s > 0


@pytest.mark.parametrize("policy", ["onbeat", "pr44558", "local-work"])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("async_depth", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_crowded_run_loses_nothing(policy: str, caching: bool, async_depth: int, ranks: int) -> None:
    config = replace(SMALL, policy=policy, enable_prefix_caching=caching, data_parallel_size=ranks)
    config = replace(config, async_depth=2 if async_depth == 2 else 1)
    report = drive(Scheduler, config, burst(80), interval=2)
    assert report.clean, report
    assert report.finished == 80
    assert report.preemptions > 0
    assert report.max_waiting > 10
    assert report.prefill_tokens > sum(arrival.prompt_tokens for arrival in burst(80))


def test_what_can_never_fit_is_refused() -> None:
    arrivals = [Arrival(0.0, 199, 5), Arrival(0.0, 200, 5), Arrival(0.0, 999_999_999, 5), Arrival(0.5, 10, 5)]
    report = drive(Scheduler, SMALL, arrivals)
    assert (report.requests, report.finished, report.refused, report.lost) == (4, 2, 2, 0)
    assert report.clean
    # The first has room for one token only.
    assert report.decode_tokens == 4


def test_no_arrivals() -> None:
    report = drive(Scheduler, SMALL, [])
    assert (report.requests, report.steps, report.duration_s) == (0, 0, 0.0)
    assert report.ttft is None
    assert report.itl is None
    assert report.clean


def test_an_interval_that_does_not_go_with_the_config() -> None:
    with pytest.raises(ConfigError, match="prefill_schedule_interval is 0; it must be at least 1"):
        drive(Scheduler, SMALL, burst(1), interval=0)


# --- Virtual time ----------------------------------------------------------------------------------------------------


def test_the_time_of_one_request() -> None:
    report = drive(Scheduler, DEPLOYMENT, [Arrival(5.0, 100, 3)])
    first, later = step_seconds(100, 0), step_seconds(0, 1)
    assert report.ttft == pytest.approx((first,) * 3)
    assert report.itl == pytest.approx((later,) * 3)
    assert report.duration_s == pytest.approx(5.0 + first + 2 * later)
    assert (report.steps, report.prefill_tokens, report.decode_tokens) == (3, 100, 2)


def test_a_chunked_prompt_is_all_prefill() -> None:
    """Its last chunk has one token of local work, which is a decode by the policy's own words."""
    report = drive(Scheduler, replace(SMALL, max_num_batched_tokens=8), [Arrival(0.0, 8 * 3 + 1, 2)])
    assert (report.steps, report.prefill_tokens, report.decode_tokens) == (5, 24, 2)


def one_second(prefill_tokens: int, decodes: int) -> float:
    """A step time that makes sums easy."""
    return 1.0


@pytest.mark.parametrize(
    ("interval", "held", "ttft"),
    [(1, 0, 2.0 - 0.5), (2, 1, 3.0 - 0.5), (3, 2, 4.0 - 0.5)],
)
def test_a_held_prefill_waits_for_the_beat(interval: int, held: int, ttft: float) -> None:
    """The first request's prefill opens a hold of interval - 1 steps; the second comes half-way through it."""
    arrivals = [Arrival(0.0, 10, 9), Arrival(0.5, 10, 2)]
    report = drive(Scheduler, DEPLOYMENT, arrivals, interval=interval, seconds_per_step=one_second)
    assert report.held_steps == held
    assert report.ttft == Percentiles(1.0, ttft, ttft)
    assert report.duration_s == 9.0
    assert report.clean


@pytest.mark.parametrize(("ranks", "ttft"), [(1, 4.0 - 2.5), (2, 5.0 - 2.5)])
def test_the_clock_is_the_one_of_the_deployment(ranks: int, ttft: float) -> None:
    """A rank on its own holds for a step after each prefill; a group beats on every other step, whatever it carries."""
    config = replace(DEPLOYMENT, data_parallel_size=ranks)
    arrivals = [Arrival(0.0, 10, 9), Arrival(2.5, 10, 9)]
    report = drive(Scheduler, config, arrivals, interval=2, seconds_per_step=one_second)
    assert report.ttft == Percentiles(1.0, ttft, ttft)


def test_a_second_step_in_flight_is_scheduled_one_step_ahead() -> None:
    """Who comes while a step runs finds the next one scheduled already, and waits one step longer."""
    arrivals = [Arrival(0.0, 10, 9), Arrival(0.5, 10, 2)]
    config = replace(DEPLOYMENT, async_depth=2)
    report = drive(Scheduler, config, arrivals, seconds_per_step=one_second)
    assert report.ttft == Percentiles(1.0, 2.5, 2.5)
    assert report.itl == Percentiles(1.0, 1.0, 1.0)
    assert report.duration_s == 9.0
    assert report.clean


def test_idle_time_is_skipped() -> None:
    report = drive(Scheduler, DEPLOYMENT, [Arrival(0.0, 10, 2), Arrival(1e6, 10, 2)], interval=2)
    assert report.steps == 4
    assert report.ttft == pytest.approx((step_seconds(10, 0),) * 3)


def test_percentiles_are_nearest_ranks() -> None:
    assert percentiles([]) is None
    assert percentiles([0.25]) == (0.25, 0.25, 0.25)
    assert percentiles(range(100, 0, -1)) == (50, 90, 99)
    assert percentiles(range(1, 11)) == (5, 9, 10)


# --- Prefixes --------------------------------------------------------------------------------------------------------


def test_equal_hashes_are_found_in_the_prefix_cache() -> None:
    arrivals = [
        Arrival(0.0, 1000, 5, (7, 8)),
        Arrival(10.0, 1000, 5, (7, 8)),  # all but its last block
        Arrival(20.0, 1000, 5, (7, 9)),  # the first 512 tokens
        Arrival(30.0, 600, 5, (7,)),  # the first 512 tokens, and 88 of its own
        Arrival(40.0, 1000, 5, (9, 8)),  # nothing: what comes before differs
        Arrival(50.0, 1000, 5),
        Arrival(60.0, 1000, 5),
    ]
    off = drive(Scheduler, DEPLOYMENT, arrivals)
    on = drive(Scheduler, replace(DEPLOYMENT, enable_prefix_caching=True), arrivals)
    assert off.prefill_tokens == 6600
    assert on.prefill_tokens == 6600 - 992 - 512 - 512
    assert on.clean


# --- Those who watch -------------------------------------------------------------------------------------------------


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    drive(Scheduler, SMALL, burst(3), progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (3, 3)


class Listener:
    """A monitor that notes what it is shown, and objects to every second step."""

    def __init__(self, scheduler: Scheduler) -> None:
        assert scheduler.num_steps == 0
        self.violations: list[Violation] = []
        self.steps = 0

    def step(self, step: Step) -> None:
        assert step.index == self.steps
        self.steps += 1
        if step.index % 2:
            self.violations.append(Violation("even-steps-only", step.index, "odd"))

    def delivered(self, outputs: Outputs) -> None:
        assert len(outputs.tokens) == 1


def test_the_monitor_sees_every_step() -> None:
    report = drive(Scheduler, SMALL, [Arrival(0.0, 10, 4)], monitor=Listener)
    assert [violation.step for violation in report.violations] == [1, 3]
    assert report.lost == 0
    assert not report.clean


# --- Wrong schedulers ------------------------------------------------------------------------------------------------


class Leaking(Scheduler):
    """Loses a block of each request that ends."""

    def update(self, step: Step, sampled: object, drafts: object = None) -> Outputs:
        outputs = super().update(step, sampled)  # type: ignore[arg-type]
        self.pool.free -= len(outputs.finished)
        return outputs


class Stuttering(Scheduler):
    """Delivers the last token of each request twice."""

    def update(self, step: Step, sampled: object, drafts: object = None) -> Outputs:
        outputs = super().update(step, sampled)  # type: ignore[arg-type]
        for request in outputs.finished:
            outputs.tokens[request.id] = [*outputs.tokens[request.id], 0]
        return outputs


class Closed(Scheduler):
    """Accepts requests and admits none."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.pause("new")


class Forgetful(Scheduler):
    """Drops every third request."""

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        if request.arrival % 3 == 2:
            self.abort(request)


class Trampling(Scheduler):
    """Preempts everybody after each step, so that nobody gets on."""

    def schedule(self, throttle_prefills: bool = False) -> Step:
        step = super().schedule(throttle_prefills)
        for request in tuple(self.running):
            self._preempt(request)
        self.in_flight[-1].sampling.clear()
        return step


def outcome(scheduler: type[Scheduler], arrivals: Sequence[Arrival]) -> tuple[int, int, bool, int]:
    """Finished, lost, stalled, blocks missing."""
    report = drive(scheduler, SMALL, arrivals)
    assert not report.clean
    assert report.requests == report.finished + report.refused + report.lost
    return report.finished, report.lost, report.stalled, report.blocks_missing


def test_wrong_schedulers_are_found_out() -> None:
    arrivals = burst(9)
    assert outcome(Leaking, arrivals) == (9, 0, False, 9)
    assert outcome(Stuttering, arrivals) == (0, 9, False, 0)
    assert outcome(Closed, arrivals) == (0, 9, True, 0)
    assert outcome(Forgetful, arrivals) == (6, 3, False, 0)
    assert outcome(Trampling, arrivals) == (0, 9, True, 0)
