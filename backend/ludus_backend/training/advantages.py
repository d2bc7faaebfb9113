"""Advantages: how much better a trajectory, or one of its turns, did than its siblings.

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
from ludus_backend.training.credit import SMALLEST_GROUP, Credit, centred_credit, divided, numbers_of, trains
from ludus_backend.training.rows import policy_step

EPSILON = 1e-6


@dataclass
class GroupAdvantages:
    advantages: list[list[Credit | None] | None]
    """By group of the request, then trajectory. None for a group: it carries no signal and is not trained; for a
    trajectory: it is not trained."""
    reasons: dict[str, int]
    """Counted: groups not trained (``zero_variance``, ``group_too_small``, ``dropped_<cause>``) and trajectories not
    trained (``no_sampled_tokens`` and ``stale``, which are in no baseline either; ``no_trained_tokens``, which are)."""

    def trains(self, group: int, trajectory: int) -> bool:
        """Whether the trajectory has an advantage."""
        values = self.advantages[group]
        return values is not None and values[trajectory] is not None

    def of(self, group: int, trajectory: int, exchange: int) -> float:
        """The advantage of one exchange of a trajectory that trains."""
        values = self.advantages[group]
        credit = None if values is None else values[trajectory]
        value = credit[exchange] if isinstance(credit, list) else credit
        assert value is not None, "the exchange does not train"
        return value

    @property
    def zero_variance_share(self) -> float:
        """Groups whose rewards were all equal (or that the sender dropped), among all groups; 0 without groups."""
        silent = sum(
            n for reason, n in self.reasons.items() if reason == "zero_variance" or reason.startswith("dropped_")
        )
        return silent / len(self.advantages) if self.advantages else 0.0


def compute_advantages(
    groups: Sequence[TrainGroup],
    std_scaling: Literal["group", "batch", "none"],
    credit: Literal["trajectory", "turn"] = "trajectory",
    oldest_step: int | None = None,
) -> GroupAdvantages:
    """Advantages of every group of a train request. Only scored trajectories are in one, by type of the protocol.

    A trajectory whose samples are all kept out of the loss is still a sibling: its reward counts in the baseline.
    ``oldest_step``: trajectories with a trained token of an earlier policy step are left out. Raises
    ``LudusError(invalid_request)`` where two groups carry the same id, or a trained exchange lacks its ``returnToGo``.
    """
    _refuse_repeated_ids(groups)
    reasons: Counter[str] = Counter()
    centred: list[dict[int, Credit] | None] = []
    for index, group in enumerate(groups):
        left_out = [_left_out(trajectory, oldest_step) for trajectory in group.trajectories]
        members = [i for i, cause in enumerate(left_out) if cause is None]
        silent = [i for i in members if not any(map(trains, group.trajectories[i].exchanges))]
        reasons.update(cause for cause in left_out if cause is not None)
        reasons["no_trained_tokens"] += len(silent)
        if group.dropped is not None or len(members) < SMALLEST_GROUP:
            reasons["group_too_small" if group.dropped is None else f"dropped_{group.dropped}"] += 1
            centred.append(None)
            continue
        values = centred_credit(group, members, credit, f"groups[{index}]")
        if not any(number for value in values.values() for number in numbers_of(value)):
            reasons["zero_variance"] += 1
            centred.append(None)
        else:
            centred.append(values)
    batch = _deviation([values for values in centred if values is not None])
    scaled: list[list[Credit | None] | None] = []
    for group, found in zip(groups, centred, strict=True):
        if found is None:
            scaled.append(None)
            continue
        deviation = {"none": 1.0, "batch": batch + EPSILON, "group": _deviation([found]) + EPSILON}[std_scaling]
        scaled.append(
            [
                divided(found[i], deviation) if i in found and any(map(trains, trajectory.exchanges)) else None
                for i, trajectory in enumerate(group.trajectories)
            ]
        )
    return GroupAdvantages(scaled, {reason: count for reason, count in sorted(reasons.items()) if count})


def _left_out(trajectory: TrajectoryRows, oldest_step: int | None) -> str | None:
    """Why a trajectory is in no baseline, or None."""
    sampled = [exchange for exchange in trajectory.exchanges if exchange.sampled_ids]
    if not sampled:
        return "no_sampled_tokens"
    judged = [exchange for exchange in sampled if exchange.trained] or sampled
    if oldest_step is not None and any((policy_step(e.policy) or 0) < oldest_step for e in judged):
        return "stale"
    return None


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


def _deviation(centred: Sequence[dict[int, Credit]]) -> float:
    """Root mean square over all members: the population standard deviation of values whose mean is 0."""
    numbers = [number for values in centred for value in values.values() for number in numbers_of(value)]
    return math.sqrt(math.fsum(number * number for number in numbers) / len(numbers)) if numbers else 0.0
