"""Runs requests through the reference scheduler and a runner, as the engine's loop does."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onbeat_engine.runner.executor import BatchRow, EngineRequest, Executor, Pending, StepOutputs
from onbeat_engine.runner.model_runner import ModelRunner
from onbeat_engine.runner.models.load import LoadedModel, load_model
from onbeat_engine.runner.sampling.sampler import Sampler
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.messages import TokenLogprobs
from onbeat_engine.wire.params import SamplingParams
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.records import Step

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Run:
    """What a run brought."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    steps: int = 0
    preemptions: int = 0
    cached: int = 0
    """Prompt tokens that were found in the prefix cache."""


def request(
    id: str, prompt: Sequence[int], max_tokens: int, params: SamplingParams = GREEDY, seed: int = 0
) -> EngineRequest:
    """Build a request."""
    return EngineRequest(id, prompt, max_tokens, params, seed=seed)


def runner(model: LoadedModel, config: EngineConfig, **parts: Any) -> ModelRunner:
    """Build a runner with a sampler of its own."""
    sampler = Sampler(model.config.vocab_size, model.device, config.max_num_seqs)
    return ModelRunner(model, config, sampler, **parts)


def rows_of(scheduler: Scheduler, step: Step) -> list[BatchRow]:
    """Return what the runner gets of a step."""
    samples = {each.id for each in scheduler.in_flight[-1].sampling}
    rows = []
    for id, tokens in step.scheduled.items():
        each = scheduler.requests[id]
        assert isinstance(each, EngineRequest)
        rows.append(BatchRow(each, each.num_computed - tokens, tokens, id in samples, each.blocks))
    return rows


def drive(
    executor: Executor,
    config: EngineConfig,
    arrivals: Mapping[int, Sequence[EngineRequest]],
    *,
    num_blocks: int,
    max_model_len: int = 512,
    most_steps: int = 2000,
) -> Run:
    """Run requests that arrive before the steps of these numbers, until all have ended."""
    scheduler = Scheduler(config.scheduler_config(num_blocks=num_blocks, max_model_len=max_model_len))
    left = {at: list(requests) for at, requests in arrivals.items()}
    flights: deque[tuple[Step, list[BatchRow], Pending | None]] = deque()
    run = Run()
    everybody = [each for requests in arrivals.values() for each in requests]
    while left or scheduler.has_unfinished_requests() or flights:
        for each in left.pop(run.steps, []):
            scheduler.add_request(each)
        step = scheduler.schedule()
        rows = rows_of(scheduler, step)
        run.cached += sum(row.start for row in rows if row.request.id in step.admitted)
        flights.append((step, rows, executor.execute(rows) if rows else None))
        run.steps += 1
        while len(flights) >= scheduler.config.async_depth or (flights and not rows):
            _land(flights.popleft(), scheduler, executor, run)
        assert run.steps < most_steps, "the run does not end"
    run.preemptions = sum(each.num_preemptions for each in everybody)
    return run


def _land(
    flight: tuple[Step, list[BatchRow], Pending | None], scheduler: Scheduler, executor: Executor, run: Run
) -> None:
    step, rows, pending = flight
    outputs = StepOutputs() if pending is None else pending.wait()
    assert set(outputs.tokens) == {row.request.id for row in rows if row.samples}
    done = scheduler.update(step, outputs.tokens)
    for id, tokens in done.tokens.items():
        run.tokens.setdefault(id, []).extend(tokens)
        run.logprobs.setdefault(id, []).extend(outputs.logprobs.get(id, []))
    for row in rows:
        got = outputs.prompt_logprobs.get(row.request.id, [])
        new = got[max(0, row.request.logprobs_done - row.start) :]
        run.prompt_logprobs.setdefault(row.request.id, []).extend(new)
        row.request.logprobs_done += len(new)
    for finished in done.finished:
        assert isinstance(finished, EngineRequest)
        executor.release(finished)


__all__ = ["GREEDY", "Run", "drive", "load_model", "request", "rows_of", "runner"]
