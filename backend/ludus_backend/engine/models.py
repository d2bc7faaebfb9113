"""What the engine holds: one base model, the trainer of its adapters and the sampler of their steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ludus_backend.engine.export import export
from ludus_backend.engine_messages import RegisterResult, SftUpdate
from ludus_backend.errors import LudusError
from ludus_backend.models.base_model import LoadedBase, cache_folder, load_base
from ludus_backend.policy_name import split_policy
from ludus_backend.protocol import (
    BaseModelSpec,
    Checkpoints,
    DeleteCheckpoints,
    DeletedCheckpoints,
    ErrorCode,
    ExportedModel,
    ExportModel,
    ForkModel,
    RegisterModel,
    TrainRequest,
    TrainResult,
)
from ludus_backend.sampling.torch_sampler import TorchSampler
from ludus_backend.training.fork import find_source, remove_unfinished, write_fork
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
        base = self._base_of(request.base)
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
            named = split_policy(policy)
            if named is None:
                raise LudusError(
                    "unknown_model",
                    "a policy is a model's name and a step",
                    field="policy",
                    value=policy,
                    expected="name@step",
                    advice="resolve the name to its newest step first",
                )
            sampler.publish(policy, trainer.adapter_folder(*named))
        return sampler

    def train(self, name: str, request: TrainRequest, progress: Callable[[int, int, str], None]) -> TrainResult:
        """One update; the step it made, now or earlier under the same key, can be sampled afterwards."""
        return self._published(name, self._parts()[0].train(name, request, progress))

    def sft(self, name: str, request: SftUpdate, progress: Callable[[int, int, str], None]) -> TrainResult:
        """One supervised update, published like that of ``train``."""
        return self._published(name, self._parts()[0].sft(name, request, progress))

    def fork(self, fork: ForkModel) -> RegisterResult:
        """Makes a model from a step of another one, loading the other one's base model if none is loaded."""
        models = self._state / "models"
        source = find_source(models, fork)
        self._base_of(source.declared.base)
        remove_unfinished(models)
        return self.register(write_fork(models, fork, source))

    def delete(
        self, name: str, request: DeleteCheckpoints, leased: Sequence[int], newest_known: int
    ) -> DeletedCheckpoints:
        """Deletes checkpoints, but never one that is sampled, leased, or may have been leased in between."""
        trainer, sampler = self._parts()

        def in_use(step: int) -> bool:
            return step in leased or step >= newest_known or sampler.in_use(f"{name}@{step}")

        result = trainer.delete(name, request, in_use)
        if not request.dry_run:
            for step in result.deleted:
                sampler.retire(f"{name}@{step}")
        return result

    def export(self, name: str, request: ExportModel) -> ExportedModel:
        """Writes a step for use elsewhere."""
        trainer, _ = self._parts()
        assert self._base is not None
        return export(self._base, trainer.stored(name, request.step), request, self._state)

    def _published(self, name: str, result: TrainResult) -> TrainResult:
        """Publishes the step, which is on disk by then: what fails here can be had again without training again."""
        trainer, sampler = self._parts()
        if not sampler.knows(result.policy) and result.step in trainer.steps(name):
            try:
                sampler.publish(result.policy, trainer.adapter_folder(name, result.step))
            except Exception as error:
                raise _saved_but_not_served(result.policy, error) from error
        return result

    def checkpoints(self, name: str) -> Checkpoints:
        """The committed steps of a model, with their places."""
        return self._parts()[0].checkpoints(name)

    def _base_of(self, spec: BaseModelSpec) -> LoadedBase:
        """The loaded base model, which must be that of ``spec``; loads it where there is none yet."""
        base = self._base if self._base is not None else self._load(spec)
        if base.spec != spec:
            raise LudusError(
                "invalid_request",
                "this engine already holds another base model",
                field="base",
                value=spec.model_dump_json(by_alias=True, exclude_none=True),
                expected=base.spec.model_dump_json(by_alias=True, exclude_none=True),
                advice="start another backend for another base model",
            )
        return base

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


def _saved_but_not_served(policy: str, error: Exception) -> LudusError:
    code: ErrorCode = error.detail.code if isinstance(error, LudusError) else "internal"
    return LudusError(
        code,
        f"{policy} is trained and saved, but could not be made ready for sampling: {error}",
        field="policy",
        value=policy,
        expected="an adapter that the sampler can take over",
        advice="send the same request again: nothing is trained twice, and the step is published",
    )
