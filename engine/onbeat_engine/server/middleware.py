"""What every request passes before the app sees it: id, key, size. Plain ASGI, so that streams stay streams.

The body is read here, whole but never past its limit, so that nothing behind has to wait for the network.
"""

import asyncio
import hashlib
import hmac
import re
import uuid

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onbeat_engine.server.errors import answer, body
from onbeat_engine.server.options import ServerConfig

OPEN = frozenset({"/health", "/ready", "/metrics", "/version", "/docs", "/openapi.json"})
"""What needs no key: probes, scrapers, and the API's description."""
REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
"""A client's own id is echoed if it is so; the engine's ids are made here and never from it."""


class Gate:
    """The middleware."""

    def __init__(self, app: ASGIApp, *, config: ServerConfig) -> None:
        self.app = app
        self.digests = [hashlib.sha256(key.encode()).digest() for key in config.api_keys]
        self.max_body_size = config.max_body_size
        self.patience = config.client_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = headers.get(b"x-request-id", b"")
        if not REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex.encode()

        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        if self.digests and scope["path"] not in OPEN and not self._knows(headers.get(b"authorization", b"")):
            await refuse(send_with_id, 401, "no valid API key; send it as Authorization: Bearer KEY")
            return
        length = headers.get(b"content-length", b"0")
        too_large = length.isdigit() and int(length) > self.max_body_size
        try:
            content = None if too_large else await asyncio.wait_for(self._read(receive), self.patience)
        except TimeoutError:
            await refuse(send_with_id, 408, f"the request's body did not come within {self.patience:g} s", close=True)
            return
        if content is None:
            limit = f"the request's body is larger than {self.max_body_size} bytes"
            await refuse(send_with_id, 413, limit, close=True)
            return
        try:
            await self.app(scope, replay(content, receive), send_with_id)
        except Exception as error:
            if started:  # too late for an answer: the server logs it, and breaks the connection
                raise
            await answer(error)(scope, receive, send_with_id)

    def _knows(self, authorization: bytes) -> bool:
        scheme, _, key = authorization.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        # Every key is compared, and digests are, so that the time taken tells nothing.
        matches = [hmac.compare_digest(digest, known) for known in self.digests]
        return scheme.lower() == b"bearer" and any(matches)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the body; None: it is too large, and the rest of it was not read."""
        content = bytearray()
        while True:
            message = await receive()
            content += message.get("body", b"")
            if len(content) > self.max_body_size:
                return None
            if not message.get("more_body", False):  # a disconnect has none either
                return bytes(content)


def replay(content: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body read before, then what comes: the disconnect."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": content, "more_body": False}

    return replayed


async def refuse(send: Send, status: int, message: str, *, close: bool = False) -> None:
    """Answer with an error; `close` ends the connection, of which unread bytes are left."""
    content = msgspec.json.encode(body(status, message, code="invalid_api_key" if status == 401 else None))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
