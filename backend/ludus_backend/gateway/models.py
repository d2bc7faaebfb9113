"""The models of this backend as the gateway knows them: renderer, tokenizer, and the steps that can be sampled."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus_backend.errors import LudusError
from ludus_backend.gateway.engine_client import EngineClient
from ludus_backend.policy_name import split_policy
from ludus_backend.protocol import ForkModel, ModelInfo, RegisterModel, TrainResult

if TYPE_CHECKING:
    from renderers.base import Renderer

    from ludus_backend.rendering.chatml_hermes import ChatmlHermesRenderer
    from ludus_backend.rendering.tokenizer import FastTokenizer

log = logging.getLogger("ludus.gateway")

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass
class ServedModel:
    """One registered model. ``info`` is kept current by training and by every engine restart."""

    request: RegisterModel
    info: ModelInfo
    renderer: Renderer
    tokenizer: FastTokenizer
    stop_ids: list[int]
    text_format: ChatmlHermesRenderer | None
    """The renderer, where it is ours: then replies can be read from text, and while they grow."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def newest(self) -> str:
        """``name@step`` of the newest committed step."""
        return f"{self.info.name}@{self.info.step}"

    def committed(self, result: TrainResult) -> None:
        """Takes over a finished training: from now on the plain name means the new step (for new leases).

        A repeat made no step, and an old one that it names may have been deleted since. One that is newer than all
        that is known here was saved by a request that failed after that.
        """
        if result.repeated and result.step <= self.info.step:
            return
        steps = sorted({*self.info.steps, result.step})
        self.info = self.info.model_copy(update={"step": max(self.info.step, result.step), "steps": steps})

    def deleted(self, steps: Iterable[int]) -> None:
        """Steps that cannot be sampled any more."""
        left = sorted({*self.info.steps} - {*steps})
        self.info = self.info.model_copy(update={"steps": left})


class Models:
    """Registered models by name; given to a restarted engine again by :meth:`recover`."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._served: dict[str, ServedModel] = {}
        self._registering = asyncio.Lock()

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._served.values())

    async def register(self, request: RegisterModel) -> ModelInfo:
        """Makes or finds a model. Repeats are harmless; a name keeps the base and adapter shape it was made with."""
        async with self._registering:
            # Imported with the first model: it costs most of a second, which /health should not wait for.
            from ludus_backend.rendering.renderer import check_renderer_name

            check_renderer_name(request.base)
            if request.base.source == "hub" and not self._served:
                await self._engine.allow_downloads()
            answer = await self._engine.request("register", {"model": _wire(request)})
            return await self._serve(request, answer)

    async def fork(self, fork: ForkModel) -> ModelInfo:
        """Makes a model from a step of another one, and serves it. Repeats are harmless."""
        async with self._registering:
            answer = await self._engine.request("fork", {"fork": _wire(fork)})
            info = ModelInfo.model_validate(answer["info"])
            return await self._serve(RegisterModel(name=info.name, base=info.base, lora=info.lora), answer)

    async def _serve(self, request: RegisterModel, answer: dict[str, Any]) -> ModelInfo:
        """Takes over what the engine says of a model, with a renderer for it."""
        from ludus_backend.rendering.chatml_hermes import ChatmlHermesRenderer
        from ludus_backend.rendering.renderer import load_renderer

        known = self._served.get(request.name)
        info = ModelInfo.model_validate(answer["info"])
        if known is not None and known.request == request:
            known.info = info
        else:
            folder = Path(answer["tokenizer"])
            renderer, tokenizer = await asyncio.to_thread(load_renderer, request.base, folder)
            stop_ids = sorted({*answer["stop_ids"], *renderer.get_stop_token_ids()})
            ours = renderer if isinstance(renderer, ChatmlHermesRenderer) else None
            self._served[request.name] = ServedModel(request, info, renderer, tokenizer, stop_ids, ours)
        return info

    async def recover(self) -> None:
        """Registers everything again on a fresh engine; one model that fails does not take the others along."""
        for served in list(self._served.values()):
            try:
                answer = await self._engine.request_directly("register", {"model": _wire(served.request)})
            except LudusError as error:
                log.error("model %s was lost with the engine: %s", served.info.name, error)
            else:
                served.info = ModelInfo.model_validate(answer["info"])

    def get(self, name: str, field_name: str = "name") -> ServedModel:
        """A model by its plain name. Errors: ``invalid_request`` for what cannot be a name, ``unknown_model``."""
        if NAME_PATTERN.fullmatch(name) is None:
            raise LudusError(
                "invalid_request",
                "This is not a model name",
                field=field_name,
                value=name,
                expected="letters, digits, '.', '_', '-' (at most 128), beginning with a letter or digit",
            )
        served = self._served.get(name)
        if served is None:
            raise _unknown_model(name, field_name, sorted(self._served))
        return served

    def split(self, model: str) -> tuple[ServedModel, str | None]:
        """``name`` or ``name@step`` of a request: the model, and the policy where a step is named."""
        policy = split_policy(model)
        if policy is None:
            name = model if NAME_PATTERN.fullmatch(model) else ""
            served = self._served.get(name)
            if served is None:
                raise _unknown_model(model, "model", self._choices())
            return served, None
        name, step = policy
        served = self._served.get(name)
        if served is None or step not in served.info.steps:
            raise _unknown_model(model, "model", self._choices())
        return served, model

    def _choices(self) -> list[str]:
        return [f"{m.info.name}@{step}" for m in self for step in m.info.steps] + sorted(self._served)


def _wire(request: RegisterModel | ForkModel) -> dict[str, object]:
    return request.model_dump(by_alias=True, mode="json")


def _unknown_model(name: str, field_name: str, choices: list[str]) -> LudusError:
    shown = ", ".join(choices[-20:]) or "none yet"
    return LudusError(
        "unknown_model",
        f"The model {name[:140]!r} does not exist",
        field=field_name,
        value=name,
        expected=f"one of the registered models: {shown}",
        advice="register it with POST /v1/ludus/models; a step exists after its training has completed",
    )
