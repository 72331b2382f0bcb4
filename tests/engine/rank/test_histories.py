"""Random histories of one rank with a real model: what a request gets is what it would get alone.

Each has its own parameters; requests are aborted, the cache is forgotten, the rank pauses and sleeps in between.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onbeat_engine.front.preparing import Preparer
from onbeat_engine.rank.core import EngineCore
from onbeat_engine.rank.parts import Built
from onbeat_engine.runner.graphs import Captured, Forward
from onbeat_engine.runner.model_runner import ModelRunner
from onbeat_engine.runner.models.load import load_model
from onbeat_engine.runner.sampling.sampler import Sampler
from onbeat_engine.text.grammars import Grammars
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.messages import Abort, LogEntry, NewRequest, RankOutputs, ResetPrefixCache, TokenLogprobs
from onbeat_engine.wire.params import SamplingParams, StructuredOutput
from tests.engine.runner.models import tiny
from tests.engine.text.tiny import tiny as tokenizer

torch.set_num_threads(1)

V = 264
LONGEST = 96
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"]}
GRAMMARS = Grammars(tokenizer, V)
CHOICES: dict[str, list[Any]] = {
    "temperature": [0.0, 0.7, 1.5],
    "top_k": [0, 0, 5, 40],
    "top_p": [1.0, 1.0, 0.3, 0.9],
    "min_p": [0.0, 0.0, 0.05],
    "repetition_penalty": [1.0, 1.0, 1.2, 0.8],
    "frequency_penalty": [0.0, 0.0, 0.5],
    "presence_penalty": [0.0, 0.0, 1.0],
    "logprobs": [None, 0, 3],
    "prompt_logprobs": [None, 0, 2],
    "logit_bias": [{}, {}, {7: 5.0}],
    "stop_token_ids": [(), tuple(range(40, 80))],
    "ignore_eos": [False, True],
    "structured": [None, None, None, StructuredOutput(json_object=True), StructuredOutput(json_schema=SCHEMA)],
}


@dataclass
class Got:
    """What one request got."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt: list[TokenLogprobs] | None = None
    reason: str | None = None


class Rank:
    """One rank, and what its requests got."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.got: dict[str, Got] = {}
        self.number = 0

    def event(self, kind: Any, request: NewRequest | None = None) -> None:
        self.number += 1
        self.core.read(LogEntry(number=self.number, kind=kind, mode="keep", request=request))

    def add(self, request: NewRequest) -> None:
        self.got[request.id] = Got()
        self.event("request", request)

    @property
    def live(self) -> list[str]:
        return [id for id, got in self.got.items() if got.reason is None]

    def turn(self) -> None:
        self.core.turn()
        assert not self.core.ended
        for message in self.core.take():
            for output in message.outputs if isinstance(message, RankOutputs) else ():
                got = self.got[output.id]
                assert got.reason is None
                got.tokens += output.tokens
                got.logprobs += output.logprobs or []
                got.prompt = got.prompt or output.prompt_logprobs
                got.reason = output.finish_reason

    def disturb(self, random: Random) -> None:
        """Now and then do something that no request may notice, unless it is aborted."""
        what = random.random()
        if what < 0.03 and self.live:
            self.core.read(Abort(ids=(random.choice(self.live),)))
        elif what < 0.05:
            self.core.read(ResetPrefixCache(call=1))
        elif what < 0.08:
            self.event("pause")
            for kind in random.choice([[], ["sleep"]]):
                self.turn()
                self.event(kind)
                self.turn()
            self.event("resume")

    def finish(self) -> None:
        for _ in range(2000):
            if not self.live:
                break
            self.turn()
        assert not self.live
        self.turn()
        executor = self.core.executor
        assert isinstance(executor, ModelRunner)
        assert executor._sampler.num_requests == 0
        assert self.core.scheduler.pool.free == self.core.scheduler.pool.num_blocks


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Rank]:
    """Make ranks of one tiny model in float64, where no order of sums changes a choice."""
    pytest.importorskip("xgrammar")
    folder = tmp_path_factory.mktemp("llama")
    tiny.llama(folder, eos_token_id=257, vocab_size=V)
    base = EngineConfig(
        model=str(folder), dtype="float64", num_gpu_blocks_override=64, max_model_len=LONGEST, on_violation="stop"
    )
    model = load_model(base)

    def make(graphs: bool = False, **config: Any) -> Rank:
        made = replace(base, **config)
        sampler = Sampler(V, model.device, made.max_num_seqs, grammars=GRAMMARS)
        runner = ModelRunner(model, made, sampler, capture=_capture if graphs else None)
        return Rank(EngineCore(made, Built(runner, runner.num_blocks, LONGEST)))

    return make


def _capture(forward: Forward) -> Captured:
    logits = forward()
    return Captured(lambda: logits.copy_(forward()), logits)


def _requests(random: Random, longest: int) -> list[NewRequest]:
    preparer = Preparer(tokenizer(), longest, V)
    prefix = [random.randrange(256) for _ in range(40)]
    requests = []
    for _ in range(random.randrange(2, 7)):
        own = [random.randrange(256) for _ in range(random.randrange(1, 30))]
        most = random.randrange(1, 16)
        params = SamplingParams(
            n=random.choice([1, 1, 2]),
            seed=random.randrange(1 << 40),
            max_tokens=most,
            min_tokens=random.choice([0, 0, most // 2]),
            **{name: random.choice(values) for name, values in CHOICES.items()},
        )
        prompt = (prefix[: random.randrange(41)] + own)[: longest - 1]
        requests += preparer.prepare(prompt, params, priority=random.randrange(3)).requests
    return requests


def _told(logprobs: list[TokenLogprobs] | None) -> Any:
    """Return what must be equal whatever the rounding."""
    return logprobs and [(one.token, one.rank, one.top_tokens, round(one.logprob, 6)) for one in logprobs]


@settings(max_examples=30, deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_each_request_gets_what_it_would_get_alone(rank: Callable[..., Rank], random: Random) -> None:
    size = random.choice([1, 3, 4, 16, 64])
    blocks = -(-random.choice([60, 96, 140]) // size)
    rows = random.choice([1, 2, 4, 6])
    ours = rank(
        graphs=random.random() < 0.5,
        block_size=size,
        num_gpu_blocks_override=blocks,
        max_num_seqs=rows,
        max_num_batched_tokens=max(rows, random.choice([3, 7, 20, 64])),
        enable_prefix_caching=random.random() < 0.7,
        async_scheduling=random.random() < 0.7,
        long_prefill_token_threshold=random.choice([0, 0, 5]),
        prefill_schedule_interval=random.choice([1, 2, 4]),
        scheduling_policy=random.choice(["fcfs", "priority"]),
    )
    requests = _requests(random, min(LONGEST, size * blocks))
    disturbed = random.random() < 0.6
    for request in requests:
        ours.add(request)
        for _ in range(random.randrange(8)):
            if disturbed:
                ours.disturb(random)
            ours.turn()
    ours.finish()
    for request in requests:
        alone = rank()
        alone.add(request)
        alone.finish()
        got, right = ours.got[request.id], alone.got[request.id]
        assert got.tokens == right.tokens[: len(got.tokens)]
        if got.reason != "abort":
            assert (got.tokens, got.reason) == (right.tokens, right.reason)
            assert _told(got.logprobs) == _told(right.logprobs)
            assert _told(got.prompt) == _told(right.prompt)
            wanted = request.params.prompt_logprobs is not None
            assert len(got.prompt or ()) == (len(request.prompt) - 1 if wanted else 0)
