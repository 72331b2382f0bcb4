"""The runner with the reference scheduler: the tokens are the model's own, whatever the schedule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onbeat_engine.parallel.group import TokensByRank
from onbeat_engine.runner.executor import BatchRow
from onbeat_engine.runner.graphs import Captured, Forward
from onbeat_engine.runner.model_runner import MOST_MOE_ROWS, choose_device
from onbeat_engine.runner.models.load import LoadedModel, load_model
from onbeat_engine.runner.models.moe import Experts
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.params import SamplingParams
from onbeat_spec.errors import ConfigError, ProtocolMisuse
from tests.engine.runner.models import tiny
from tests.engine.runner.steps import drive, request, runner

torch.set_num_threads(1)

PROMPTS = [
    [5, 17, 99, 4, 250, 31, 8],
    [7],
    [(11 * i + 3) % 300 for i in range(45)],
    [(7 * i + 1) % 300 for i in range(32)],
    [(11 * i + 3) % 300 for i in range(40)] + [9, 9, 1],
]
LENGTH = 12


@dataclass
class Known:
    """A tiny model, and what transformers generates with it from each prompt."""

    model: LoadedModel
    config: EngineConfig
    greedy: list[list[int]]


@pytest.fixture(scope="module", params=["llama", "llama-group-of-3", "qwen3", "qwen3_moe"])
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    return _known(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Known:
    return _known("llama", tmp_path_factory.mktemp("llama"))


def _known(name: str, folder: Path) -> Known:
    if name == "llama-group-of-3":
        theirs = tiny.llama(folder, num_attention_heads=6, num_key_value_heads=2)
    else:
        theirs = getattr(tiny, name)(folder)
    if name != "qwen3_moe":  # transformers' experts run in shorter types only
        theirs = theirs.double()
    config = EngineConfig(
        model=str(folder), dtype="float64", max_num_seqs=4, max_num_batched_tokens=64, num_gpu_blocks_override=64
    )
    greedy = []
    for prompt in PROMPTS:
        with torch.inference_mode():
            ids = theirs.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=LENGTH,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        greedy.append(ids[0, len(prompt) :].tolist())
    assert len({tuple(tokens) for tokens in greedy}) == len(greedy)
    return Known(load_model(config), config, greedy)


def _greedy(known: Known, config: EngineConfig, arrivals: list[int] | None = None, **parts: Any) -> Any:
    """Run all prompts; check that their tokens are transformers'."""
    requests = [request(f"r{index}", prompt, LENGTH) for index, prompt in enumerate(PROMPTS)]
    by_step: dict[int, list[Any]] = {}
    for each, at in zip(requests, arrivals or [0] * len(requests), strict=True):
        by_step.setdefault(at, []).append(each)
    ours = runner(known.model, config, **parts)
    run = drive(ours, config, by_step, num_blocks=ours.num_blocks)
    assert [run.tokens[f"r{index}"] for index in range(len(PROMPTS))] == known.greedy
    return run


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_tokens_are_transformers(known: Known, dtype: Any) -> None:
    config = replace(known.config, dtype=dtype)
    _greedy(Known(load_model(config), config, known.greedy), config)


def test_tokens_are_the_same_one_step_ahead(known: Known) -> None:
    run = _greedy(known, replace(known.config, async_scheduling=True))
    assert run.preemptions == 0


def test_tokens_are_the_same_after_preemption(llama: Known) -> None:
    config = replace(llama.config, block_size=4, num_gpu_blocks_override=20, max_num_batched_tokens=24)
    assert _greedy(llama, config).preemptions
    assert _greedy(llama, replace(config, async_scheduling=True)).preemptions


def test_tokens_are_the_same_from_the_prefix_cache(llama: Known) -> None:
    config = replace(llama.config, block_size=8, max_num_seqs=1)
    assert _greedy(llama, config).cached >= 40
    assert _greedy(llama, replace(config, enable_prefix_caching=False)).cached == 0


@settings(max_examples=40, deadline=None)
@given(
    block_size=st.sampled_from([1, 2, 3, 4, 8, 16, 32, 64]),
    budget=st.integers(1, 70),
    threshold=st.sampled_from([0, 1, 5, 16]),
    seqs=st.integers(1, 5),
    spare=st.integers(0, 60),
    ahead=st.booleans(),
    caching=st.booleans(),
    graphs=st.booleans(),
    arrivals=st.lists(st.integers(0, 25), min_size=len(PROMPTS), max_size=len(PROMPTS)),
)
def test_tokens_are_the_same_whatever_the_schedule(
    *,
    llama: Known,
    block_size: int,
    budget: int,
    threshold: int,
    seqs: int,
    spare: int,
    ahead: bool,
    caching: bool,
    graphs: bool,
    arrivals: list[int],
) -> None:
    longest = max(len(prompt) for prompt in PROMPTS) + LENGTH
    config = replace(
        llama.config,
        block_size=block_size,
        num_gpu_blocks_override=-(-(longest + spare) // block_size),
        max_num_seqs=seqs,
        max_num_batched_tokens=max(budget, seqs),
        long_prefill_token_threshold=threshold,
        enable_prefix_caching=caching,
        async_scheduling=ahead,
    )
    _greedy(llama, config, arrivals, capture=_capture if graphs else None)


def _capture(forward: Forward) -> Captured:
    """Stand in for a CUDA graph: run the same forward on the same buffers, and leave the logits in the same place."""
    logits = forward()
    return Captured(lambda: logits.copy_(forward()), logits)


def test_padded_replays_write_nowhere_live(llama: Known) -> None:
    """Three decodes replay the graph of four; apart from their own slots the cache keeps every bit."""
    config = replace(llama.config, block_size=4)
    ours = runner(llama.model, config, capture=_capture)
    generator = torch.Generator().manual_seed(1)
    for keys, values in ours._kv.layers:
        for cache in (keys, values):
            cache.copy_(torch.randn(cache.shape, generator=generator, dtype=cache.dtype))
    before = [(keys.clone(), values.clone()) for keys, values in ours._kv.layers]
    rows = []
    for index, block in enumerate((3, 60, 7)):
        each = request(f"r{index}", [1, 2, 3], 5)
        rows.append(BatchRow(each, 2, 1, True, [block]))
    outputs = ours.execute(rows).wait()
    assert len(outputs.tokens) == 3
    for (keys, values), (old_keys, old_values) in zip(ours._kv.layers, before, strict=True):
        for cache, old in ((keys, old_keys), (values, old_values)):
            changed = (cache != old).flatten(3).any(3).any(1)[: ours.num_blocks].nonzero().tolist()
            assert changed == [[3, 2], [7, 2], [60, 2]]


@pytest.mark.parametrize("ahead", [False, True])
def test_seeded_samples_and_penalties_do_not_depend_on_the_batch(llama: Known, ahead: bool) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.4, seed=5)

    def tokens(config: EngineConfig, prompts: list[int]) -> dict[str, list[int]]:
        requests = [request(f"r{index}", PROMPTS[index], LENGTH, params, seed=50 + index) for index in prompts]
        ours = runner(llama.model, config)
        return drive(ours, config, {0: requests}, num_blocks=ours.num_blocks).tokens

    together = replace(
        llama.config, async_scheduling=ahead, block_size=4, num_gpu_blocks_override=22, max_num_batched_tokens=16
    )
    alone: dict[str, list[int]] = {}
    for index in range(len(PROMPTS)):
        alone |= tokens(llama.config, [index])
    assert tokens(together, list(range(len(PROMPTS)))) == alone


@pytest.mark.parametrize("budget", [64, 7])
def test_log_probabilities(llama: Known, budget: int) -> None:
    """Of the prompt and of the samples; the same whether the prompt is computed whole or in chunks."""
    params = SamplingParams(temperature=0.0, logprobs=2, prompt_logprobs=1)
    config = replace(llama.config, max_num_batched_tokens=budget, enable_prefix_caching=False)
    ours = runner(llama.model, config)
    prompt = PROMPTS[2]
    run = drive(ours, config, {0: [request("a", prompt, 4, params), request("b", [3, 4], 4)]}, num_blocks=64)
    tokens = prompt + run.tokens["a"]
    right = tiny.logits(llama.model.decoder, tokens).log_softmax(-1)
    told = run.prompt_logprobs["a"] + run.logprobs["a"]
    assert [each.token for each in told] == tokens[1:]
    for position, each in enumerate(told):
        assert each.logprob == pytest.approx(float(right[position, each.token]), abs=1e-9)
        assert each.top_tokens[0] == int(right[position].argmax())
    assert {len(each.top_tokens) for each in run.prompt_logprobs["a"]} == {1}
    assert {len(each.top_tokens) for each in run.logprobs["a"]} == {2}
    assert run.prompt_logprobs.get("b", []) == []
    assert run.logprobs["b"] == []


def test_prompt_log_probabilities_are_not_repeated_after_a_preemption(llama: Known) -> None:
    ours = runner(llama.model, llama.config)
    each = request("a", [5, 6, 7], 4, SamplingParams(temperature=0.0, prompt_logprobs=0))
    row = BatchRow(each, 0, 3, True, [0])
    assert len(ours.execute([row]).wait().prompt_logprobs["a"]) == 2
    each.logprobs_done = 2
    assert ours.execute([row]).wait().prompt_logprobs == {}


def test_sleep_gives_the_cache_up(llama: Known) -> None:
    ours = runner(llama.model, llama.config, capture=_capture)
    ours.sleep()
    assert ours._kv.layers == []
    with pytest.raises(ProtocolMisuse, match="wake_up"):
        ours.execute([BatchRow(request("a", [1, 2], 2), 0, 2, True, [0])])
    ours.wake_up()
    run = drive(ours, llama.config, {0: [request("a", PROMPTS[0], LENGTH)]}, num_blocks=ours.num_blocks)
    assert run.tokens["a"] == llama.greedy[0]


def test_release_forgets(llama: Known) -> None:
    ours = runner(llama.model, llama.config)
    each = request("a", PROMPTS[0], 2)
    drive(ours, llama.config, {0: [each]}, num_blocks=ours.num_blocks)
    assert each.runner_state is None
    assert ours._sampler.num_requests == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_types_keep_the_cache_in_float32_on_a_cpu(llama: Known, dtype: Any) -> None:
    config = replace(llama.config, dtype=dtype)
    ours = runner(load_model(config), config)
    params = SamplingParams(temperature=0.0, logprobs=0)
    run = drive(ours, config, {0: [request("a", PROMPTS[2], LENGTH, params)]}, num_blocks=ours.num_blocks)
    right = tiny.logits(llama.model.decoder, PROMPTS[2])[-1].log_softmax(-1)
    first = run.logprobs["a"][0]
    assert first.logprob == pytest.approx(float(right[first.token]), abs=0.06)
    assert len(run.tokens["a"]) == LENGTH
    assert ours._kv.layers[0][0].dtype == torch.float32


class Group:
    """A companion that is not there: it brings as many tokens as `others` says; what is agreed on is recorded."""

    size = 2

    def __init__(self, experts: Experts, others: Sequence[int] = ()) -> None:
        self.experts = experts
        self.others = list(others)
        self.agreed: list[tuple[int, bool]] = []
        self.tokens: list[int] = []

    def begin(self, num_tokens: int, replays: bool) -> TokensByRank:
        self.agreed.append((num_tokens, replays))
        other = self.others.pop(0) if self.others else 0
        return TokensByRank((num_tokens, other), replays and other < 3)

    def alike(self, num_tokens: int) -> None:
        self.tokens.append(-num_tokens)

    def count(self, forward: Callable[[], object]) -> int | None:
        forward()
        return None

    def __call__(self, layer: int, x: Any, ids: Any, weights: Any) -> Any:
        self.tokens.append(len(x))
        return self.experts(layer, x, ids, weights)


def test_every_forward_of_a_group_is_agreed_on(tmp_path: Path) -> None:
    tiny.qwen3_moe(tmp_path)
    config = EngineConfig(model=str(tmp_path), dtype="float64", num_gpu_blocks_override=8, max_num_seqs=2)
    model = load_model(config)
    assert model.decoder.experts is not None
    group = Group(model.decoder.experts)
    ours = runner(model, config, companions=group)
    run = drive(ours, config, {0: [request("a", [1, 2, 3], 3)]}, num_blocks=8)
    ours.dummy()
    assert len(run.tokens["a"]) == 3
    assert group.agreed == [(0, False), (3, False), (1, False), (1, False), (0, False)]
    assert group.tokens == [3, 3, 1, 1, 1, 1, 0, 0]


def test_a_group_replays_together_or_not_at_all(tmp_path: Path) -> None:
    """All replay the graph that holds the most tokens of any rank, a dummy too; a prefill anywhere, and none does."""
    tiny.qwen3_moe(tmp_path)
    config = EngineConfig(model=str(tmp_path), dtype="float64", num_gpu_blocks_override=8, max_num_seqs=2)
    model = load_model(config)
    assert model.decoder.experts is not None
    right = drive(runner(model, config), config, {0: [request("a", [1, 2, 3], 4)]}, num_blocks=8).tokens
    replayed: list[int] = []

    def capture(forward: Forward) -> Captured:
        logits = forward()

        def replay() -> None:
            forward()
            replayed.append(len(logits))

        return Captured(replay, logits)

    # At the start; beside a prefill, three decodes, two dummies; after the sleep.
    group = Group(model.decoder.experts, others=[0, 2, 2, 3, 1, 2, 3, 1])
    ours = runner(model, config, companions=group, capture=capture)
    assert group.tokens == [-2, 2, 2, -1, 1, 1]  # both sizes were captured, the largest first
    run = drive(ours, config, {0: [request("a", [1, 2, 3], 4)]}, num_blocks=8)
    assert run.tokens == right
    assert replayed == [2, 1]
    for _ in range(2):
        ours.dummy()
    assert replayed == [2, 1, 2]
    ours.sleep()
    ours.wake_up()  # what is captured has collectives in it: not before all are in a forward
    assert len(group.agreed) == 7
    ours.dummy()
    assert replayed == [2, 1, 2, 1]
    assert group.agreed == [(0, True), (3, False), (1, True), (1, True), (1, True), (0, True), (0, True), (0, True)]


def test_a_group_captures_no_more_rows_than_its_experts_take_at_once(tmp_path: Path) -> None:
    tiny.qwen3_moe(tmp_path)
    config = EngineConfig(model=str(tmp_path), num_gpu_blocks_override=8, max_num_seqs=200)
    model = load_model(config)
    assert model.decoder.experts is not None
    assert runner(model, config)._sizes[-1] == 200
    assert runner(model, config, companions=Group(model.decoder.experts))._sizes[-1] == MOST_MOE_ROWS // 2


def test_a_dummy_without_a_group_does_nothing(llama: Known) -> None:
    ours = runner(llama.model, llama.config)
    ours.dummy()
    assert ours._steps == 0


def test_the_pool_is_sized_from_memory(llama: Known) -> None:
    ours = runner(llama.model, replace(llama.config, num_gpu_blocks_override=None))
    assert ours.num_blocks == 4 * 32  # no more than four requests of 512 tokens can use


def test_the_largest_step_leaves_nothing_behind(llama: Known) -> None:
    """What a GPU's memory is measured with."""
    ours = runner(llama.model, llama.config)
    ours._largest_step()
    assert ours._sampler.num_requests == 0
    assert all(not keys.any() and not values.any() for keys, values in ours._kv.layers)


def test_device_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(ConfigError, match="no CUDA device"):
        choose_device("cuda")
