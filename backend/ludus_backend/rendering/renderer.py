"""Which renderer speaks a model's language: ours for plain ChatML, else a typed family of the ``renderers`` package."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import get_args

from pydantic import ValidationError
from renderers import create_renderer
from renderers.base import MODEL_RENDERER_MAP, Renderer
from renderers.configs import CustomRendererConfig, RendererConfig, config_from_name

from ludus_backend.errors import LudusError
from ludus_backend.protocol import BaseModelSpec
from ludus_backend.rendering.chatml_hermes import END, START
from ludus_backend.rendering.tokenizer import FastTokenizer

OURS = "ludus-chatml"
_OURS_IMPORT = "ludus_backend.rendering.chatml_hermes.ChatmlHermesRenderer"
_NOT_OFFERED = {"auto", "default", "custom"}
"""``auto`` and ``default`` may render through transformers, never bridge, and drop tools without a word; ``custom``
would import code that a request names."""

_KNOWN_SYSTEM_TEXTS = (
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
)


@cache
def renderer_names() -> tuple[str, ...]:
    """Every value ``base.renderer`` may have."""
    union, _ = get_args(RendererConfig)
    families = {config.model_fields["name"].default for config in get_args(union)}
    return (OURS, *sorted(families - _NOT_OFFERED))


def check_renderer_name(spec: BaseModelSpec) -> None:
    """Refuses an unknown ``base.renderer`` before any weights are loaded."""
    if spec.renderer is not None and spec.renderer not in renderer_names():
        raise _unknown(spec.renderer, f"There is no renderer {spec.renderer!r}")


def load_renderer(spec: BaseModelSpec, folder: Path) -> tuple[Renderer, FastTokenizer]:
    """The renderer and tokenizer of a registered model. ``folder`` holds its ``tokenizer.json``.

    Errors: ``model_missing`` (no tokenizer), ``invalid_request`` for ``base.renderer`` (unknown, or none can be chosen)
    and for ``base.chatTemplate`` (options the renderer does not have).
    """
    check_renderer_name(spec)
    name = spec.id or "SmolLM2-135M-Instruct"
    plain = FastTokenizer(folder, name)
    family = spec.renderer or _family_of(spec, plain)
    tokenizer = FastTokenizer(folder, name, literal_special_tokens=True) if family == OURS else plain
    options = dict(spec.chat_template)
    # Observations arrive as user turns: a family that drops earlier thinking there could never bridge them.
    retention = options.pop("thinking_retention", "all")
    try:
        config = _config(family, tokenizer, {} if family == OURS else {"thinking_retention": retention})
        return create_renderer(tokenizer, config, chat_template_kwargs=options or None), tokenizer
    except (ValueError, TypeError, AssertionError, ValidationError) as error:
        raise LudusError(
            "invalid_request",
            f"The renderer {family!r} does not fit: {error}",
            field="base.chatTemplate" if options else "base.renderer",
            value=options or family,
            expected=f"options of {family!r} and a tokenizer of its family",
            advice="name another renderer in base.renderer, or leave out the options",
        ) from error


def _family_of(spec: BaseModelSpec, tokenizer: FastTokenizer) -> str:
    if spec.source in ("bundled", "random"):
        return OURS
    known = MODEL_RENDERER_MAP.get(spec.id or "")
    if known is not None:
        return known
    template = tokenizer.chat_template
    plain_chatml = tokenizer.has_token(START) and tokenizer.has_token(END) and START in template
    if plain_chatml and "<think>" not in template:
        return OURS
    raise _unknown(spec.id, f"No renderer is known for the model {spec.id!r}")


def _config(family: str, tokenizer: FastTokenizer, shared: dict[str, str]) -> RendererConfig:
    if family == OURS:
        system = next((text for text in _KNOWN_SYSTEM_TEXTS if text in tokenizer.chat_template), None)
        return CustomRendererConfig(import_path=_OURS_IMPORT, default_system=system)
    config = config_from_name(family)
    assert config is not None  # "auto" is never a family here
    return type(config)(**shared)


def _unknown(value: str | None, message: str) -> LudusError:
    return LudusError(
        "invalid_request",
        message,
        field="base.renderer",
        value=value,
        expected="one of " + ", ".join(renderer_names()),
        advice=f"set base.renderer to the model's family; {OURS!r} fits ChatML models without thinking",
    )
