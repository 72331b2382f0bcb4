"""The endpoints over an engine under the test's control."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from onbeat_engine.wire.params import StructuredOutput
from tests.engine.server.live import MODEL, Live, events, over
from tests.engine.server.stub import StubEngine

HI: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 3}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with over(StubEngine()) as server:
        yield server


@pytest.fixture
def http(server: Live) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


def post(http: httpx.Client, path: str, body: Any, **options: Any) -> httpx.Response:
    return http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"}, **options)


def stream(http: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    answer = post(http, path, {**body, "stream": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("hi", ["abc"]),
        ([104, 105], ["abc"]),
        (["hi", "there"], ["abc", "abc"]),
        ([[104], [105, 106]], ["abc", "abc"]),
    ],
)
def test_prompts(http: httpx.Client, prompt: Any, texts: list[str]) -> None:
    answer = post(http, "/v1/completions", {**HI, "prompt": prompt}).json()
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}


def test_choices_of_prompts(http: httpx.Client) -> None:
    body = {**HI, "prompt": ["hi", "there"], "n": 2}
    answer = post(http, "/v1/completions", body).json()
    assert [choice["text"] for choice in answer["choices"]] == ["abc", "bcd", "abc", "bcd"]
    assert answer["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 12,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    texts = ["", "", "", ""]
    for chunk in stream(http, "/v1/completions", body):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["abc", "bcd", "abc", "bcd"]


def test_echo(http: httpx.Client) -> None:
    body = {**HI, "echo": True}
    assert post(http, "/v1/completions", body).json()["choices"][0]["text"] == "hiabc"
    assert "".join(c["choices"][0]["text"] for c in stream(http, "/v1/completions", body)) == "hiabc"
    told = post(http, "/v1/completions", {**body, "logprobs": 1}).json()["choices"][0]["logprobs"]
    assert told["tokens"] == ["h", "i", "a", "b", "c"]
    assert told["text_offset"] == [0, 1, 2, 3, 4]
    assert told["token_logprobs"] == [None, -1.0, -0.5, -0.5, -0.5]
    assert told["top_logprobs"][0] is None
    assert told["top_logprobs"][2] == {"!": -9999.0, "a": -0.5}


def test_echo_of_the_prompt_alone(http: httpx.Client) -> None:
    whole = post(http, "/v1/completions", {**HI, "echo": True, "max_tokens": 0, "logprobs": 0}).json()
    answer = whole["choices"][0]
    assert answer["text"] == "hi"
    assert answer["logprobs"]["tokens"] == ["h", "i"]
    assert (whole["usage"]["completion_tokens"], whole["usage"]["total_tokens"]) == (0, 2)


def test_logprobs_in_a_stream_have_running_offsets(http: httpx.Client) -> None:
    chunks = stream(http, "/v1/completions", {**HI, "logprobs": 2})
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [each["text_offset"] for each in told] == [[0], [1], [2]]
    assert [each["tokens"] for each in told] == [["a"], ["b"], ["c"]]


def test_chat(server: Live) -> None:
    answer = server.openai().chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        max_completion_tokens=3,
        logprobs=True,
        top_logprobs=1,
    )
    assert answer.choices[0].message.content == "abc"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs is not None
    first = (answer.choices[0].logprobs.content or [])[0]
    assert (first.token, first.bytes, first.logprob) == ("a", [97], -0.5)
    assert [top.token for top in first.top_logprobs] == ["a"]


def test_chat_stream_tells_the_role_once_and_the_reason_last(http: httpx.Client) -> None:
    choices = [chunk["choices"][0] for chunk in stream(http, "/v1/chat/completions", CHAT)]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"] for choice in choices[1:]] == [{"content": "a"}, {"content": "b"}, {"content": "c"}]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]


@pytest.mark.parametrize(
    ("path", "body", "right"),
    [
        ("/v1/completions", {"prompt": "hi", "model": "other"}, (404, "model")),
        ("/v1/completions", {"prompt": 3}, (400, "prompt")),
        ("/v1/completions", {}, (400, "prompt")),
        ("/v1/completions", [], (400, None)),
        ("/v1/completions", {"prompt": ""}, (400, "prompt")),
        ("/v1/completions", {"prompt": []}, (400, "prompt")),
        ("/v1/completions", {"prompt": ["hi", ""]}, (400, "prompt")),
        ("/v1/completions", {"prompt": [-1]}, (400, "prompt")),
        ("/v1/completions", {"prompt": [[]]}, (400, "prompt")),
        ("/v1/completions", {"prompt": "\ud800"}, (400, "prompt")),
        ("/v1/completions", {"prompt": "x" * 100}, (400, "prompt")),
        ("/v1/completions", {**HI, "max_tokens": 0}, (400, "max_tokens")),
        ("/v1/completions", {**HI, "max_tokens": "3"}, (400, "max_tokens")),
        ("/v1/completions", {**HI, "temperature": -1}, (400, "temperature")),
        ("/v1/completions", {**HI, "temperature": float("nan")}, (400, "temperature")),
        ("/v1/completions", {**HI, "logit_bias": {"x": 1}}, (400, "logit_bias")),
        ("/v1/completions", {**HI, "suffix": "end"}, (400, "suffix")),
        ("/v1/completions", {**HI, "stream_options": {}}, (400, "stream_options")),
        ("/v1/completions", {**HI, "stream": True, "prompt_logprobs": 1}, (400, "prompt_logprobs")),
        ("/v1/completions", {**HI, "response_format": {"type": "json_schema"}}, (400, "response_format")),
        ("/v1/completions", {**HI, "prompt": ["x"] * 1025}, (400, "prompt")),
        ("/v1/chat/completions", {**CHAT, "messages": []}, (400, "messages")),
        ("/v1/chat/completions", {**CHAT, "top_logprobs": 2}, (400, "top_logprobs")),
        ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function"}]}, (400, "tools")),
        (
            "/v1/chat/completions",
            {**CHAT, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            (400, "messages"),
        ),
        ("/tokenize", {}, (400, "prompt")),
        ("/detokenize", {"tokens": [256]}, (400, "tokens")),
    ],
)
def test_refusals(http: httpx.Client, server: Live, path: str, body: Any, right: tuple[int, str | None]) -> None:
    answer = post(http, path, body)
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (answer.status_code, error["param"]) == right
    assert error["message"]
    assert not server.engine.running, "a refused request leaves nothing in the engine"


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b'{"prompt": 1' + b"0" * 5000 + b"}", b""])
def test_bodies_that_are_no_json(http: httpx.Client, content: bytes) -> None:
    answer = http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_answer_to_a_chat_may_take_all_the_room_there_is(http: httpx.Client) -> None:
    whole = post(http, "/v1/chat/completions", {"messages": CHAT["messages"]}).json()
    room = http.get("/v1/models").json()["data"][0]["max_model_len"]
    assert whole["usage"]["total_tokens"] == room
    assert post(http, "/v1/completions", HI | {"max_tokens": None}).json()["usage"]["completion_tokens"] == 16


def test_fields_that_are_unknown_or_null_are_ignored(http: httpx.Client) -> None:
    body = {**HI, "stop": None, "seed": None, "user": "me", "no_such_field": {"a": 1}}
    assert post(http, "/v1/completions", body).json()["choices"][0]["text"] == "abc"


def test_unknown_paths_and_methods(http: httpx.Client) -> None:
    assert http.get("/nowhere").json()["error"]["type"] == "not_found_error"
    assert http.put("/v1/completions").status_code == 405


def test_salts(http: httpx.Client, server: Live) -> None:
    post(http, "/v1/completions", {**HI, "cache_salt": "mine"})
    post(http, "/v1/chat/completions", {**CHAT, "cache_salt": None})
    assert server.engine.salts[-2:] == ["mine", ""]


def test_models(server: Live) -> None:
    client = server.openai()
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="no model 'x/y'"):
        client.models.retrieve("x/y")


def test_tokenize_and_back(http: httpx.Client) -> None:
    answer = post(http, "/tokenize", {"prompt": "hi"}).json()
    assert answer == {"count": 2, "max_model_len": 100, "tokens": [104, 105]}
    assert post(http, "/detokenize", {"tokens": [104, 105]}).json() == {"prompt": "hi"}
    chat = post(http, "/tokenize", {"messages": CHAT["messages"], "add_generation_prompt": False}).json()
    assert bytes(chat["tokens"]) == b"<user>hi"


def test_request_ids(http: httpx.Client, server: Live) -> None:
    before = len(server.engine.seen)
    answers = [http.post("/v1/completions", json=HI, headers={"X-Request-Id": "mine"}) for _ in range(2)]
    assert [answer.headers["x-request-id"] for answer in answers] == ["mine", "mine"]
    assert answers[0].json()["id"] != answers[1].json()["id"]
    assert len(set(server.engine.seen[before:])) == 2
    assert http.get("/health").headers["x-request-id"]
    assert http.get("/health", headers={"X-Request-Id": "a b"}).headers["x-request-id"] != "a b"


def test_a_schema_is_compiled_before_the_request_is_sent(http: httpx.Client, server: Live) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    before = len(server.engine.seen)
    assert post(http, "/v1/completions", {**HI, "response_format": wanted}).status_code == 200
    assert server.engine.compiled == [(StructuredOutput(json_schema={"type": "object"}), before)]


def test_an_error_in_a_stream_is_an_event_and_the_streams_end() -> None:
    with over(StubEngine(fail_after=2)) as server, server.http() as http:
        chunks = stream(http, "/v1/completions", {**HI, "max_tokens": 5})
        assert [chunk["choices"][0]["text"] for chunk in chunks[:-1]] == ["a", "b"]
        assert chunks[-1]["error"]["message"] == "planted failure"
        with pytest.raises(openai.APIError, match="planted failure"):
            list(server.openai().completions.create(model=MODEL, prompt="hi", stream=True))
        assert post(http, "/v1/completions", {**HI, "max_tokens": 5}).status_code == 500


def test_what_nobody_caught_is_told_to_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    engine = StubEngine()
    engine.tokenizer.vocab_size = None  # type: ignore[assignment]  # breaks a comparison
    with over(engine) as server, server.http() as http:
        answer = post(http, "/detokenize", {"tokens": [1]})
        assert answer.status_code == 500
        assert "internal error" in answer.json()["error"]["message"]
    assert "TypeError" in caplog.text


def test_admin(http: httpx.Client) -> None:
    assert http.post("/pause", params={"mode": "keep"}).json() == {"is_paused": True}
    assert http.get("/is_paused").json() == {"is_paused": True}
    refused = post(http, "/v1/completions", HI)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert http.get("/ready").json()["why"] == "paused"
    assert http.post("/resume").json() == {"is_paused": False}
    assert http.post("/sleep").json() == {"is_sleeping": True}
    assert http.get("/ready").status_code == 503
    assert http.post("/wake_up").json() == {"is_sleeping": False}
    assert http.get("/is_sleeping").json() == {"is_sleeping": False}
    assert http.post("/reset_prefix_cache").json() == {"success": True}
    assert http.post("/pause", params={"mode": "never"}).status_code == 400


def test_the_document_says_what_is_answered(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"], path
    completions = document["paths"]["/v1/completions"]["post"]["responses"]
    assert set(completions) == {"200", "400", "401", "404", "408", "413", "500", "503"}
    assert set(completions["200"]["content"]) == {"application/json", "text/event-stream"}
