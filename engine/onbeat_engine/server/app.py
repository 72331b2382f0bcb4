"""The application: every endpoint over one engine."""

from typing import Any

from fastapi import FastAPI

from onbeat_engine.server import errors
from onbeat_engine.server.engine import Engine
from onbeat_engine.server.middleware import OPEN, Gate
from onbeat_engine.server.options import ServerConfig
from onbeat_engine.server.routes import admin, chat, completions, health, lanes, models
from onbeat_engine.server.serving import Serving


def build(engine: Engine, config: ServerConfig) -> tuple[FastAPI, Serving]:
    """Return the application and its state."""
    serving = Serving(engine, config)
    app = FastAPI(title="onbeat", redoc_url=None)
    for module in (completions, chat, models, health, lanes, admin):
        app.include_router(module.router(serving))
    errors.install(app)
    app.add_middleware(Gate, config=config)
    describe(app, keys=bool(config.api_keys))
    return app, serving


def describe(app: FastAPI, *, keys: bool) -> None:
    """Make the OpenAPI document true: what is invalid is answered with 400, and keys are asked for."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = made()
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    if keys and path not in OPEN:
                        operation["security"] = [{"key": []}]
            if keys:
                document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
