"""The routes of models, training jobs and episodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from ludus_backend.gateway.event_stream import EventStream, event
from ludus_backend.gateway.http_errors import ERROR_RESPONSES, invalid_fields
from ludus_backend.gateway.jobs import Job, train_work
from ludus_backend.gateway.services import Services
from ludus_backend.gateway.sft import read_sft_request, sft_work
from ludus_backend.protocol import (
    Episode,
    JobEvent,
    ModelInfo,
    OpenEpisode,
    RegisterModel,
    SftRequest,
    TrainAccepted,
    TrainRequest,
)


def _body(schema: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"requestBody": {"required": True, "content": content}}


_TRAIN_BODY = _body("TrainRequest")
_SFT_BODY = _body("SftRequest")
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/JobEvent"}}}}
}
_STILL_THERE = b": still running\n\n"

SCHEMAS = (TrainRequest, SftRequest, JobEvent)
"""Bodies that are read or written by hand below and still belong into the OpenAPI document."""


def training_routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/v1/ludus", responses=ERROR_RESPONSES)

    @router.post("/models", response_model=ModelInfo)
    async def register_model(request: RegisterModel) -> ModelInfo:
        return await services.models.register(request)

    @router.get("/models/{name}", response_model=ModelInfo)
    async def model_info(name: str) -> ModelInfo:
        return services.models.get(name).info

    @router.post("/models/{name}/train", response_model=TrainAccepted, openapi_extra=_TRAIN_BODY)
    async def train(name: str, http: Request) -> TrainAccepted:
        served = services.models.get(name)
        try:
            request = TrainRequest.model_validate_json(await http.body())
        except ValidationError as error:
            raise invalid_fields(error.errors()) from None
        work = train_work(services.engine, served, request)
        return TrainAccepted(job=services.jobs.start(served, request.key, work).id)

    @router.post("/models/{name}/sft", response_model=TrainAccepted, openapi_extra=_SFT_BODY)
    async def sft(name: str, http: Request) -> TrainAccepted:
        served = services.models.get(name)
        read = await asyncio.to_thread(read_sft_request, await http.body())
        work = sft_work(services.engine, served, read)
        return TrainAccepted(job=services.jobs.start(served, read.request.key, work).id)

    @router.get("/jobs/{job_id}/events", response_model=None, responses=_EVENTS)
    async def job_events(
        job_id: str,
        after: Annotated[int, Query(ge=0)] = 0,
        last_event_id: Annotated[int | None, Header()] = None,
    ) -> Response:
        job = services.jobs.get(job_id)
        return EventStream(_events(job, max(after, last_event_id or 0)), None)

    @router.post("/episodes", response_model=Episode)
    async def open_episode(request: OpenEpisode) -> Episode:
        episode = services.episodes.open(request.id, request.ttl_seconds)
        return Episode(id=episode.id, key=episode.key)

    @router.delete("/episodes/{episode_id:path}", status_code=204)
    async def close_episode(episode_id: str) -> None:
        await services.episodes.close(episode_id)

    return router


async def _events(job: Job, after: int) -> AsyncIterator[bytes]:
    async for recorded in job.follow(after):
        if recorded is None:
            yield _STILL_THERE
        else:
            yield event(recorded.model_dump(by_alias=True, exclude_none=True, mode="json"), recorded.sequence)
