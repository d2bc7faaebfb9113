"""Advantages: how much better a trajectory did than its siblings.

Rewards are compared inside a group, and a group is what carries one explicit id: never a position in a list, never
equal prompt text. ``A = r - mean``, divided by ``std + 1e-6`` where the flag says so; the std is the population's (n,
not n - 1), as in OpenPipe ART. Dividing by nothing is Dr. GRPO (2503.20783); by the batch's std, ScaleRL (2510.13786).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ludus_backend.errors import LudusError
from ludus_backend.protocol import TrainGroup, TrajectoryRows

EPSILON = 1e-6
EQUAL_WITHIN = 1e-12
"""Rewards this close to each other are equal: what differs is rounding, and dividing by it would blow it up."""
SMALLEST_GROUP = 2


@dataclass
class GroupAdvantages:
    advantages: list[list[float | None] | None]
    """By group of the request, then trajectory. None for a group: it carries no signal and is not trained; for a
    trajectory: it has no trained token, so it is in no baseline either."""
    reasons: dict[str, int]
    """Counted: groups not trained (``zero_variance``, ``group_too_small``, ``dropped_<cause>``) and trajectories left
    out (``no_trained_tokens``)."""

    def of(self, group: int, trajectory: int) -> float | None:
        """The advantage of one trajectory; None where it is not trained."""
        values = self.advantages[group]
        return None if values is None else values[trajectory]

    @property
    def zero_variance_share(self) -> float:
        """Groups whose rewards were all equal (or that the sender dropped), among all groups; 0 without groups."""
        silent = sum(
            n for reason, n in self.reasons.items() if reason == "zero_variance" or reason.startswith("dropped_")
        )
        return silent / len(self.advantages) if self.advantages else 0.0


def compute_advantages(groups: Sequence[TrainGroup], std_scaling: Literal["group", "batch", "none"]) -> GroupAdvantages:
    """Advantages of every group of a train request. Only scored trajectories are in one, by type of the protocol.

    Raises ``LudusError(invalid_request)`` where two groups carry the same id.
    """
    _refuse_repeated_ids(groups)
    reasons: Counter[str] = Counter()
    centred: list[list[float | None] | None] = []
    for group in groups:
        acted = [_has_trained_token(trajectory) for trajectory in group.trajectories]
        reasons["no_trained_tokens"] += acted.count(False)
        rewards = [trajectory.reward for trajectory, did in zip(group.trajectories, acted, strict=True) if did]
        cause = _no_signal(group, rewards)
        if cause is not None:
            reasons[cause] += 1
            centred.append(None)
            continue
        mean = math.fsum(rewards) / len(rewards)
        centred.append([t.reward - mean if did else None for t, did in zip(group.trajectories, acted, strict=True)])
    batch = _deviation([value for values in centred if values is not None for value in values if value is not None])
    scaled: list[list[float | None] | None] = []
    for values in centred:
        if values is None or std_scaling == "none":
            scaled.append(values)
            continue
        deviation = batch if std_scaling == "batch" else _deviation([value for value in values if value is not None])
        scaled.append([None if value is None else value / (deviation + EPSILON) for value in values])
    return GroupAdvantages(scaled, {reason: count for reason, count in sorted(reasons.items()) if count})


def _no_signal(group: TrainGroup, rewards: Sequence[float]) -> str | None:
    """Why a group with these rewards (of the trajectories that acted) cannot be trained, or None."""
    if group.dropped is not None:
        return f"dropped_{group.dropped}"
    if len(rewards) < SMALLEST_GROUP:
        return "group_too_small"
    if max(rewards) - min(rewards) <= EQUAL_WITHIN:
        return "zero_variance"
    return None


def _has_trained_token(trajectory: TrajectoryRows) -> bool:
    return any(exchange.trained and exchange.sampled_ids for exchange in trajectory.exchanges)


def _refuse_repeated_ids(groups: Sequence[TrainGroup]) -> None:
    seen: dict[str, int] = {}
    for index, group in enumerate(groups):
        if group.id in seen:
            raise LudusError(
                "invalid_request",
                "two groups carry one id",
                field=f"groups[{index}].id",
                value=group.id,
                expected=f"an id of its own (groups[{seen[group.id]}] has this one)",
                advice="put all trajectories of one scenario, seat and opponent into one group",
            )
        seen[group.id] = index


def _deviation(centred: Sequence[float]) -> float:
    """Population standard deviation of values whose mean is 0."""
    return math.sqrt(math.fsum(value * value for value in centred) / len(centred)) if centred else 0.0
