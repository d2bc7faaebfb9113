"""The figures of one update, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ludus_backend.protocol import TrainGroup
from ludus_backend.training.advantages import GroupAdvantages
from ludus_backend.training.losses import LossAxes, clamped_log_ratio
from ludus_backend.training.rows import Row
from ludus_backend.training.targets import Targets
from ludus_backend.training.update import UpdateFigures


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
        "sampled_tokens": sum(row.trained_tokens for row in rows),
        **{f"dropped/{reason}": count for reason, count in advantages.reasons.items()},
    }


def update_metrics(
    targets: Targets, figures: UpdateFigures, axes: LossAxes, ratio_cap: float, step: int, seconds: float
) -> dict[str, float]:
    """What the update saw; ``step`` is the one it started from. ``seconds`` are those of forward and backward."""
    gap = figures.logprobs - targets.recorded
    ratio = clamped_log_ratio(figures.logprobs, targets.recorded).exp()
    if axes.surrogate == "cispo":
        capped = ratio > ratio_cap
    else:
        above, below = ratio > 1 + axes.clip_high, ratio < 1 - axes.clip_low
        capped = (above & (targets.advantage > 0)) | (below & (targets.advantage < 0))
    staleness = step - targets.step
    return {
        "loss": figures.loss,
        "entropy": figures.entropies.mean().item(),
        "ratio_mean": ratio.mean().item(),
        "ratio_p95": ratio.quantile(0.95).item(),
        "ratio_p99": ratio.quantile(0.99).item(),
        "capped_share": capped.float().mean().item(),
        "logprob_gap_mean": gap.abs().mean().item(),
        "logprob_gap_max": gap.abs().max().item(),
        "probability_correlation": _correlation(figures.logprobs.exp(), targets.recorded.exp()),
        "staleness_mean": staleness.float().mean().item(),
        "staleness_max": staleness.max().item(),
        "trained_tokens": len(targets),
        "impossible_logprobs": targets.impossible,
        "computed_tokens": figures.computed_tokens,
        "plain_tokens": figures.plain_tokens,
        "tokens_per_second": figures.plain_tokens / seconds,
    }


def finite(metrics: dict[str, float]) -> tuple[dict[str, float], list[str]]:
    """The finite ones, and the names of the others."""
    kept = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    return kept, sorted(metrics.keys() - kept.keys())


def _correlation(left: torch.Tensor, right: torch.Tensor) -> float:
    """Pearson's; 1 where either does not vary (then nothing can disagree)."""
    a, b = left.double() - left.double().mean(), right.double() - right.double().mean()
    norm = (a.norm() * b.norm()).item()
    return 1.0 if norm == 0 else float((a @ b).item() / norm)
