"""The policy losses, as pure functions of tensors.

Notation: ``log_ratio = log pi - log old`` of a sampled token (pi the policy in training; old the sampler's record mu at
the sampling temperature, or the trainer's own pass before the first step), clamped to +-20 before ``exp``; ``A`` the
advantage; sg = without gradient. Every function returns the loss of each token; whoever sums divides by one global
denominator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ludus_backend.training.axes import LossAxes

LOG_RATIO_LIMIT = 20.0
"""exp(20) is 5e8: beyond that a ratio says only that something is wrong, and must not become infinite."""


@dataclass(frozen=True)
class LossInputs:
    """What the loss of a token needs beside log pi; every tensor is fp32 ``[tokens]`` but ``trajectory`` (int64)."""

    old: torch.Tensor
    """Log-probability that the ratio is taken against."""
    advantage: torch.Tensor
    trajectory: torch.Tensor
    """Number of the trajectory, 0, 1, ...: a ratio of level ``sequence`` is its mean."""
    correction: torch.Tensor | None = None
    """Truncated importance weight of the sampler's mismatch."""
    reference: torch.Tensor | None = None
    """Log-probability under the base model; needed where ``kl`` is not 0."""

    def select(self, chosen: torch.Tensor) -> LossInputs:
        """The same for some of the tokens."""
        optional = {
            name: None if (value := getattr(self, name)) is None else value[chosen]
            for name in ("correction", "reference")
        }
        return replace(
            self,
            old=self.old[chosen],
            advantage=self.advantage[chosen],
            trajectory=self.trajectory[chosen],
            **optional,
        )


def token_losses(axes: LossAxes, kl: float, logprobs: torch.Tensor, inputs: LossInputs) -> torch.Tensor:
    """Loss of each token ``[tokens]``: policy term, times the correction, plus ``kl`` times the divergence.

    At level ``sequence`` the tokens of every trajectory must all be there.
    """
    log_ratio = clamped_log_ratio(logprobs, inputs.old)
    if axes.importance_level == "sequence":
        log_ratio = trajectory_mean(log_ratio, inputs.trajectory)
    if axes.surrogate == "cispo":
        losses = cispo_loss(logprobs, log_ratio, inputs.advantage, axes.ratio_cap)
    else:
        losses = clipped_loss(log_ratio, inputs.advantage, axes.clip_low, axes.clip_high)
    if inputs.correction is not None:
        losses = losses * inputs.correction
    if kl:
        assert inputs.reference is not None, "a KL term needs the base model's log-probabilities"
        losses = losses + kl * log_ratio.exp() * k3_divergence(logprobs, inputs.reference)
    return losses


def clamped_log_ratio(logprobs: torch.Tensor, recorded: torch.Tensor) -> torch.Tensor:
    """``log pi - log old`` in [-20, 20], same shape as both arguments; no gradient where it is clamped."""
    return (logprobs - recorded).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def trajectory_mean(values: torch.Tensor, trajectory: torch.Tensor) -> torch.Tensor:
    """For each token the mean of ``values`` over its trajectory's tokens, ``[tokens]`` (GSPO 2507.18071 eq. 7)."""
    sums = values.new_zeros(int(trajectory.max()) + 1).index_add(0, trajectory, values)
    return (sums / torch.bincount(trajectory))[trajectory]


def cispo_loss(
    logprobs: torch.Tensor, log_ratio: torch.Tensor, advantages: torch.Tensor, ratio_cap: float
) -> torch.Tensor:
    """``-sg(min(ratio, ratio_cap)) * A * log pi`` per token ``[tokens]``: no token loses its gradient."""
    return -log_ratio.detach().exp().clamp(max=ratio_cap) * advantages * logprobs


def clipped_loss(log_ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float) -> torch.Tensor:
    """``-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)`` per token (PPO 1707.06347 eq. 7)."""
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def k3_divergence(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """``exp(d) - d - 1`` with ``d = log reference - log pi``: estimates KL(pi, reference), never negative.

    Schulman's k3. On samples of another policy its mean is unbiased only when multiplied by the ratio, whose gradient
    belongs to it (DeepSeek-V3.2 2512.02556, section 3.1); ``token_losses`` does that.
    """
    difference = clamped_log_ratio(reference, logprobs)
    return difference.exp() - difference - 1


def truncated_weight(old: torch.Tensor, recorded: torch.Tensor, cap: float) -> torch.Tensor:
    """``min(exp(log old - log mu), cap)`` per token: the trainer's over the sampler's probability, no gradient."""
    return clamped_log_ratio(old, recorded).detach().exp().clamp(max=cap)


def entropy(logs: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of distributions given as log-probabilities, ``[..., vocabulary] -> [...]``."""
    return -(logs.exp() * logs).sum(-1)
