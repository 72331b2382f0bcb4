"""Errors as OpenAI's clients expect them: a status, and a body `{"error": {message, type, param, code}}`."""

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from onbeat_engine.wire.errors import BadRequest, EngineDead, TryLater
from onbeat_spec.errors import ProtocolMisuse, RequestRefused

log = logging.getLogger("onbeat.server")

RETRY_AFTER = 1
"""Seconds after which a refused client may come again."""
MAX_MESSAGE = 1000


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


class ModelNotFound(BadRequest):
    """The request names a model that is not served here."""


TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 503: "service_unavailable"}
RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "The request can never be served as it is"},
    401: {"model": ErrorBody, "description": "No API key, or a wrong one"},
    404: {"model": ErrorBody, "description": "No such model"},
    408: {"model": ErrorBody, "description": "The body did not come in time"},
    409: {"model": ErrorBody, "description": "Not in the state that the engine is in"},
    413: {"model": ErrorBody, "description": "The body is too large"},
    500: {"model": ErrorBody, "description": "The engine failed"},
    503: {"model": ErrorBody, "description": "Not now: overloaded, paused or shutting down"},
}
"""What a request may get beside its answer, for the OpenAPI document."""
GENERATING = {code: response for code, response in RESPONSES.items() if code != 409}
"""Those of requests that generate."""


def status_of(error: Exception) -> int:
    """Return the HTTP status that an error ends a request with."""
    match error:
        case ModelNotFound():
            return 404
        case TryLater():
            return 503
        case RequestRefused():
            return 400
        case ProtocolMisuse():
            return 409
        case _:
            return 500


def body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return an error's body; what cannot be written as UTF-8 (parts of a request may be told) is replaced."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    text = message[:MAX_MESSAGE].encode("utf-8", "replace").decode()
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}


def body_of(error: Exception) -> dict[str, Any]:
    """Return the body for an error of ours; any other tells nothing of itself to the client, only to the log."""
    status = status_of(error)
    if status == 500 and not isinstance(error, EngineDead):
        log.error("a request failed", exc_info=error)
        return body(500, "internal error; the server's log has the details")
    code = "model_not_found" if status == 404 else None
    return body(status, str(error), param=getattr(error, "param", None), code=code)


def answer(error: Exception) -> JSONResponse:
    """Return the whole answer that an error ends a request with."""
    status = status_of(error)
    headers = {"Retry-After": str(RETRY_AFTER)} if status == 503 else None
    return JSONResponse(body_of(error), status, headers)


def install(app: FastAPI) -> None:
    """Make every error of the app one of ours."""

    async def ours(request: Request, error: Exception) -> JSONResponse:
        return answer(error)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        # The first part is body or query; of a body that is no JSON, the second is a place in it.
        where = [] if first["type"] == "json_invalid" else [str(part) for part in first["loc"][1:]]
        message = f"{'.'.join(where)}: {first['msg']}" if where else first["msg"]
        return JSONResponse(body(400, message, param=where[0] if where else None), 400)

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        phrase = error.detail or HTTPStatus(error.status_code).phrase
        return JSONResponse(body(error.status_code, phrase), error.status_code, error.headers)

    for kind in (RequestRefused, ProtocolMisuse, EngineDead):
        app.add_exception_handler(kind, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
