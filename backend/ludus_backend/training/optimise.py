"""The optimiser's steps of one train call: passes that fix old and reference probabilities, then step after step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ludus_backend.models.learner import Learner
from ludus_backend.protocol import TrainConfig
from ludus_backend.training.losses import LossInputs, truncated_weight
from ludus_backend.training.targets import Targets
from ludus_backend.training.update import Objective, Report, Update, UpdateFigures


@dataclass
class StepFigures:
    """One step: what its update saw, and the norm of its gradient before clipping."""

    update: UpdateFigures
    grad_norm: float


@dataclass
class Optimised:
    """All steps of a call; the last one's gradient is in the parameters, clipped and finite, and not yet applied."""

    inputs: LossInputs
    steps: list[StepFigures]
    failure: str | None
    """``non_finite_loss`` or ``non_finite_gradient`` of the last entry of ``steps``: nothing may be applied."""


def optimise(
    learner: Learner,
    update: Update,
    targets: Targets,
    objective: Objective,
    config: TrainConfig,
    progress: Callable[[int, int], None],
) -> Optimised:
    """Takes ``stepsPerCall - 1`` steps over all targets and computes the gradient of the last.

    The old probabilities stay those from before the first step, so the ratio of a later step is one of PPO's epochs
    (1707.06347, algorithm 1). Where there are several steps the caller keeps a snapshot to go back to.
    """
    report = _counter(progress, update.computed_tokens * _passes(objective, config))
    inputs = _inputs(learner, update, targets, objective, config, report)
    learner.configure(config)
    steps: list[StepFigures] = []
    for index in range(config.steps_per_call):
        if index > 0:
            learner.optimizer.step()
        for parameter in learner.parameters:
            parameter.grad = None
        figures = update.accumulate(inputs, objective, report)
        norm = torch.nn.utils.clip_grad_norm_(learner.parameters, config.grad_clip).item()
        steps.append(StepFigures(figures, norm))
        for failure, value in (("non_finite_loss", figures.loss), ("non_finite_gradient", norm)):
            if not math.isfinite(value):
                return Optimised(inputs, steps, failure)
    return Optimised(inputs, steps, None)


def _inputs(
    learner: Learner, update: Update, targets: Targets, objective: Objective, config: TrainConfig, report: Report
) -> LossInputs:
    old, correction, reference = targets.recorded, None, None
    if config.old_logprobs == "recomputed":
        old = update.logprobs(report)
        if config.truncated_importance is not None:
            correction = truncated_weight(old, targets.recorded, config.truncated_importance)
    if objective.kl:
        with learner.without_adapter():
            reference = update.logprobs(report)
    return LossInputs(old, targets.advantage, targets.trajectory, correction, reference)


def _passes(objective: Objective, config: TrainConfig) -> int:
    """How often every token goes through the model."""
    before = (config.old_logprobs == "recomputed") + (objective.kl > 0)
    return before + config.steps_per_call * (2 if objective.axes.importance_level == "sequence" else 1)


def _counter(progress: Callable[[int, int], None], total: int) -> Report:
    done = 0

    def report(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress(done, total)

    return report
