"""The routes of checkpoints: list, delete, fork, export. Paths are taken from the holder of the bearer token only."""

from __future__ import annotations

from fastapi import APIRouter

from ludus_backend.errors import LudusError
from ludus_backend.gateway.http_errors import ERROR_RESPONSES
from ludus_backend.gateway.services import Services
from ludus_backend.protocol import (
    Checkpoints,
    DeleteCheckpoints,
    DeletedCheckpoints,
    ExportedModel,
    ExportModel,
    ForkModel,
    ModelInfo,
)


def checkpoint_routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/v1/ludus", responses=ERROR_RESPONSES)

    @router.get("/models/{name}/checkpoints", response_model=Checkpoints)
    async def checkpoints(name: str) -> Checkpoints:
        served = services.models.get(name)
        answer = await services.engine.request("checkpoints", {"name": served.info.name})
        return Checkpoints.model_validate(answer)

    @router.post("/models/{name}/checkpoints/delete", response_model=DeletedCheckpoints)
    async def delete_checkpoints(name: str, request: DeleteCheckpoints) -> DeletedCheckpoints:
        served = services.models.get(name)
        fields = {
            "name": served.info.name,
            "request": request.model_dump(by_alias=True, mode="json"),
            "leased": services.episodes.leased_steps(served.info.name),
            "newest_known": served.info.step,
        }
        result = DeletedCheckpoints.model_validate(await services.engine.request("delete", fields))
        if not request.dry_run:
            served.deleted(result.deleted)
        return result

    @router.post("/models/{name}/export", response_model=ExportedModel)
    async def export_model(name: str, request: ExportModel) -> ExportedModel:
        _needs_token(services, "destination")
        served = services.models.get(name)
        fields = {"name": served.info.name, "request": request.model_dump(by_alias=True, mode="json")}
        return ExportedModel.model_validate(await services.engine.request("export", fields))

    @router.post("/forks", response_model=ModelInfo)
    async def fork_model(request: ForkModel) -> ModelInfo:
        if request.path is not None:
            _needs_token(services, "path")
        return await services.models.fork(request)

    return router


def _needs_token(services: Services, field: str) -> None:
    """Without a token every program on this machine may call: none of them shall read or write files as our user.
    Episode keys never get here."""
    if services.settings.token is None:
        raise LudusError(
            "unauthorized",
            "A backend without a token takes no paths",
            field=field,
            expected="a backend that was started with --token-env",
            advice="start it with --token-env and send the token",
        )
