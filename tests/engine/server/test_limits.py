"""Keys and limits, over raw sockets where a client library would be too polite."""

import asyncio
import json
import socket
from collections.abc import Iterator

import openai
import pytest

from onbeat_engine.server.options import ServerConfig
from onbeat_engine.server.run import open_socket, serve
from onbeat_spec.errors import ConfigError
from tests.engine.server.live import MODEL, Live, over, until
from tests.engine.server.stub import StubEngine

HI = {"model": MODEL, "prompt": "hi", "max_tokens": 3}


@pytest.fixture
def locked() -> Iterator[Live]:
    with over(StubEngine(), api_keys=("one", "two"), max_body_size=1000) as server:
        yield server


def read_all(connection: socket.socket) -> bytes:
    content = b""
    while part := connection.recv(65536):
        content += part
    return content


def test_keys(locked: Live) -> None:
    for key in ("one", "two"):
        assert locked.openai(key).completions.create(model=MODEL, prompt="hi", max_tokens=3).choices[0].text == "abc"
    for key in ("three", "on", "ne"):
        with pytest.raises(openai.AuthenticationError, match="no valid API key"):
            locked.openai(key).completions.create(model=MODEL, prompt="hi")
    with locked.http() as http:
        for path in ("/v1/models", "/tokenize", "/pause", "/is_sleeping", "/v1/none"):
            assert http.get(path).status_code == 401
        assert http.get("/v1/models", headers={"Authorization": "Basic one"}).status_code == 401
        assert http.get("/v1/models", headers={"Authorization": "bearer one"}).status_code == 200
        for path in ("/health", "/ready", "/metrics", "/version", "/openapi.json"):
            assert http.get(path).status_code == 200
        document = http.get("/openapi.json").json()
    assert document["paths"]["/v1/completions"]["post"]["security"] == [{"key": []}]
    assert "security" not in document["paths"]["/health"]["get"]


def test_a_large_body_is_refused_unread(locked: Live) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer one\r\n"
    for rest in (
        b"Content-Length: 1001\r\n\r\n",  # told beforehand: nothing of it is sent
        b"Transfer-Encoding: chunked\r\n\r\n" + b"190\r\n" + b"x" * 400 + b"\r\n" + b"190\r\n" + b"x" * 400 + b"\r\n"
        b"190\r\n" + b"x" * 400 + b"\r\n",  # not told, and it has no end
    ):
        with socket.create_connection(("127.0.0.1", locked.port), timeout=5) as connection:
            connection.sendall(head + rest)
            answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"].endswith("larger than 1000 bytes")


def test_a_body_at_the_limit_is_read(locked: Live) -> None:
    body = json.dumps(HI).encode()
    body += b" " * (1000 - len(body))
    with locked.raw(body, headers="Authorization: Bearer one\r\nConnection: close\r\n") as connection:
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_never_comes_leaves_nothing(locked: Live) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer one\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", locked.port), timeout=5) as connection:
        connection.sendall(head)
    with locked.http() as http:
        assert http.get("/health").status_code == 200
    assert not locked.engine.seen


def test_a_body_that_takes_too_long() -> None:
    with over(StubEngine(), client_timeout=0.2) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(head)
            answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not come within 0.2 s" in answer


@pytest.mark.parametrize("begun", [b"", b"POST /v1/comp", b"GET /version HTTP/1.1\r\nHost: x\r\n\r\nGET /ver"])
def test_a_connection_without_a_request_is_ended(begun: bytes) -> None:
    with (
        over(StubEngine(), client_timeout=0.1) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection,
    ):
        connection.sendall(begun)
        while connection.recv(4096):
            pass


def test_a_connection_is_not_ended_in_the_middle_of_an_answer() -> None:
    with over(StubEngine(delay=0.05), client_timeout=0.1) as server:
        with server.http() as http:
            text = http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 20, "stream": True}).text
        assert text.endswith("data: [DONE]\n\n")


def test_in_flight_limit() -> None:
    engine = StubEngine(delay=0.02)
    with over(engine, max_in_flight=2) as server, server.http() as http:
        with http.stream("POST", "/v1/completions", json={**HI, "n": 2, "max_tokens": 50, "stream": True}):
            assert until(lambda: bool(engine.running))
            refused = http.post("/v1/completions", json=HI)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["message"].startswith("2 of at most 2 completions are in flight")
        assert until(lambda: not engine.running)
        assert http.post("/v1/completions", json=HI).status_code == 200
        never = http.post("/v1/completions", json={**HI, "n": 3})
        assert never.status_code == 400, "it would be refused whenever it came"
        assert server.serving is not None
        assert server.serving.jobs.in_flight == 0


def test_who_waits_for_a_grammar_takes_up_room() -> None:
    with over(StubEngine(compile_seconds=1.0), max_in_flight=1) as server, server.http() as http:
        body = {"prompt": "hi", "max_tokens": 3}
        connection = server.raw(json.dumps({**body, "response_format": {"type": "json_object"}}).encode())
        assert until(lambda: server.serving is not None and server.serving.jobs.in_flight == 1)
        assert http.post("/v1/completions", json=body).status_code == 503
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        connection.close()
        assert until(lambda: http.post("/v1/completions", json=body).status_code == 200)


def test_a_client_that_reads_nothing_is_disconnected() -> None:
    engine = StubEngine(max_model_len=1_000_000)
    with over(engine, client_timeout=1.0) as server:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        body = json.dumps({**HI, "max_tokens": 100_000, "stream": True, "logprobs": 5}).encode()
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        assert until(lambda: len(engine.seen) == 1)
        with server.http() as http:  # the others are served meanwhile
            assert http.post("/v1/completions", json=HI).status_code == 200
            assert len(engine.running) == 1
        assert until(lambda: not engine.running, 20.0)
        connection.close()


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port} is in use; choose another --port"):
            open_socket(ServerConfig(port=port))


def test_of_two_servers_that_load_at_once_the_second_is_told() -> None:
    first = open_socket(ServerConfig(port=0))
    port = first.getsockname()[1]
    second = open_socket(ServerConfig(port=port))  # nobody listens yet, so the system allows it
    first.listen()

    async def load() -> StubEngine:
        return StubEngine()

    with first, pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port} fails: Address already in use"):
        asyncio.run(serve(load, ServerConfig(port=port), second))


def test_a_host_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"the host 'no\.such\.host\.invalid' cannot be used"):
        open_socket(ServerConfig(host="no.such.host.invalid"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": -1},
        {"port": 65536},
        {"api_keys": ("",)},
        {"served_model_names": ()},
        {"max_in_flight": 0},
        {"max_body_size": 0},
        {"drain_timeout": -1.0},
        {"progress_timeout": 0.0},
        {"client_timeout": float("nan")},
    ],
)
def test_values_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ServerConfig(**wrong)  # type: ignore[arg-type]  # one of many types at a time
