"""The figures of one update, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ludus_backend.protocol import TrainGroup
from ludus_backend.training.advantages import GroupAdvantages
from ludus_backend.training.losses import LossInputs, clamped_log_ratio, k3_divergence, trajectory_mean
from ludus_backend.training.rows import Row
from ludus_backend.training.targets import Targets
from ludus_backend.training.update import Objective, UpdateFigures


def batch_metrics(groups: Sequence[TrainGroup], advantages: GroupAdvantages, rows: Sequence[Row]) -> dict[str, float]:
    """What can be said before anything is trained."""
    rewards = [trajectory.reward for group in groups for trajectory in group.trajectories]
    mean = math.fsum(rewards) / len(rewards) if rewards else 0.0
    trajectories = len({(row.group, row.trajectory) for row in rows})
    return {
        "groups": len(groups),
        "groups_trained": sum(values is not None for values in advantages.advantages),
        "trajectories": len(rewards),
        "reward_mean": mean,
        "reward_std": math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards)) if rewards else 0.0,
        "zero_variance_share": advantages.zero_variance_share,
        "rows": len(rows),
        "split_rows": len(rows) - trajectories,
        # Every exchange of this protocol brings its ids, so no row is ever tokenised again.
        "retokenized_rows": 0,
        "sampled_tokens": sum(row.trained_tokens for row in rows),
        **{f"dropped/{reason}": count for reason, count in advantages.reasons.items()},
    }


def update_metrics(
    targets: Targets, inputs: LossInputs, figures: UpdateFigures, objective: Objective, step: int
) -> dict[str, float]:
    """What an update saw; ``step`` is the one that its call started from.

    ``ratio_*`` and ``capped_share`` are about the ratio in the loss; ``logprob_gap_*`` and ``probability_correlation``
    compare the trainer with the sampler, whatever the loss uses.
    """
    axes = objective.axes
    gap = figures.logprobs - targets.recorded
    log_ratio = clamped_log_ratio(figures.logprobs, inputs.old)
    if axes.importance_level == "sequence":
        log_ratio = trajectory_mean(log_ratio, inputs.trajectory)
    ratio = log_ratio.exp()
    if axes.surrogate == "cispo":
        capped = ratio > axes.ratio_cap
    else:
        above, below = ratio > 1 + axes.clip_high, ratio < 1 - axes.clip_low
        capped = (above & (targets.advantage > 0)) | (below & (targets.advantage < 0))
    staleness = step - targets.step
    metrics = {
        "loss": figures.loss,
        "entropy": figures.entropies.mean().item(),
        "ratio_mean": ratio.mean().item(),
        "ratio_p95": _quantile(ratio, 0.95),
        "ratio_p99": _quantile(ratio, 0.99),
        "capped_share": capped.float().mean().item(),
        "logprob_gap_mean": gap.abs().mean().item(),
        "logprob_gap_max": gap.abs().max().item(),
        "probability_correlation": _correlation(figures.logprobs.exp(), targets.recorded.exp()),
        "staleness_mean": staleness.float().mean().item(),
        "staleness_max": staleness.max().item(),
        "trained_tokens": len(targets),
        "impossible_logprobs": targets.impossible,
    }
    if inputs.correction is not None:
        metrics["importance_weight_mean"] = inputs.correction.mean().item()
        metrics["importance_weight_max"] = inputs.correction.max().item()
    if inputs.reference is not None:
        metrics["kl"] = (ratio * k3_divergence(figures.logprobs, inputs.reference)).mean().item()
    return metrics


def last_step_metrics(metrics: dict[str, float]) -> dict[str, float]:
    """What changes from step to step, for the last of several in a call."""
    names = ("loss", "entropy", "ratio_mean", "ratio_p95", "ratio_p99", "capped_share", "kl")
    return {f"last_step/{name}": metrics[name] for name in names if name in metrics}


def finite(metrics: dict[str, float]) -> tuple[dict[str, float], list[str]]:
    """The finite ones, and the names of the others."""
    kept = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    return kept, sorted(metrics.keys() - kept.keys())


def _quantile(values: torch.Tensor, share: float) -> float:
    """Nearest rank: the smallest value that ``share`` of all do not exceed (``torch.quantile`` has a largest size)."""
    return values.kthvalue(max(1, math.ceil(share * len(values)))).values.item()


def _correlation(left: torch.Tensor, right: torch.Tensor) -> float:
    """Pearson's; 1 where either does not vary (then nothing can disagree)."""
    a, b = left.double() - left.double().mean(), right.double() - right.double().mean()
    norm = (a.norm() * b.norm()).item()
    return 1.0 if norm == 0 else float((a @ b).item() / norm)
