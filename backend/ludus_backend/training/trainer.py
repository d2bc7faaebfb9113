"""The trainer: models by name, one update at a time, every step durable before it is reported."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ludus_backend.errors import LudusError
from ludus_backend.models.base_model import LoadedBase
from ludus_backend.protocol import Checkpoint, Checkpoints, ModelInfo, RegisterModel, TrainRequest, TrainResult
from ludus_backend.training.advantages import compute_advantages
from ludus_backend.training.losses import resolve_axes
from ludus_backend.training.metrics import batch_metrics, finite, update_metrics
from ludus_backend.training.registered import RegisteredModel
from ludus_backend.training.rows import build_rows
from ludus_backend.training.targets import select_targets
from ludus_backend.training.update import Update

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
        """One update, or the stored result where ``request.key`` was committed before.

        Raises ``LudusError``: ``unknown_model``, ``step_conflict``, ``invalid_request``, ``disk_full``. Weights in
        memory are always those of the newest committed step, whatever is raised.
        """
        model = self._model(name)
        repeated = model.committed(request.key)
        if repeated is not None:
            return repeated
        if request.expected_step != model.step:
            raise LudusError(
                "step_conflict",
                f"{name} is at step {model.step}, not {request.expected_step}",
                field="expectedStep",
                value=request.expected_step,
                expected=str(model.step),
                advice="fetch the model's step and send groups that were sampled for it",
            )
        started = time.perf_counter()
        config = request.config
        axes = resolve_axes(config)
        progress(0, 0, "rows")
        rows = build_rows(request.groups, self._base.model.config.vocab_size, self._base.context_length)
        advantages = compute_advantages(request.groups, axes.std_scaling)
        targets = select_targets(rows, advantages, axes.aggregation, config.denominator)
        metrics = batch_metrics(request.groups, advantages, rows)
        if len(targets) == 0:
            return _untrained(model, metrics, advantages.reasons or {"no_groups": 1}, started)
        model.refuse_full_disk()
        parameters = model.learner.parameters
        for parameter in parameters:
            parameter.grad = None
        figures = Update(model.learner.body, model.learner.head, model.learner.device).accumulate(
            targets,
            axes,
            config.ratio_cap,
            config.entropy_bonus,
            min(config.max_tokens_per_micro_batch, self._affordable),
            lambda done, total: progress(done, total, "update"),
        )
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.grad_clip).item()
        seconds = time.perf_counter() - started
        metrics |= update_metrics(targets, figures, axes, config.ratio_cap, model.step, seconds)
        metrics["grad_norm"] = norm
        for reason, value in (("non_finite_loss", figures.loss), ("non_finite_gradient", norm)):
            if not math.isfinite(value):
                return _untrained(model, metrics, {reason: 1}, started)
        progress(figures.computed_tokens, figures.computed_tokens, "checkpoint")
        metrics["seconds"] = time.perf_counter() - started
        return model.commit(request, *finite(metrics))

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


def _untrained(
    model: RegisteredModel, metrics: dict[str, float], reasons: dict[str, int], started: float
) -> TrainResult:
    kept, non_finite = finite({**metrics, "seconds": time.perf_counter() - started})
    return TrainResult(
        step=model.step,
        trained=False,
        policy=f"{model.request.name}@{model.step}",
        metrics=kept,
        non_finite=non_finite,
        reasons=reasons,
    )
