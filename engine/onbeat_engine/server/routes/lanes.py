"""`/lanes`: the steps of all ranks as a live picture."""

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from onbeat_engine.lanes.html import payload, render
from onbeat_engine.server.errors import RESPONSES
from onbeat_engine.server.serving import Serving

NEWS = "/lanes.json"


def router(serving: Serving) -> APIRouter:
    """Return the endpoints."""
    routes = APIRouter(responses={401: RESPONSES[401]})

    @routes.get("/lanes", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        """Return the page, which asks for news by itself."""
        return HTMLResponse(await asyncio.to_thread(render, serving.engine.lanes(), live=NEWS))

    @routes.get(NEWS)
    async def news() -> dict[str, Any]:
        """Return what the page draws."""
        lanes = serving.engine.lanes()
        content = await asyncio.to_thread(lambda: msgspec.json.encode(payload(lanes)))
        return Response(content, media_type="application/json")  # type: ignore[return-value]  # the type documents it

    return routes
