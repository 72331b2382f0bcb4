"""The public cases of the boundary, against a live server: the real engine on a fake model, with one rank process."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.testing import fake
from onbeat_engine.wire.config import EngineConfig
from tests.engine.server import scripted
from tests.engine.server.live import MODEL, Live, events, live, until
from tests.engine.server.routes.test_health import sample

FAKE = "onbeat_engine.testing.fake:build"
PIECES = ["DEF", "G", "HI", "J", "K", "a", "</think>", "x", "b,c"]


@contextlib.contextmanager
def engine(delay: float = 0.0, *, pieces: list[str] | None = None, server: Any = None, **config: Any) -> Iterator[Live]:
    """Serve the engine on a fake model whose steps take `delay` seconds.

    Args:
        pieces: with them, answers repeat the prompt, and ids write these pieces.
        server: of `ServerConfig`.
    """
    model = str(delay) if pieces else f"delay={delay}"
    settings = EngineConfig(model=model, **{"num_gpu_blocks_override": 1000, "max_model_len": 1100, **config})

    async def load() -> AsyncLLM:
        if pieces:
            tokenizer = scripted.tokenizer(pieces)
            return await AsyncLLM.from_config(settings, build="tests.engine.server.scripted:build", tokenizer=tokenizer)
        return await AsyncLLM.from_config(settings, build=FAKE, tokenizer=fake.tokenizer())

    with live(load, **(server or {})) as serving:
        yield serving


@pytest.fixture(scope="module")
def slow() -> Iterator[Live]:
    """40 ms per step."""
    with engine(0.04) as server:
        yield server


@pytest.fixture(scope="module")
def quick() -> Iterator[Live]:
    with engine(max_num_batched_tokens=32) as server:
        yield server


@pytest.fixture(scope="module")
def scripts() -> Iterator[Live]:
    with engine(pieces=PIECES) as server:
        yield server


def ids(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


def generated(server: Live) -> int:
    return int(server.engine.stats()[0].generation_tokens)


def idle(server: Live) -> bool:
    """Whether nothing is left of any request, anywhere."""
    stats = server.engine.stats()[0]
    assert server.serving is not None
    jobs = server.serving.jobs
    return (
        stats.running == stats.waiting == 0
        and stats.kv_cache_usage == 0
        and server.engine.num_unfinished == server.engine.num_held == 0
        and not jobs.running
        and jobs.in_flight == 0
    )


def stream(server: Live, **body: Any) -> list[Any]:
    with server.http() as http:
        answer = http.post("/v1/completions", json={"model": MODEL, "stream": True, **body})
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_b91_a_disconnect_aborts_within_one_step(slow: Live, streamed: bool, path: str) -> None:
    if "chat" in path:
        pytest.importorskip("jinja2")
        slow.engine.tokenizer.encode_chat = lambda messages, **options: [1, 2, 3]  # the fake model has no template
    body = {"prompt": "hi", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1000, "stream": streamed}
    assert idle(slow)
    before = generated(slow)
    connection = slow.raw(json.dumps(body).encode(), path)
    assert until(lambda: generated(slow) >= before + 5)
    connection.close()
    at_once = generated(slow)
    assert until(lambda: idle(slow), 3.0)
    assert generated(slow) <= at_once + 2
    time.sleep(0.1)
    assert generated(slow) <= at_once + 2, "nothing is generated any more"


@pytest.mark.parametrize(
    ("options", "told"),
    [({}, 0), ({"stream_options": {}}, 0), ({"stream_options": {"include_usage": True}}, 1),
     ({"stream_options": {"include_usage": False}}, 0)],
)  # fmt: skip
def test_b92_usage_only_if_it_is_asked_for(quick: Live, options: Any, told: int) -> None:
    client = quick.openai()
    chunks = list(client.completions.create(model=MODEL, prompt="hi", max_tokens=3, stream=True, **options))
    assert sum(chunk.usage is not None for chunk in chunks) == told


def test_b93_usage_comes_once_and_last(quick: Live) -> None:
    chunks = stream(quick, prompt="hi", max_tokens=3, stream_options={"include_usage": True})
    *others, last = chunks
    assert last["choices"] == []
    assert {key: last["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
    }
    assert all(chunk.get("usage") is None for chunk in others)
    assert [chunk["choices"][0]["finish_reason"] for chunk in others][-1] == "length"


def test_b97_a_prompt_one_token_too_long() -> None:
    with engine(max_model_len=100) as server, server.http() as http:
        for prompt in ("x" * 101, "x" * 100):  # at the limit there is no room for an answer
            refused = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "prompt"
        assert http.post("/v1/completions", json={"prompt": "x" * 99, "max_tokens": 1}).status_code == 200
        assert http.post("/v1/completions", json={"prompt": "x" * 10}).status_code == 200
        assert until(lambda: idle(server))
        assert server.engine.stats()[0].waiting == 0


def test_b98_text_that_may_become_a_stop_text_is_held_back(scripts: Live) -> None:
    chunks = stream(scripts, prompt=ids("DEF", "G", "HI", "J"), stop="DEFGHIJ", max_tokens=4)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == [""]
    assert chunks[0]["choices"][0]["finish_reason"] == "stop"
    assert chunks[0]["choices"][0]["stop_reason"] == "DEFGHIJ"
    chunks = stream(scripts, prompt=ids("DEF", "G", "HI", "K"), stop="DEFGHIJ", max_tokens=4)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "DEFGHIK"
    assert until(lambda: idle(scripts))


def test_b99_held_text_is_released_at_piece_boundaries(scripts: Live) -> None:
    chunks = stream(scripts, prompt=ids("a", "</think>", "x"), stop="b,c", max_tokens=3, logprobs=0)
    for chunk in chunks:
        choice = chunk["choices"][0]
        assert choice["text"] == "".join((choice["logprobs"] or {"tokens": []})["tokens"])
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "a</think>x"


def test_b100_an_empty_prompt_is_the_callers_mistake(quick: Live) -> None:
    with quick.http() as http:
        prompts: list[Any] = ["", ["", "hi"], ["hi", ""], [], [[]]]
        for prompt in prompts:
            assert http.post("/v1/completions", json={"prompt": prompt}).status_code == 400
        assert http.get("/health").status_code == 200
        assert http.post("/v1/completions", json={"prompt": "hi"}).status_code == 200
    assert until(lambda: idle(quick))


def test_b102_choices_differ_are_reproduced_and_end_by_themselves(quick: Live) -> None:
    answers = [fake.expected(list(b"hi"), 8, seed=7 + i) for i in range(4)]
    stop = answers[0][1]  # ends choice 0 at its second token
    lengths = [answer.index(stop) if stop in answer else 8 for answer in answers]
    assert lengths[0] == 1
    assert max(lengths[1:]) == 8
    body = {"prompt": "hi", "n": 4, "seed": 7, "temperature": 1, "max_tokens": 8, "stop_token_ids": [stop]}
    texts = [[""] * 4, [""] * 4]
    for each in texts:
        reasons = ["", "", "", ""]
        for chunk in stream(quick, **body):
            choice = chunk["choices"][0]
            each[choice["index"]] += choice["text"]
            reasons[choice["index"]] += choice["finish_reason"] or ""
        assert reasons == ["stop" if length < 8 else "length" for length in lengths]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 4


def test_b103_gauges_fall_without_a_step() -> None:
    with engine(0.02, max_num_seqs=106) as server, server.http() as http:
        with contextlib.ExitStack() as connections:
            for i in range(121):  # no two begin alike, or they would share blocks
                body = {"prompt": [i] * 100, "max_tokens": 900, "stream": True}
                connections.enter_context(server.raw(json.dumps(body).encode()))
            assert until(lambda: (server.engine.stats()[0].running, server.engine.stats()[0].waiting) == (106, 15))
            text = http.get("/metrics").text
            assert sample(text, "onbeat:num_requests_running") == 106
            assert sample(text, "onbeat:num_requests_waiting") == 15
            assert sample(text, "onbeat:kv_cache_usage_perc") > 0.7
        assert until(lambda: idle(server), 2.0)
        text = http.get("/metrics").text
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert sample(text, f"onbeat:{name}") == 0


@pytest.mark.parametrize("timeout", [0.0, 0.4, 20.0])
def test_b105_shutdown_in_two_phases(timeout: float) -> None:
    """Times are a fifth of the case's. The signals, and the exit code, are `test_process.py`'s."""
    with engine(0.02, server={"drain_timeout": timeout}) as server:
        answers: list[httpx.Response] = []

        def client(streamed: bool) -> None:
            with server.http() as http:
                body = {"prompt": "hi", "max_tokens": 50, "stream": streamed}
                answers.append(http.post("/v1/completions", json=body))

        clients = [threading.Thread(target=client, args=(streamed,)) for streamed in (True, False)]
        for thread in clients:
            thread.start()
        assert until(lambda: server.engine.num_unfinished == 2)
        begun = time.monotonic()
        server.request_shutdown()
        if timeout:
            with server.http() as http:
                assert http.post("/v1/completions", json={"prompt": "hi"}).status_code == 503
        for thread in clients:
            thread.join(20)
        took = time.monotonic() - begun
        server.join()
    assert len(answers) == 2, "every client was answered"
    streamed, whole = sorted(answers, key=lambda answer: "event-stream" not in answer.headers["content-type"])
    *chunks, done = events(streamed.text)
    assert done == "[DONE]"
    if timeout == 20.0:
        assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "length"
        assert whole.json()["usage"]["completion_tokens"] == 50
    else:
        assert timeout <= took < timeout + 3.0
        assert "shutting down" in json.loads(chunks[-1])["error"]["message"]
        assert whole.status_code == 503


def test_b106_live_and_ready_are_two_questions() -> None:
    with engine(0.02, server={"drain_timeout": 1.0}) as server, server.http() as http:

        def probes() -> tuple[int, int]:
            return http.get("/health").status_code, http.get("/ready").status_code

        assert probes() == (200, 200)
        with server.raw(json.dumps({"prompt": "hi", "max_tokens": 1000, "stream": True}).encode()):
            assert until(lambda: server.engine.num_unfinished == 1)
            server.request_shutdown()
            assert until(lambda: probes() == (200, 503), 0.9)
            server.join()
    with engine(0.02) as server, server.http() as http:
        chunks: list[Any] = []
        reader = threading.Thread(target=lambda: chunks.extend(stream(server, prompt="hi", max_tokens=1000)))
        reader.start()
        assert until(lambda: server.engine.num_unfinished == 1)
        os.kill(server.engine.ranks[0].pid, signal.SIGKILL)
        assert until(lambda: http.get("/health").status_code == 503, 2.0)
        assert http.get("/ready").status_code == 503
        reader.join(5)
        assert "error" in chunks[-1], "the open stream was told"
        assert http.post("/v1/completions", json={"prompt": "hi"}).status_code == 500


def test_b107_while_admission_is_closed_requests_are_answered_at_once(slow: Live) -> None:
    with slow.http() as http:
        for mode in ("abort", "wait"):
            assert http.post("/pause", params={"mode": mode}).json() == {"is_paused": True}
            begun = time.monotonic()
            refused = http.post("/v1/completions", json={"prompt": "hi"})
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            assert time.monotonic() - begun < 2.0
            assert idle(slow)
            http.post("/resume")
            assert http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2}).status_code == 200
        http.post("/pause", params={"mode": "keep"})
        with slow.raw(json.dumps({"prompt": "hi", "max_tokens": 2}).encode()) as connection:
            assert until(lambda: bool(slow.engine.num_held == 1))
            assert sample(http.get("/metrics").text, "onbeat:num_requests_held") == 1
            http.post("/resume")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert until(lambda: idle(slow))


def test_b107_a_stream_that_is_aborted_by_a_pause_is_told(slow: Live) -> None:
    chunks: list[Any] = []
    reader = threading.Thread(target=lambda: chunks.extend(stream(slow, prompt="hi", max_tokens=1000)))
    reader.start()
    assert until(lambda: slow.engine.num_unfinished == 1)
    with slow.http() as http:
        http.post("/pause", params={"mode": "abort"})
        reader.join(5)
        assert chunks[-1]["choices"][0]["finish_reason"] == "abort"
        http.post("/resume")


def test_b109_prompt_logprobs_of_a_chunked_prompt_come_whole(quick: Live) -> None:
    with quick.http() as http:  # a step takes 32 tokens
        body = {"prompt": "x" * 100, "max_tokens": 2, "prompt_logprobs": 1}
        told = http.post("/v1/completions", json=body).json()["choices"][0]["prompt_logprobs"]
        assert len(told) == 100
        assert told[0] is None
        assert all(len(each) >= 1 for each in told[1:])
        echoed = http.post("/v1/completions", json={"prompt": "x" * 100, "max_tokens": 2, "logprobs": 1, "echo": True})
        assert len(echoed.json()["choices"][0]["logprobs"]["tokens"]) == 102
        assert http.post("/v1/completions", json={**body, "stream": True}).status_code == 400


def test_b111_a_refusal_and_a_token_of_the_same_moment_both_arrive(slow: Live) -> None:
    async def both() -> tuple[list[str], list[int]]:
        client = openai.AsyncOpenAI(base_url=f"{slow.url}/v1", api_key="none", max_retries=0)
        async with client, httpx.AsyncClient(base_url=slow.url) as http:
            running = await client.completions.create(model=MODEL, prompt="hi", max_tokens=20, seed=0, stream=True)
            texts, statuses = [], []
            async for chunk in running:
                texts.append(chunk.choices[0].text)
                refused = await http.post("/v1/completions", json={"prompt": "x" * 2000})
                statuses.append(refused.status_code)
            return texts, statuses

    texts, statuses = asyncio.run(both())
    assert "".join(texts) == fake.tokenizer().decode(fake.expected(list(b"hi"), 20, seed=0))
    assert set(statuses) == {400}
    assert until(lambda: idle(slow))


def test_the_socket_is_closed_with_the_server() -> None:
    with engine() as server:
        port = server.port
    with socket.socket() as connection:
        assert connection.connect_ex(("127.0.0.1", port)) != 0
