"""What an update trains: every token under a mask, with what its loss needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ludus_backend.training.advantages import GroupAdvantages
from ludus_backend.training.axes import LossAxes
from ludus_backend.training.rows import Row

IMPOSSIBLE_BELOW = -1000.0
"""A sampled token cannot have had such a log-probability: servers write -9999 for minus infinity."""


@dataclass
class Targets:
    """The rows that train, as sequences for the model, and one entry per trained token in every tensor.

    ``sequences[k]`` ends before row k's last trained token: nothing later has to be computed.
    """

    sequences: list[list[int]]
    sequence: list[int]
    """Index into ``sequences``."""
    position: list[int]
    """Position in its sequence of the token that predicts it (one before the token itself)."""
    label: torch.Tensor
    """int64 ``[tokens]``: the sampled id."""
    recorded: torch.Tensor
    """fp32 ``[tokens]``: log mu."""
    temperature: torch.Tensor
    """fp32 ``[tokens]``."""
    advantage: torch.Tensor
    """fp32 ``[tokens]``."""
    weight: torch.Tensor
    """fp32 ``[tokens]``: share of the token in the loss; the global denominator is already in it."""
    trajectory: torch.Tensor
    """int64 ``[tokens]``: the trajectory it belongs to, numbered 0, 1, ... over the trained ones."""
    step: torch.Tensor
    """int64 ``[tokens]``: step of the policy that sampled it."""
    impossible: int
    """Tokens left out because their recorded log-probability cannot be true."""

    def __len__(self) -> int:
        return len(self.sequence)


def select_targets(
    rows: Sequence[Row],
    advantages: GroupAdvantages,
    axes: LossAxes,
    denominator: Literal["trained", "batch"],
) -> Targets:
    """The trained tokens of all groups that carry a signal.

    The denominator counts tokens (aggregation ``token``) or trajectories (``trajectory``; ``constant``, times its
    length): the trained ones, or all that were sent, those of dropped groups included. It is global: it knows nothing
    of micro-batches. A trajectory weighs the same in one row or in several.
    """
    kept: list[tuple[Row, list[int]]] = []
    sent: Counter[tuple[int, int]] = Counter()
    trained: Counter[tuple[int, int]] = Counter()
    impossible = 0
    for row in rows:
        owner = (row.group, row.trajectory)
        positions = [i for i, on in enumerate(row.mask) if on and row.logprobs[i] >= IMPOSSIBLE_BELOW]
        sent[owner] += row.trained_tokens
        impossible += row.trained_tokens - len(positions)
        if positions and advantages.trains(*owner):
            kept.append((row, positions))
            trained[owner] += len(positions)
    counted = sent if denominator == "batch" else trained
    total = sum(counted.values()) if axes.aggregation == "token" else sum(1 for count in counted.values() if count)
    length = axes.aggregation_length or 1
    """Tokens that a trajectory is divided by, where not by its own."""
    numbers = {owner: number for number, owner in enumerate(trained)}
    flat = [(index, row, place) for index, (row, positions) in enumerate(kept) for place in positions]
    owners = [(row.group, row.trajectory) for _, row, _ in flat]
    return Targets(
        sequences=[row.ids[: positions[-1]] for row, positions in kept],
        sequence=[index for index, _, _ in flat],
        position=[place - 1 for _, _, place in flat],
        label=torch.tensor([row.ids[place] for _, row, place in flat], dtype=torch.long),
        recorded=torch.tensor([row.logprobs[place] for _, row, place in flat], dtype=torch.float32),
        temperature=torch.tensor([row.temperatures[place] for _, row, place in flat], dtype=torch.float32),
        advantage=torch.tensor(
            [advantages.of(row.group, row.trajectory, row.exchanges[place]) for _, row, place in flat],
            dtype=torch.float32,
        ),
        weight=torch.tensor(
            [1.0 / total / (trained[owner] if axes.aggregation == "trajectory" else length) for owner in owners],
            dtype=torch.float32,
        ),
        trajectory=torch.tensor([numbers[owner] for owner in owners], dtype=torch.long),
        step=torch.tensor([row.steps[place] for _, row, place in flat], dtype=torch.long),
        impossible=impossible,
    )
