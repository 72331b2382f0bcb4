"""The engine for programs that wait; one rank in this process, several in their own."""

from typing import Any

import pytest

from onbeat_engine.llm import LLM, InProcess
from onbeat_engine.testing.fake import expected, tokenizer
from onbeat_engine.wire.errors import BadRequest, EngineDead
from onbeat_engine.wire.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, seed=0)


def make(model: str | None = None, **config: Any) -> LLM:
    return LLM(model, build="onbeat_engine.testing.fake:build", loaded_tokenizer=tokenizer(), **config)


@pytest.mark.parametrize("ranks", [1, 2])
def test_outputs_come_in_the_order_of_prompts(ranks: int) -> None:
    with make(data_parallel_size=ranks, max_num_seqs=3, async_scheduling=True) as llm:
        prompts = [[i] * (20 - i) for i in range(12)]
        params = [SamplingParams(temperature=0.0, max_tokens=2 + i, seed=0) for i in range(12)]
        for _ in range(2):
            outputs = llm.generate(prompts, params, use_tqdm=False)
            assert [each.outputs[0].token_ids for each in outputs] == [
                expected(prompt, 2 + i) for i, prompt in enumerate(prompts)
            ]
        assert sum(stats.generation_tokens for stats in llm.stats()) == 2 * sum(range(2, 14))


@pytest.mark.parametrize("prompts", ["ab", ["ab"], [97, 98], [[97, 98]]])
def test_a_prompt_may_be_given_in_four_ways(prompts: Any) -> None:
    with make() as llm:
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert [each.outputs[0].token_ids for each in outputs] == [expected(b"ab", 6)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_if_one_prompt_is_bad_none_is_served(ranks: int) -> None:
    """Case B100."""
    with make(data_parallel_size=ranks) as llm:
        with pytest.raises(BadRequest):
            llm.generate(["hi", ""], GREEDY, use_tqdm=False)
        with pytest.raises(BadRequest):
            llm.generate(["hi", "ho"], [GREEDY], use_tqdm=False)
        assert len(llm.generate("hi", GREEDY, use_tqdm=False)) == 1


def test_stop_strings_and_n() -> None:
    text = tokenizer().decode(expected(b"d", 900))
    stop = next(text[i : i + 2] for i in range(20, 80) if text[i : i + 2].isascii())
    with make() as llm:
        both = llm.generate(
            ["d", "e"],
            [
                SamplingParams(temperature=0.0, max_tokens=900, seed=0, stop=(stop,)),
                SamplingParams(n=3, seed=4, max_tokens=5),
            ],
            use_tqdm=False,
        )
        assert both[0].outputs[0].text == text[: text.index(stop)]
        assert [each.token_ids for each in both[1].outputs] == [expected(b"e", 5, seed=4 + i) for i in range(3)]
        assert llm.stats()[0].generation_tokens < 200


def test_a_failing_engine_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with make("fail_at=3") as llm:
        with pytest.raises(EngineDead, match="planted failure"):
            llm.generate("hi", GREEDY, use_tqdm=False)
        with pytest.raises(EngineDead):
            llm.generate("hi", GREEDY, use_tqdm=False)


def test_nothing_stays_behind_when_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    with make() as llm:
        engine = llm._engine
        assert isinstance(engine, InProcess)
        turn, left = engine.core.turn, iter([True] * 5)

        def interrupted() -> bool:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return turn()

        with monkeypatch.context() as patched:
            patched.setattr(engine.core, "turn", interrupted)
            with pytest.raises(KeyboardInterrupt):
                llm.generate(["a", "b"], SamplingParams(max_tokens=500), use_tqdm=False)
        assert not engine.core.has_work
        assert llm.generate("ab", GREEDY, use_tqdm=False)[0].outputs[0].token_ids == expected(b"ab", 6)


def test_the_progress_bar_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with make() as llm:
        llm.generate(["a", "b"], GREEDY)
    assert "2/2" in capsys.readouterr().out
