"""The policy losses, as pure functions of tensors.

Notation: ``log_ratio = log pi - log mu`` of a sampled token (pi the policy in training, mu the sampler's record at the
sampling temperature), clamped to +-20 before ``exp``; ``A`` the trajectory's advantage; sg = without gradient. Every
function returns the loss of each token; whoever sums divides by one global denominator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ludus_backend.errors import LudusError
from ludus_backend.protocol import TrainConfig

LOG_RATIO_LIMIT = 20.0
"""exp(20) is 5e8: beyond that a ratio says only that something is wrong, and must not become infinite."""


@dataclass(frozen=True)
class LossAxes:
    """What a preset stands for."""

    surrogate: Literal["cispo", "ppo"]
    level: Literal["token", "trajectory"] = "token"
    """Whether the ratio belongs to a token or is the geometric mean over the trajectory's trained tokens."""
    aggregation: Literal["token", "trajectory"] = "token"
    """``token``: mean over all trained tokens. ``trajectory``: mean over trajectories of each one's token mean."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    std_scaling: Literal["group", "batch", "none"] = "group"


PRESETS: dict[str, LossAxes] = {
    # MiniMax-M1 2506.13585 eq. 4; ScaleRL 2510.13786.
    "cispo": LossAxes("cispo"),
    # Clip-higher: DAPO 2503.14476 eq. 10.
    "ppo": LossAxes("ppo"),
    # GSPO 2507.18071 eq. 5 to 7; its section 5.1 gives the clip range.
    "gspo": LossAxes("ppo", level="trajectory", aggregation="trajectory", clip_low=3e-4, clip_high=4e-4),
    # DeepSeekMath 2402.03300 eq. 3.
    "grpo": LossAxes("ppo", aggregation="trajectory", clip_high=0.2),
    # Dr. GRPO 2503.20783: no division by the std, none by the length.
    "dr_grpo": LossAxes("ppo", clip_high=0.2, std_scaling="none"),
    "dapo": LossAxes("ppo"),
}


def resolve_axes(config: TrainConfig) -> LossAxes:
    """The axes of ``config.loss``; an axis that was set by hand must agree with what the preset fixes.

    ``cispo``, ``ppo`` and ``gspo`` take clip range and std scaling from the config; ``grpo``, ``dr_grpo`` and ``dapo``
    are fixed combinations. Raises ``LudusError(invalid_request)`` on a conflict.
    """
    preset = PRESETS[config.loss]
    chosen = {name: getattr(config, name) for name in ("clip_low", "clip_high", "std_scaling")}
    given = config.model_fields_set & chosen.keys()
    if config.loss in ("grpo", "dr_grpo", "dapo"):
        for name in sorted(given):
            if chosen[name] != getattr(preset, name):
                raise LudusError(
                    "invalid_request",
                    f"the preset {config.loss} fixes this option",
                    field=f"config.{TrainConfig.model_fields[name].alias or name}",
                    value=chosen[name],
                    expected=str(getattr(preset, name)),
                    advice="leave it out, or choose loss ppo, whose options are free",
                )
        return preset
    axes = {name: chosen[name] if name in given else getattr(preset, name) for name in chosen}
    return LossAxes(preset.surrogate, preset.level, preset.aggregation, **axes)


def clamped_log_ratio(logprobs: torch.Tensor, recorded: torch.Tensor) -> torch.Tensor:
    """``log pi - log mu`` in [-20, 20], same shape as both arguments; no gradient where it is clamped."""
    return (logprobs - recorded).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def cispo_loss(
    logprobs: torch.Tensor, recorded: torch.Tensor, advantages: torch.Tensor, ratio_cap: float
) -> torch.Tensor:
    """``-sg(min(ratio, ratio_cap)) * A * log pi`` per token ``[tokens]``: no token loses its gradient."""
    ratio = clamped_log_ratio(logprobs, recorded).detach().exp()
    return -ratio.clamp(max=ratio_cap) * advantages * logprobs


def clipped_loss(log_ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float) -> torch.Tensor:
    """``-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)`` per token (PPO 1707.06347 eq. 7)."""
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def trajectory_log_ratio(logprobs: torch.Tensor, trajectory_mean: torch.Tensor) -> torch.Tensor:
    """GSPO's token form (2507.18071 eq. 14): value sg(mean log ratio of the trajectory), gradient that of log pi.

    ``trajectory_mean`` ``[tokens]`` holds, for each token, its trajectory's mean of log ratios (a constant here: it
    comes from a pass over the whole trajectory, whose tokens may lie in several micro-batches).
    """
    return trajectory_mean.detach() + logprobs - logprobs.detach()


def policy_loss(
    axes: LossAxes,
    logprobs: torch.Tensor,
    recorded: torch.Tensor,
    advantages: torch.Tensor,
    ratio_cap: float,
    trajectory_mean: torch.Tensor | None = None,
) -> torch.Tensor:
    """Loss of each token ``[tokens]``; ``trajectory_mean`` is needed at level ``trajectory`` only."""
    if axes.surrogate == "cispo":
        return cispo_loss(logprobs, recorded, advantages, ratio_cap)
    if axes.level == "token":
        log_ratio = clamped_log_ratio(logprobs, recorded)
    else:
        assert trajectory_mean is not None, "a trajectory ratio needs the pass over whole trajectories"
        log_ratio = trajectory_log_ratio(logprobs, trajectory_mean)
    return clipped_loss(log_ratio, advantages, axes.clip_low, axes.clip_high)


def entropy(logs: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of distributions given as log-probabilities, ``[..., vocabulary] -> [...]``."""
    return -(logs.exp() * logs).sum(-1)
