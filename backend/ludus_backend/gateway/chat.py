"""``POST /v1/chat/completions``: from the episode's scope and lease to the reply; cut short when the client goes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ludus_backend.errors import LudusError
from ludus_backend.gateway.auth import episode_of
from ludus_backend.gateway.chat_reply import ReplyHead, completion_body
from ludus_backend.gateway.chat_request import ChatRequest, read_chat_request
from ludus_backend.gateway.chat_stream import stream_chunks
from ludus_backend.gateway.episodes import EpisodeState
from ludus_backend.gateway.event_stream import EventStream, until_disconnected
from ludus_backend.gateway.generation import Generation
from ludus_backend.gateway.http_errors import ERROR_RESPONSES
from ludus_backend.gateway.prompts import make_prompt
from ludus_backend.gateway.services import Services
from ludus_backend.protocol import ChatCompletion, ChatCompletionRequest

_DOCUMENTED = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ChatCompletionRequest"}}},
    }
}


def chat_routes(services: Services) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/chat/completions",
        response_model=None,
        responses={200: {"model": ChatCompletion}, **ERROR_RESPONSES},
        openapi_extra=_DOCUMENTED,
    )
    async def chat_completions(http: Request) -> Response:
        body = await http.body()
        request = read_chat_request(body)
        generation = _generation(services, request, body, episode_of(http, services.episodes))
        if request.stream:
            return await _stream(generation, http)
        return await _whole(generation, http)

    return router


async def _whole(generation: Generation, http: Request) -> Response:
    with generation.attached():
        samples = await _unless_gone(generation.result(), http)
        if samples is None:
            return Response(status_code=499)  # nobody reads it
        body = completion_body(ReplyHead(generation), samples)
    return Response(json.dumps(body, allow_nan=False, ensure_ascii=False), media_type="application/json")


async def _stream(generation: Generation, http: Request) -> Response:
    async def events() -> AsyncIterator[bytes]:
        with generation.attached():
            async for chunk in stream_chunks(generation):
                yield chunk

    stream = await _unless_gone(EventStream.begin(events()), http)
    return stream if stream is not None else Response(status_code=499)


async def _unless_gone(wanted: Any, http: Request) -> Any:
    """The result of ``wanted``, or None, with ``wanted`` cancelled, where the client disconnects first."""
    working = asyncio.ensure_future(wanted)
    gone = asyncio.create_task(until_disconnected(http.receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


def _generation(services: Services, request: ChatRequest, body: bytes, episode: EpisodeState | None) -> Generation:
    """The running or stored generation of a repeated request id, else a new one."""
    if episode is None:
        _refuse_without_episode(request)
    fingerprint = hashlib.sha256(body).digest()
    request_id = request.ludus.request
    if episode is not None and request_id is not None:
        known = episode.requests.get(request_id)
        if known is not None and known[1].usable:
            if known[0] != fingerprint:
                raise LudusError(
                    "invalid_request",
                    "This request id was used for another request in this episode",
                    field="ludus.request",
                    value=request_id,
                    expected="one id per request, the same body at each repeat",
                )
            return known[1]
    generation = _start(services, request, episode)
    if episode is not None and request_id is not None:
        episode.requests[request_id] = (fingerprint, generation)
    return generation


def _start(services: Services, request: ChatRequest, episode: EpisodeState | None) -> Generation:
    model, fixed = services.models.split(request.model)
    latest = request.ludus.policy == "latest"
    policy = fixed or (model.newest if episode is None else episode.policy_of(model, latest=latest))
    prompt = make_prompt(request, model, episode)
    return Generation(services.engine, request, model, policy, prompt, episode)


def _refuse_without_episode(request: ChatRequest) -> None:
    for name in ("request", "parent"):
        value = getattr(request.ludus, name)
        if value is not None:
            raise LudusError(
                "invalid_request",
                f"ludus.{name} has a meaning only inside an episode",
                field=f"ludus.{name}",
                value=value,
                expected="a request with the header x-ludus-episode, or with an episode's own API key",
                advice="open an episode with POST /v1/ludus/episodes",
            )


SCHEMAS = (ChatCompletionRequest,)
"""Bodies that are read by hand above and still belong into the OpenAPI document."""
