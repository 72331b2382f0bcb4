"""Clients of a server over sockets of their own, polite ones and others: what `soak.py` sends, and what it expects."""

import asyncio
import json
import random
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 120.0
"""Seconds after which a client counts as hung."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing is a reset."""

BAD = (
    (b"{", 400),
    (b'{"prompt": ""}', 400),
    (b'{"prompt": [-1]}', 400),
    (b'{"prompt": "x", "max_tokens": 0}', 400),
    (b'{"prompt": "x", "temperature": "hot"}', 400),
    (b'{"prompt": "x", "model": "none"}', 404),
    (b'{"prompt": "%s"}' % (b"x" * 20_000), 400),
    (b'{"prompt": ["x", ""], "stream": true}', 400),
    (b'{"prompt": "x", "n": 1000}', 400),
    (b'{"prompt": "%s"}' % (b"x" * 5_000_000), 413),
)


@dataclass
class Tally:
    """What became of all requests."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    tokens: int = 0

    def fault(self, message: str) -> None:
        """Count something that must not be."""
        self.ends["WRONG"] += 1
        if len(self.wrong) < 20:
            self.wrong.append(message)


class Client:
    """One client, which sends one request after the other until it is told to stop."""

    def __init__(self, port: int, seed: int, tally: Tally) -> None:
        self.port = port
        self.random = random.Random(seed)
        self.tally = tally
        self.refused = False

    async def run(self, until: float) -> None:
        """Send requests until this time of the loop's clock."""
        loop = asyncio.get_running_loop()
        kinds = (self.stream, self.disconnect, self.abort, self.whole, self.bad)
        while loop.time() < until:
            kind = self.random.choices(kinds, (60, 15, 10, 10, 5))[0]
            try:
                await asyncio.wait_for(kind(), PATIENCE)
            except TimeoutError:
                self.tally.fault(f"{kind.__name__}: no end within {PATIENCE:g} s")
            except OSError as error:
                self.tally.fault(f"{kind.__name__}: {error!r}")
            if self.refused:  # do as the answer's Retry-After says, more or less
                self.refused = False
                await asyncio.sleep(self.random.random())

    async def stream(self) -> None:
        """Read a stream to its end, which must be told."""
        n = self.random.choice((1, 1, 1, 2))
        content = await self.exchange(self.body(n=n, stream=True))
        head, _, text = content.partition(b"\r\n\r\n")
        status = head.split(b" ", 2)[1:2]
        if status == [b"503"]:
            self.refused = True
            self.tally.ends["refused (503)"] += 1
        elif status != [b"200"]:
            self.tally.fault(f"a stream was answered with {head[:60]!r}")
        elif b"data: [DONE]\n\n" not in text:
            self.tally.fault(f"a stream has no end: ...{text[-200:]!r}")
        elif b'"error":{' in text:
            self.tally.ends["streams that ended with an error event"] += 1
        elif (ends := text.count(b'"finish_reason":"')) != n:
            self.tally.fault(f"a stream of {n} choices has {ends} finish reasons: ...{text[-200:]!r}")
        else:
            self.tally.ends["aborted" if b'"finish_reason":"abort"' in text else "streams that ended"] += 1
            self.tally.tokens += text.count(b'"text":')

    async def whole(self) -> None:
        """Wait for an answer without a stream."""
        content = await self.exchange(self.body(n=1, stream=False))
        status = content.split(b" ", 2)[1:2]
        if status not in ([b"200"], [b"503"]):
            self.tally.fault(f"a request was answered with {content[:60]!r}")
        self.refused = status == [b"503"]
        self.tally.ends["refused (503)" if self.refused else "answers without a stream"] += 1

    async def disconnect(self) -> None:
        """Hang up somewhere in the middle."""
        _, writer = await self.send(self.body(n=1, stream=self.random.random() < 0.7))
        await asyncio.sleep(self.random.expovariate(2.0))
        writer.close()
        self.tally.ends["disconnects"] += 1

    async def abort(self) -> None:
        """Reset the connection after a few bytes of the answer."""
        reader, writer = await self.send(self.body(n=2, stream=True))
        await reader.read(self.random.choice((1, 1000, 10_000)))
        opened: socket.socket = writer.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.close()
        self.tally.ends["resets"] += 1

    async def bad(self) -> None:
        """Send what must be refused, each with its status."""
        body, right = self.random.choice(BAD)
        content = b""
        try:
            content = await self.exchange(body)
        except ConnectionError:  # a body that is refused unread may be reset under the one who still sends it
            if right != 413:
                raise
        status = content.split(b" ", 2)[1:2]
        if status != [b"%d" % right] and (right != 413 or status) and status != [b"503"]:
            self.tally.fault(f"{body[:40]!r} was answered with {content[:60]!r}, not {right}")
        self.tally.ends["bad requests refused"] += 1

    def body(self, **more: Any) -> bytes:
        """Return a request."""
        words = self.random.choices(("the", "beat", "holds", "every", "prefill"), k=self.random.randint(1, 40))
        body = {
            "prompt": " ".join(words),
            "max_tokens": self.random.randint(1, 64),
            "seed": self.random.randint(0, 1 << 30),
            "ignore_eos": True,
            **({"stop": ["Q"]} if self.random.random() < 0.2 else {}),
            **({"logprobs": 2} if self.random.random() < 0.2 else {}),
        }
        return json.dumps({**body, **more}).encode()

    async def send(self, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request over a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return reader, writer

    async def exchange(self, body: bytes) -> bytes:
        """Return all of the answer to a request."""
        reader, writer = await self.send(body)
        try:
            return await reader.read()
        finally:
            writer.close()
