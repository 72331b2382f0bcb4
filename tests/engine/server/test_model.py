"""The whole engine, on a model with random weights, through OpenAI's client."""

import json
from collections.abc import Iterator

import openai
import pytest

from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.wire.config import EngineConfig
from tests.engine.server import tiny_model
from tests.engine.server.live import MODEL, Live, live, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tiny_model.write(tmp_path_factory.mktemp("tiny"))
    config = EngineConfig(model=str(folder), max_model_len=200, num_gpu_blocks_override=100, dtype="float32")
    with live(lambda: AsyncLLM.from_config(config)) as server:
        yield server


@pytest.fixture
def client(server: Live) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client
    assert until(lambda: server.engine.num_unfinished == 0)
    assert until(lambda: server.engine.stats()[0].kv_cache_usage == 0)


def test_a_stream_is_the_same_text(client: openai.OpenAI) -> None:
    options = {"model": MODEL, "prompt": "the beat", "max_tokens": 40, "temperature": 0, "seed": 1}
    whole = client.completions.create(**options).choices[0].text  # type: ignore[call-overload]  # a dict of options
    stream = client.completions.create(**options, stream=True)  # type: ignore[call-overload]  # likewise
    assert "".join(chunk.choices[0].text for chunk in stream) == whole
    assert whole


def test_chat_with_likely_tokens(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=5,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    assert answer.choices[0].logprobs is not None
    told = answer.choices[0].logprobs.content or []
    assert answer.usage is not None
    assert len(told) == answer.usage.completion_tokens
    for each in told:
        likely = [top.logprob for top in each.top_logprobs]
        assert likely == sorted(likely, reverse=True)
        assert each.top_logprobs[0].token == each.token, "greedy takes the likeliest"


def test_a_seed_is_reproduced_whatever_else_runs(client: openai.OpenAI) -> None:
    first = client.completions.create(model=MODEL, prompt="the", max_tokens=20, seed=3)
    again = client.completions.create(model=MODEL, prompt=["other", "the"], max_tokens=20, seed=3)
    assert again.choices[1].text == first.choices[0].text


def test_the_text_keeps_to_a_schema(client: openai.OpenAI) -> None:
    pytest.importorskip("xgrammar")
    schema = {
        "type": "object",
        "properties": {"x": {"enum": ["a", "b"]}},
        "required": ["x"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=100,
        seed=1,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert answer.choices[0].finish_reason == "stop"
    assert json.loads(answer.choices[0].message.content or "")["x"] in ("a", "b")


def test_a_schema_that_is_none(client: openai.OpenAI) -> None:
    pytest.importorskip("xgrammar")
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}},
        )


def test_salts_keep_caches_apart(server: Live, client: openai.OpenAI) -> None:
    def cached(salt: str | None) -> int:
        answer = client.completions.create(
            model=MODEL, prompt="x" * 64, max_tokens=1, extra_body={"cache_salt": salt} if salt else {}
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    assert cached("mine") == 0
    assert cached("mine") > 0
    assert cached("yours") == 0
    assert cached(None) == 0
