"""The soak finds what it is there to find."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from benchmarks import soak
from benchmarks._clients import Client, Tally

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNK = b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"text":"b","finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def tally(answer: bytes, send: Callable[[Client], Awaitable[None]]) -> Tally:
    """Return what a client makes of an answer."""

    async def run() -> Tally:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            found = Tally()
            client = Client(server.sockets[0].getsockname()[1], 0, found)
            client.random.choice = lambda options: options[0]  # type: ignore[method-assign, assignment]  # always n = 1
            await send(client)
            return found

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (HEAD + CHUNK + LAST + DONE, True),
        (HEAD + CHUNK + b'data: {"error":{}}\n\n' + DONE, True),
        (b"HTTP/1.1 503 No\r\n\r\n", True),
        (HEAD + CHUNK + LAST, False),
        (HEAD + CHUNK + DONE, False),
        (HEAD + LAST + LAST + DONE, False),
        (b"HTTP/1.1 500 No\r\n\r\n", False),
        (b"", False),
    ],
)
def test_a_stream_without_its_end_is_a_fault(answer: bytes, right: bool) -> None:
    assert (not tally(answer, Client.stream).wrong) is right


@pytest.mark.parametrize(("status", "right"), [(b"400", True), (b"200", False), (b"500", False)])
def test_a_bad_request_has_its_status(status: bytes, right: bool) -> None:
    assert (not tally(b"HTTP/1.1 %s X\r\n\r\n" % status, Client.bad).wrong) is right


class Leaky:
    """A server that is not what it was."""

    def metrics(self) -> dict[str, float]:
        return {**dict.fromkeys(soak.BACK_TO_ZERO, 0.0), "kv_cache_usage_perc": 0.25}

    def files(self) -> list[int]:
        return [12, 9]


def test_leaks_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "SETTLE", 0.0)
    left = soak.at_rest(Leaky(), [10, 9])  # type: ignore[arg-type]  # has what is asked of it
    assert left == ["kv_cache_usage_perc is 0.25", "12 file descriptors, 10 at the start"]


def test_memory_that_grows_without_end_is_a_fault() -> None:
    assert soak.growth([100, 200, 290, 300, 300, 301, 302]) == []
    assert soak.growth([100, 200, 300, 400, 500, 600, 700]) == ["700 MiB resident, 400 in the middle"]


def test_a_short_soak(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--clients", "8", "--seconds", "2"]) == 0
    assert "streams that ended" in capsys.readouterr().out
