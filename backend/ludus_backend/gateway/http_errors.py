"""Errors on HTTP: one body shape (OpenAI's), a status per kind, and validation errors that name field and value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ludus_backend.errors import LudusError
from ludus_backend.protocol import ErrorBody, ErrorCode

STATUS: dict[ErrorCode, int] = {
    "invalid_request": 400,
    "unauthorized": 401,
    "not_found": 404,
    "unknown_model": 404,
    "unknown_episode": 404,
    "context_length_exceeded": 400,
    "step_conflict": 409,
    "model_missing": 422,
    "disk_full": 507,
    "busy": 503,
    "too_large": 413,
    "adapter_not_applied": 500,
    "engine_failed": 503,
    "internal": 500,
}

_WORTH_RETRYING: set[ErrorCode] = {"busy", "engine_failed"}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "invalid_request_error",
}


def error_detail(error: LudusError) -> dict[str, Any]:
    """The wire form, with the ``type`` that OpenAI clients know for the status."""
    detail = error.detail
    if detail.type == "ludus_error":
        detail = detail.model_copy(update={"type": _TYPES.get(STATUS[detail.code], "ludus_error")})
    return detail.model_dump(by_alias=True, exclude_none=True)


def error_response(error: LudusError, status: int | None = None, headers: dict[str, str] | None = None) -> Response:
    """``x-should-retry`` keeps the SDKs from repeating what cannot get better (they would retry 409 and 5xx)."""
    retry = "true" if error.detail.code in _WORTH_RETRYING else "false"
    return Response(
        json.dumps({"error": error_detail(error)}),  # ASCII: an offending value may hold what UTF-8 cannot
        media_type="application/json",
        status_code=STATUS[error.detail.code] if status is None else status,
        headers={"x-should-retry": retry, **(headers or {})},
    )


def invalid_fields(errors: Sequence[Any], *, within_body: bool = False) -> LudusError:
    """Pydantic's list as one error about its first entry. ``within_body``: FastAPI puts ``body`` before the path."""
    # Of a union every failed branch is listed; the deepest path is the one that the sender meant.
    first = max(errors, key=lambda error: len(error["loc"]))
    path = first["loc"][1:] if within_body and first["loc"][:1] == ("body",) else first["loc"]
    name = _path(path)
    unknown = first["type"] == "extra_forbidden"
    more = f" ({len(errors) - 1} more problems)" if len(errors) > 1 else ""
    return LudusError(
        "invalid_request",
        (f"Unknown field {name!r}" if unknown else f"{name}: {first['msg']}") + more,
        field=name or "body",
        value=first.get("input"),
        expected="only fields of this protocol version" if unknown else first["msg"],
        advice="remove it: unknown options are refused, never ignored" if unknown else None,
    )


def _path(parts: Sequence[str | int]) -> str:
    """``messages[2].content``. Names of union branches, which Pydantic mixes in, are left out."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in {"str", "int", "float", "bool", "dict"}:
            path += f".{part}" if path else part
    return path


def install_error_handlers(app: FastAPI) -> None:
    """Every error leaves as an ``ErrorBody``, whatever raised it."""

    @app.exception_handler(LudusError)
    async def _ludus(_: Request, error: LudusError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def _validation(_: Request, error: RequestValidationError) -> Response:
        return error_response(invalid_fields(error.errors(), within_body=True))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        code: ErrorCode = "not_found" if error.status_code == 404 else "invalid_request"
        raised = LudusError(code, f"{error.detail}: {request.method} {request.url.path}")
        return error_response(raised, error.status_code)

    @app.exception_handler(Exception)
    async def _unexpected(_: Request, error: Exception) -> Response:
        raised = LudusError("internal", f"Unexpected {type(error).__name__}", advice="see the backend's log")
        return error_response(raised)


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
"""For the OpenAPI document."""
