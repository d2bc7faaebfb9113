"""The gateway as an ASGI application: every route, behind authentication and body limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import get_args

from fastapi import FastAPI

from ludus_backend.gateway import chat, checkpoints, training
from ludus_backend.gateway.auth import Authentication
from ludus_backend.gateway.body_limits import BodyLimits
from ludus_backend.gateway.http_errors import ERROR_RESPONSES, install_error_handlers
from ludus_backend.gateway.models import ServedModel
from ludus_backend.gateway.openapi import document
from ludus_backend.gateway.services import Services, Settings
from ludus_backend.protocol import Capabilities, Health, ModelEntry, ModelList, Preset, TrainConfig


def create_app(settings: Settings) -> FastAPI:
    """The application and its engine, which starts and stops with the application's lifespan."""
    services = Services(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        services.engine.start()
        sweeper = asyncio.create_task(services.episodes.keep_sweeping())
        try:
            yield
        finally:
            sweeper.cancel()
            await services.engine.stop()

    app = FastAPI(title="Ludus backend", version=_version(), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.services = services
    install_error_handlers(app)
    app.include_router(chat.chat_routes(services))
    app.include_router(training.training_routes(services))
    app.include_router(checkpoints.checkpoint_routes(services))
    _add_descriptions(app, services)
    app.openapi = lambda: document(app, (*chat.SCHEMAS, *training.SCHEMAS))  # type: ignore[method-assign]
    app.add_middleware(BodyLimits)
    app.add_middleware(Authentication, token=settings.token, episodes=services.episodes)
    return app


def _add_descriptions(app: FastAPI, services: Services) -> None:
    @app.get("/health", response_model=Health)
    async def health() -> Health:
        engine = services.engine
        return Health(
            status=engine.status,
            version=_version(),
            instance=services.settings.instance,
            engine="embedded",
            engine_pid=engine.pid,
            detail=engine.detail,
        )

    @app.get("/v1/ludus/capabilities", response_model=Capabilities, responses=ERROR_RESPONSES)
    async def capabilities() -> Capabilities:
        options = [field.alias or name for name, field in TrainConfig.model_fields.items()]
        return Capabilities(engine="embedded", losses=list(get_args(Preset)), options=options, deterministic=True)

    @app.get("/v1/models", response_model=ModelList, responses=ERROR_RESPONSES)
    async def models() -> ModelList:
        return ModelList(data=[entry for served in services.models for entry in _entries(served)])

    @app.get("/v1/models/{model:path}", response_model=ModelEntry, responses=ERROR_RESPONSES)
    async def model(model: str) -> ModelEntry:
        served, policy = services.models.split(model)
        return next(entry for entry in _entries(served) if entry.id == (policy or served.info.name))


def _entries(served: ServedModel) -> list[ModelEntry]:
    """The plain name and each step that can be sampled."""
    info = served.info
    steps = [(info.name, info.step), *((f"{info.name}@{step}", step) for step in info.steps)]
    return [
        ModelEntry(
            id=model_id,
            created=served.created,
            root=info.name,
            max_model_len=info.context_length,
            ludus=info.model_copy(update={"step": step}),
        )
        for model_id, step in steps
    ]


def _version() -> str:
    try:
        return version("ludus-backend")
    except PackageNotFoundError:
        return "source"
