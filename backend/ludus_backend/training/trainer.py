"""The trainer: models by name, one update at a time, every step durable before it is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ludus_backend.checkpoints import StoredCheckpoint
from ludus_backend.engine_messages import SftUpdate
from ludus_backend.errors import LudusError
from ludus_backend.models.base_model import LoadedBase
from ludus_backend.protocol import (
    Checkpoint,
    Checkpoints,
    DeleteCheckpoints,
    DeletedCheckpoints,
    ModelInfo,
    RegisterModel,
    TrainRequest,
    TrainResult,
)
from ludus_backend.retention import plan_deletion
from ludus_backend.training.policy_update import policy_update
from ludus_backend.training.registered import RegisteredModel
from ludus_backend.training.sft import supervised_update

ACTIVATION_BYTES = 1.25e9
"""Room for the activations of one micro-batch; the shared prefixes may take as much again."""

Progress = Callable[[int, int, str], None]
"""Called with tokens done, tokens in all, and the phase: ``rows``, ``update``, ``checkpoint``."""


class Trainer:
    """Holds every registered model over one base. For one thread; two processes on one model are refused."""

    def __init__(self, base: LoadedBase, state: Path) -> None:
        self._base = base
        self._folder = state / "models"
        self._models: dict[str, RegisteredModel] = {}
        self._affordable = affordable_tokens(base)

    def register(self, request: RegisterModel) -> ModelInfo:
        """Makes ``name@0``, or resumes the newest whole checkpoint. Idempotent; errors: see ``RegisteredModel``."""
        model = self._models.get(request.name)
        if model is not None:
            model.refuse_changes(request)
            return model.info()
        if request.base != self._base.spec:
            raise LudusError(
                "invalid_request",
                "this engine holds another base model",
                field="base",
                value=request.base.model_dump_json(by_alias=True),
                expected=self._base.spec.model_dump_json(by_alias=True),
                advice="start a backend of its own for another base model",
            )
        model = RegisteredModel(self._base, self._folder / request.name, request)
        self._models[request.name] = model
        return model.info()

    def train(self, name: str, request: TrainRequest, progress: Progress) -> TrainResult:
        """``stepsPerCall`` steps and one checkpoint, or the stored result where ``request.key`` was committed before.

        Raises ``LudusError``: ``unknown_model``, ``step_conflict``, ``invalid_request``, ``disk_full``. Weights in
        memory are always those of the newest committed step, whatever is raised.
        """
        model = self._model(name)
        repeated = model.committed(request.key)
        if repeated is not None:
            return repeated
        model.refuse_other_step(request.expected_step)
        vocabulary = self._base.model.config.vocab_size
        return policy_update(model, request, vocabulary, self._base.context_length, self._affordable, progress)

    def sft(self, name: str, request: SftUpdate, progress: Progress) -> TrainResult:
        """One supervised update, under the same key, step and commit rules as ``train``; errors as there."""
        model = self._model(name)
        repeated = model.committed(request.key)
        if repeated is not None:
            return repeated
        model.refuse_other_step(request.expected_step)
        vocabulary = self._base.model.config.vocab_size
        return supervised_update(model, request, vocabulary, self._base.context_length, self._affordable, progress)

    def steps(self, name: str) -> list[int]:
        """Steps that have a checkpoint, ascending."""
        return self._model(name).store.steps()

    def stored(self, name: str, step: int | None) -> StoredCheckpoint:
        """A step's checkpoint, its hashes checked; default: the newest. Raises ``LudusError(unknown_model)``."""
        model = self._model(name)
        wanted = model.step if step is None else step
        try:
            return model.store.read(int(self.adapter_folder(name, wanted).name))
        except ValueError as error:
            raise LudusError(
                "unknown_model",
                f"checkpoint {wanted} of {name} is broken: {error}",
                field="step",
                value=wanted,
                expected="a whole checkpoint",
                advice="use another step",
            ) from error

    def delete(self, name: str, request: DeleteCheckpoints, in_use: Callable[[int], bool]) -> DeletedCheckpoints:
        """Deletes what the retention lets go; see ``retention.plan_deletion``."""
        store = self._model(name).store
        planned = plan_deletion(store.steps(), store.all(), request, in_use)
        if not request.dry_run:
            for step in planned.deleted:
                store.delete(step)
        return planned

    def adapter_folder(self, name: str, step: int) -> Path:
        """PEFT folder of a committed step: ``adapter_config.json`` and ``adapter_model.safetensors``."""
        store = self._model(name).store
        if step not in store.steps():
            raise LudusError(
                "unknown_model",
                f"{name} has no step {step}",
                field="model",
                value=f"{name}@{step}",
                expected=f"a step among {store.steps()}",
                advice="list the model's checkpoints",
            )
        return store.folder(step)

    def checkpoints(self, name: str) -> Checkpoints:
        """Every checkpoint of the model, oldest first."""
        stored = self._model(name).store.all()
        return Checkpoints(
            checkpoints=[Checkpoint(step=c.step, path=str(c.folder), key=c.key, metrics=c.metrics) for c in stored]
        )

    def close(self) -> None:
        """Lets other processes have the models."""
        for model in self._models.values():
            model.close()
        self._models.clear()

    def _model(self, name: str) -> RegisteredModel:
        if name not in self._models:
            raise LudusError(
                "unknown_model",
                f"there is no model {name}",
                field="name",
                value=name,
                expected=f"one of {sorted(self._models)}",
                advice="register the model first",
            )
        return self._models[name]


def affordable_tokens(base: LoadedBase) -> int:
    """Tokens a micro-batch whose activations fit into ``ACTIVATION_BYTES``, at least 64.

    A layer keeps about 16 vectors of the hidden size and 5 of the feed-forward size a token, fp32 (measured on Llama).
    """
    config = base.model.config.get_text_config()
    vectors = 16 * config.hidden_size + 5 * config.intermediate_size
    return max(64, int(ACTIVATION_BYTES / (4 * config.num_hidden_layers * vectors)))
