"""A train request becomes steps of one model: rows, advantages, gradient, metrics, and one durable checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ludus_backend.protocol import TrainRequest, TrainResult
from ludus_backend.training.advantages import GroupAdvantages, compute_advantages
from ludus_backend.training.axes import resolve_axes, resolved_config
from ludus_backend.training.metrics import batch_metrics, finite, last_step_metrics, update_metrics
from ludus_backend.training.optimise import Optimised, optimise
from ludus_backend.training.registered import NonFiniteWeightsError, RegisteredModel
from ludus_backend.training.rows import build_rows
from ludus_backend.training.targets import Targets, select_targets
from ludus_backend.training.update import Objective, Update


def policy_update(
    model: RegisteredModel,
    request: TrainRequest,
    vocabulary: int,
    context_length: int,
    affordable: int,
    progress: Callable[[int, int, str], None],
) -> TrainResult:
    """``stepsPerCall`` steps and a checkpoint of the last; ``trained: false`` with reasons where nothing can train.

    ``affordable``: most tokens of a micro-batch that the memory holds. Raises ``LudusError`` (``invalid_request``,
    ``disk_full``); whatever is raised, the weights in memory are those of the newest committed step.
    """
    started = time.perf_counter()
    config = request.config
    axes = resolve_axes(config)
    progress(0, 0, "rows")
    rows = build_rows(request.groups, vocabulary, context_length)
    oldest = None if config.max_staleness is None else model.step - config.max_staleness
    advantages = compute_advantages(request.groups, axes.std_scaling, config.credit, oldest)
    targets = select_targets(rows, advantages, axes, config.denominator)
    metrics = batch_metrics(request.groups, advantages, rows)
    if len(targets) == 0:
        return _untrained(model, metrics, _why_nothing_trains(advantages, targets), started)
    model.refuse_full_disk()
    learner = model.learner
    budget = min(config.max_tokens_per_micro_batch, affordable)
    update = Update(learner.body, learner.head, learner.device, targets, budget)
    objective = Objective(axes, config.kl, config.entropy_bonus)
    try:
        with _undone_on_failure(model, config.steps_per_call) as undo:
            done = optimise(
                learner, update, targets, objective, config, lambda done, total: progress(done, total, "update")
            )
            metrics |= _seen(targets, done, objective, model.step)
            metrics |= _work(update, len(done.steps), budget, time.perf_counter() - started)
            if done.failure is not None:
                undo()
                return _untrained(model, metrics, {done.failure: 1}, started)
            progress(update.computed_tokens, update.computed_tokens, "checkpoint")
            metrics["seconds"] = time.perf_counter() - started
            model.step += config.steps_per_call - 1
            recorded = request.model_copy(update={"config": resolved_config(config, axes)})
            return model.commit(recorded, *finite(metrics))
    except NonFiniteWeightsError as error:
        return _untrained(model, metrics, {error.reason: 1}, started)


def _why_nothing_trains(advantages: GroupAdvantages, targets: Targets) -> dict[str, int]:
    reasons = advantages.reasons
    if targets.impossible:
        reasons = {**reasons, "impossible_logprobs": targets.impossible}
    return reasons or {"no_groups": 1}


def _seen(targets: Targets, done: Optimised, objective: Objective, step: int) -> dict[str, float]:
    """The figures of the first step, whose policy is the sampler's, and what the last of several saw otherwise."""
    first, *others = [
        {**update_metrics(targets, done.inputs, s.update, objective, step), "grad_norm": s.grad_norm}
        for s in (done.steps if len(done.steps) == 1 else (done.steps[0], done.steps[-1]))
    ]
    return first | (last_step_metrics(others[0]) if others else {})


def _work(update: Update, steps: int, budget: int, seconds: float) -> dict[str, float]:
    """Speed, and the plan of the micro-batches: with ``threads`` it is what bit-equality depends on."""
    return {
        "optimizer_steps": steps,
        "computed_tokens": update.computed_tokens,
        "plain_tokens": update.plain_tokens,
        "tokens_per_second": steps * update.plain_tokens / seconds,
        "micro_batches": update.micro_batches,
        "micro_batch_tokens": budget,
        "threads": torch.get_num_threads(),
    }


@contextmanager
def _undone_on_failure(model: RegisteredModel, steps: int) -> Iterator[Callable[[], None]]:
    """Takes back the steps before the last, in memory, where the call does not commit; yields a way to ask for it."""
    step, before = model.step, model.learner.snapshot() if steps > 1 else None

    def undo() -> None:
        model.step = step
        if before is not None:
            model.learner.restore(before)

    try:
        yield undo
    except BaseException:
        if model.step < step + steps:
            undo()
        raise


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
