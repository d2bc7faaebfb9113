"""What the engine holds: one base model, the trainer of its adapters and the sampler of their steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ludus_backend.engine_messages import RegisterResult
from ludus_backend.errors import LudusError
from ludus_backend.models.base_model import LoadedBase, cache_folder, load_base
from ludus_backend.protocol import BaseModelSpec, Checkpoints, RegisterModel, TrainRequest, TrainResult
from ludus_backend.sampling.torch_sampler import TorchSampler
from ludus_backend.training.trainer import Trainer


class EngineModels:
    """Nothing is loaded before the first ``register``."""

    def __init__(self, state: Path, kv_bytes: int) -> None:
        self._state = state
        self._kv_bytes = kv_bytes
        self._base: LoadedBase | None = None
        self._trainer: Trainer | None = None
        self.sampler: TorchSampler | None = None
        """None before the first ``register``."""

    def register(self, request: RegisterModel) -> RegisterResult:
        """Loads the base model if none is loaded, makes or resumes the adapter, and publishes its newest step."""
        base = self._base if self._base is not None else self._load(request.base)
        if base.spec != request.base:
            raise LudusError(
                "invalid_request",
                "this engine already holds another base model",
                field="base",
                value=request.base.model_dump_json(by_alias=True, exclude_none=True),
                expected=base.spec.model_dump_json(by_alias=True, exclude_none=True),
                advice="start another backend for another base model",
            )
        trainer, sampler = self._parts()
        info = trainer.register(request)
        sampler.publish(f"{info.name}@{info.step}", trainer.adapter_folder(info.name, info.step))
        return RegisterResult(
            info=info.model_dump(mode="json", by_alias=True), tokenizer=str(base.folder), stop_ids=base.stop_ids
        )

    def sampler_for(self, policy: str) -> TorchSampler:
        """The sampler, with ``policy`` published: a step that is only on disk yet is published now."""
        trainer, sampler = self._parts()
        if not sampler.knows(policy):
            name, _, step = policy.rpartition("@")
            if not step.isdecimal():
                raise LudusError(
                    "unknown_model",
                    "a policy is a model's name and a step",
                    field="policy",
                    value=policy,
                    expected="name@step",
                    advice="resolve the name to its newest step first",
                )
            sampler.publish(policy, trainer.adapter_folder(name, int(step)))
        return sampler

    def train(self, name: str, request: TrainRequest, progress: Callable[[int, int, str], None]) -> TrainResult:
        """One update; the step it made, now or earlier under the same key, can be sampled afterwards."""
        trainer, sampler = self._parts()
        result = trainer.train(name, request, progress)
        if not sampler.knows(result.policy):
            sampler.publish(result.policy, trainer.adapter_folder(name, result.step))
        return result

    def checkpoints(self, name: str) -> Checkpoints:
        """The committed steps of a model, with their places."""
        return self._parts()[0].checkpoints(name)

    def _load(self, spec: BaseModelSpec) -> LoadedBase:
        base = load_base(spec, cache_folder())
        self.sampler = TorchSampler(base, kv_bytes=self._kv_bytes)
        self._trainer = Trainer(base, self._state)
        self._base = base
        return base

    def _parts(self) -> tuple[Trainer, TorchSampler]:
        if self._trainer is None or self.sampler is None:
            raise LudusError("unknown_model", "no model is registered", field="model", advice="register a model first")
        return self._trainer, self.sampler
