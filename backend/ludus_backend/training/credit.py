"""What is compared inside a group: rewards of trajectories, or the returns of their turns.

Credit ``turn`` compares, instead of rewards, what was still to come from each exchange on, turn by turn: a cell is one
group and one turn index (the exchange's place in its trajectory). A cell of fewer than two members falls back to the
trajectory's baseline, the group's mean reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ludus_backend.errors import LudusError
from ludus_backend.protocol import Exchange, TrainGroup

EQUAL_WITHIN = 1e-12
"""Rewards this close to each other are equal: what differs is rounding, and dividing by it would blow it up."""
SMALLEST_GROUP = 2

Credit = float | list[float | None]
"""The advantage of a whole trajectory, or of each of its exchanges (None where it has no return)."""


def centred_credit(
    group: TrainGroup, members: Sequence[int], credit: Literal["trajectory", "turn"], where: str
) -> dict[int, Credit]:
    """For each member its reward, or its returns turn by turn (None where it has none), minus the baseline."""
    rewards = [group.trajectories[member].reward for member in members]
    if credit == "trajectory":
        return dict(zip(members, _without_mean(rewards), strict=True))
    mean = math.fsum(rewards) / len(rewards)
    found: dict[int, list[float | None]] = {member: [] for member in members}
    for turn in range(max(len(group.trajectories[member].exchanges) for member in members)):
        cell: dict[int, float] = {}
        for member in members:
            exchanges = group.trajectories[member].exchanges
            if turn < len(exchanges):
                found[member].append(None)
                value = _return_to_go(exchanges[turn], f"{where}.trajectories[{member}].exchanges[{turn}]")
                if value is not None:
                    cell[member] = value
        values = list(cell.values())
        baseline = _without_mean(values) if len(values) >= SMALLEST_GROUP else [value - mean for value in values]
        for member, value in zip(cell, baseline, strict=True):
            found[member][turn] = value
    return dict(found)


def _return_to_go(exchange: Exchange, here: str) -> float | None:
    """None where the exchange has none and is not trained either."""
    if exchange.return_to_go is None and trains(exchange):
        raise LudusError(
            "invalid_request",
            "credit by turn needs what was still to come from each trained exchange on",
            field=f"{here}.returnToGo",
            value="none",
            expected="a finite number: the rewards from this exchange to the end",
            advice="send returnToGo with every exchange, or set credit to trajectory",
        )
    return exchange.return_to_go


def _without_mean(values: Sequence[float]) -> list[float]:
    """Exact zeros where all values are equal."""
    if max(values) - min(values) <= EQUAL_WITHIN:
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def numbers_of(credit: Credit) -> list[float]:
    """All its values."""
    return [number for number in credit if number is not None] if isinstance(credit, list) else [credit]


def divided(credit: Credit, divisor: float) -> Credit:
    """Every value by the same divisor."""
    if isinstance(credit, list):
        return [None if number is None else number / divisor for number in credit]
    return credit / divisor


def trains(exchange: Exchange) -> bool:
    """Whether any token of the exchange is under the loss."""
    return exchange.trained and len(exchange.sampled_ids) > 0
