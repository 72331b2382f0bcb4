"""How a server begins and ends."""

import json
import threading
import time
from typing import Any

import httpx
import pytest

from onbeat_spec.errors import OnbeatError
from tests.engine.server.live import MODEL, Live, events, live, over, until
from tests.engine.server.stub import StubEngine

LONG = {"model": MODEL, "prompt": "hi", "max_tokens": 90}


class Client(threading.Thread):
    """Sends one request; what became of it is known after `join`."""

    def __init__(self, server: Live, **body: Any) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.body = {**LONG, **body}
        self.answer: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        with self.server.http() as http:
            self.answer = http.post("/v1/completions", json=self.body)

    def result(self) -> httpx.Response:
        self.join(20)
        assert self.answer is not None, "the request got no answer"
        return self.answer


@pytest.mark.parametrize("timeout", [0.0, 0.3, 20.0])
def test_shutdown_in_two_phases(timeout: float) -> None:
    """Case B105, with times divided by ten: two in flight that need more than 0.3 s."""
    engine = StubEngine(delay=0.01)
    with over(engine, drain_timeout=timeout) as server:
        clients = [Client(server, stream=True), Client(server, stream=False)]
        assert until(lambda: len(engine.running) == 2)
        begun = time.monotonic()
        server.request_shutdown()
        if timeout == 20.0:  # a shorter one may be over before a loaded machine has asked
            with server.http() as http:
                refused = http.post("/v1/completions", json=LONG)
                assert refused.status_code == 503
                assert "shutting down" in refused.json()["error"]["message"]
                assert http.get("/health").status_code == 200
                assert http.get("/ready").status_code == 503
        answers = [client.result() for client in clients]
        server.join()
        took = time.monotonic() - begun
    *chunks, done = events(answers[0].text)
    assert done == "[DONE]"
    last = json.loads(chunks[-1])
    if timeout == 20.0:
        assert last["choices"][0]["finish_reason"] == "length"
        assert answers[1].json()["usage"]["completion_tokens"] == 90
    else:
        assert timeout <= took < timeout + 3.0
        assert "shutting down" in last["error"]["message"]
        assert answers[1].status_code == 503


def test_a_second_signal_ends_the_first_phase() -> None:
    engine = StubEngine(delay=0.01, silent=True)
    with over(engine, drain_timeout=60.0) as server:
        client = Client(server, stream=True)
        assert until(lambda: bool(engine.running))
        server.request_shutdown()
        time.sleep(0.1)
        assert engine.running
        server.request_shutdown()
        assert events(client.result().text)[-1] == "[DONE]"
        server.join()


def test_an_engine_that_does_not_load() -> None:
    async def load() -> StubEngine:
        raise OnbeatError("no such model")

    with pytest.raises(OnbeatError, match="no such model"), live(load):
        pass
