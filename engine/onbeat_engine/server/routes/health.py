"""Health, readiness, metrics and version: `/health`, `/ready`, `/metrics`, `/version`."""

import time
from importlib.metadata import version

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.responses import Response

from onbeat_engine.server.errors import ErrorBody, body
from onbeat_engine.server.serving import Serving
from onbeat_engine.wire.errors import EngineDead


class RankState(BaseModel):
    """One rank, as far as the front end knows."""

    rank: int
    alive: bool
    running: int
    waiting: int


class Readiness(BaseModel):
    """Whether requests should be sent here."""

    ready: bool
    why: str | None = None
    """Why not."""
    ranks: list[RankState]


class Version(BaseModel):
    """Of onbeat."""

    version: str


async def why_not_ready(serving: Serving) -> str | None:
    """Return why no requests should be sent here; None: they should be.

    Draining is no lack of health (case B106). Work without a token for `progress_timeout` seconds is no readiness,
    whatever the reason; paused work is not expected to make any.
    """
    engine, jobs = serving.engine, serving.jobs
    try:
        await engine.check_health()
    except EngineDead as error:
        return f"the engine has ended: {error}"
    if jobs.draining:
        return "shutting down"
    if not engine.is_running:
        return "being started again"
    if engine.is_sleeping:
        return "asleep"
    if engine.is_paused:
        return "paused"
    silent = time.monotonic() - max(engine.last_progress, jobs.busy_since)
    if jobs.running and silent > serving.config.progress_timeout:
        return f"no token for {silent:.1f} s, and {jobs.in_flight} completions are unfinished"
    return None


def ranks(serving: Serving) -> list[RankState]:
    """Return what is known of each rank."""
    stats = {each.rank: each for each in serving.engine.stats()}
    return [
        RankState(
            rank=each.rank,
            alive=each.alive,
            running=stats[each.rank].running if each.rank in stats else 0,
            waiting=stats[each.rank].waiting if each.rank in stats else 0,
        )
        for each in serving.engine.ranks
    ]


def router(serving: Serving) -> APIRouter:
    """Return the endpoints."""
    routes = APIRouter()

    @routes.get("/health", response_class=Response, responses={503: {"model": ErrorBody}})
    async def health() -> Response:
        """Live: 200 until the engine has ended, a shutdown that waits for requests included (case B106)."""
        try:
            await serving.engine.check_health()
        except EngineDead as error:
            return JSONResponse(body(503, str(error)), 503)
        return Response()

    @routes.get("/ready", response_model=Readiness, responses={503: {"model": Readiness}})
    async def ready() -> Response:
        """Ready: requests sent here are served."""
        why = await why_not_ready(serving)
        state = Readiness(ready=why is None, why=why, ranks=ranks(serving))
        return JSONResponse(state.model_dump(), 200 if why is None else 503)

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus's text format."""
        return Response(generate_latest(serving.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @routes.get("/version")
    async def show_version() -> Version:
        """Of onbeat."""
        return Version(version=version("onbeat"))

    return routes
