"""Pause, resume, sleep: for weight updates, with the semantics of `onbeat_spec.protocol`."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from onbeat_engine.server.errors import RESPONSES
from onbeat_engine.server.serving import Serving
from onbeat_spec.protocol import PauseMode

Mode = Annotated[PauseMode, Query(description="What becomes of requests: finished first, dropped, or kept as they are")]


class Paused(BaseModel):
    """Whether generation is paused."""

    is_paused: bool


class Sleeping(BaseModel):
    """Whether the KV cache's memory is given up."""

    is_sleeping: bool


class Reset(BaseModel):
    """Whether the prefix cache was emptied."""

    success: bool


def router(serving: Serving) -> APIRouter:
    """Return the endpoints."""
    routes = APIRouter(responses={code: RESPONSES[code] for code in (400, 401, 408, 409, 413, 500, 503)})
    engine = serving.engine

    @routes.post("/pause")
    async def pause(mode: Mode = "abort") -> Paused:
        """Pause generation; answered when every rank has stopped."""
        await engine.pause_generation(mode=mode)
        return Paused(is_paused=engine.is_paused)

    @routes.post("/resume")
    async def resume() -> Paused:
        """Go on."""
        await engine.resume_generation()
        return Paused(is_paused=engine.is_paused)

    @routes.get("/is_paused")
    async def is_paused() -> Paused:
        """Whether generation is paused."""
        return Paused(is_paused=engine.is_paused)

    @routes.post("/sleep")
    async def sleep(mode: Mode = "abort") -> Sleeping:
        """Pause, and give the KV cache's memory up."""
        await engine.sleep(mode=mode)
        return Sleeping(is_sleeping=engine.is_sleeping)

    @routes.post("/wake_up")
    async def wake_up() -> Sleeping:
        """Take the memory back, and go on."""
        await engine.wake_up()
        return Sleeping(is_sleeping=engine.is_sleeping)

    @routes.get("/is_sleeping")
    async def is_sleeping() -> Sleeping:
        """Whether the memory is given up."""
        return Sleeping(is_sleeping=engine.is_sleeping)

    @routes.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Reset:
        """Forget every cached block; what runs is computed again."""
        return Reset(success=await engine.reset_prefix_cache())

    return routes
