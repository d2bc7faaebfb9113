"""The OpenAPI document: FastAPI's, with the bodies that the hot routes read and write by hand."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_VALIDATION_ERROR_STATUS = "422"
"""FastAPI's own error shape, which our handlers never send."""


def document(app: FastAPI, schemas: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    """Made once per application; the same for every start, so that the committed copy can be compared."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version="1", routes=app.routes)
        _, definitions = models_json_schema(
            [(schema, "validation") for schema in schemas], ref_template="#/components/schemas/{model}"
        )
        known = made["components"]["schemas"]
        for name, schema in definitions["$defs"].items():
            known.setdefault(name, schema)
        for operations in made["paths"].values():
            for operation in operations.values():
                operation["responses"].pop(_VALIDATION_ERROR_STATUS, None)
        for unused in ("HTTPValidationError", "ValidationError"):
            known.pop(unused, None)
        app.openapi_schema = made
    return app.openapi_schema
