"""Exact token rows from exchanges: what was sampled is what is trained, nothing is tokenised again.

A row is a token sequence with a mask. An exchange that extends its parent continues the parent's row: the tokens
between (tool output, user turn, template) have mask 0. An exchange without a parent begins a row; a second child of
one parent begins one too and repeats the common history with mask 0. Every trained token is under a mask exactly once.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from ludus_backend.errors import LudusError
from ludus_backend.policy_name import split_policy
from ludus_backend.protocol import Exchange, TrainGroup, TrajectoryRows


@dataclass
class Row:
    """Six lists of one length. Where ``mask`` is False the last four hold 0.0, 1.0, -1 and -1."""

    group: int
    """Index of the group in the request."""
    trajectory: int
    """Index of the trajectory in its group."""
    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    """True: sampled by the policy (its end of turn included) and to be trained."""
    logprobs: list[float] = field(default_factory=list)
    """Natural log-probability recorded at sampling, at ``temperature``."""
    temperatures: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """Step of the policy that sampled the token."""
    exchanges: list[int] = field(default_factory=list)
    """Index of the exchange in its trajectory: the turn."""

    @property
    def trained_tokens(self) -> int:
        return sum(self.mask)

    def _extend(self, ids: Sequence[int]) -> None:
        self.ids.extend(ids)
        self.mask.extend([False] * len(ids))
        self.logprobs.extend([0.0] * len(ids))
        self.temperatures.extend([1.0] * len(ids))
        self.steps.extend([-1] * len(ids))
        self.exchanges.extend([-1] * len(ids))

    def _train(self, exchange: Exchange, step: int, turn: int) -> None:
        count = len(exchange.sampled_ids)
        self.ids.extend(exchange.sampled_ids)
        self.mask.extend([True] * count)
        self.logprobs.extend(exchange.logprobs)
        self.temperatures.extend([exchange.temperature] * count)
        self.steps.extend([step] * count)
        self.exchanges.extend([turn] * count)

    def _copied_history(self, length: int) -> Row:
        """A new row over the first ``length`` tokens, none of which it trains."""
        row = Row(self.group, self.trajectory)
        row._extend(self.ids[:length])
        return row


def prefix_hash(ids: Sequence[int]) -> str:
    """SHA-256 (hex) over ``ids`` as little-endian unsigned 32-bit integers."""
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


def policy_step(policy: str) -> int | None:
    """The step in ``name@step``, or None where it is not of this form."""
    named = split_policy(policy)
    return None if named is None else named[1]


def build_rows(groups: Sequence[TrainGroup], vocabulary: int, context_length: int) -> list[Row]:
    """Rows of all trajectories, in the order of the request, dropped groups included (their tokens may be counted).

    Raises ``LudusError(invalid_request)`` naming the field for ids outside ``vocabulary``, log-probabilities that are
    missing or too many, an unknown or repeated exchange id, a prefix hash that does not fit, a policy without a step,
    or a row longer than ``context_length`` tokens.
    """
    rows: list[Row] = []
    for group_index, group in enumerate(groups):
        for index, trajectory in enumerate(group.trajectories):
            where = f"groups[{group_index}].trajectories[{index}]"
            rows.extend(_trajectory_rows(trajectory, group_index, index, where, vocabulary, context_length))
    return rows


def _trajectory_rows(
    trajectory: TrajectoryRows, group: int, index: int, where: str, vocabulary: int, context_length: int
) -> list[Row]:
    rows: list[Row] = []
    ends: dict[str, tuple[Row, int]] = {}
    """Exchange id -> its row and the length of the row after its sample."""
    for position, exchange in enumerate(trajectory.exchanges):
        here = f"{where}.exchanges[{position}]"
        step = _checked(exchange, here, vocabulary)
        if exchange.id in ends:
            raise _invalid(
                "an exchange id appears twice in a trajectory", f"{here}.id", exchange.id, "an id of its own"
            )
        row = _row_for(exchange, ends, group, index, here)
        if all(row is not known for known in rows):
            rows.append(row)
        row._extend(exchange.prompt_ids)
        if exchange.prefix_hash != (found := prefix_hash(row.ids)):
            raise LudusError(
                "invalid_request",
                "the prompt ids are not those that the reply stands on",
                field=f"{here}.prefixHash",
                value=exchange.prefix_hash,
                expected=f"{found} (SHA-256 of the {len(row.ids)} prompt ids as little-endian uint32)",
                advice="send the prompt ids exactly as the reply returned them, without tokenising text again",
            )
        if exchange.trained:
            row._train(exchange, step, position)
        else:
            row._extend(exchange.sampled_ids)
        if len(row.ids) > context_length:
            raise _invalid(
                "a row is longer than the model's context; it is never cut",
                f"{here}.sampledIds",
                len(row.ids),
                f"at most {context_length} tokens, prompt and reply together",
            )
        ends[exchange.id] = (row, len(row.ids))
    return rows


def _row_for(exchange: Exchange, ends: dict[str, tuple[Row, int]], group: int, index: int, here: str) -> Row:
    """The row that the exchange continues, or a new one."""
    if exchange.parent is None:
        return Row(group, index)
    if exchange.parent not in ends:
        raise _invalid(
            "an exchange names a parent that does not come before it",
            f"{here}.parent",
            exchange.parent,
            "the id of an earlier exchange of the same trajectory, or null",
        )
    row, length = ends[exchange.parent]
    return row if len(row.ids) == length else row._copied_history(length)


def _checked(exchange: Exchange, here: str, vocabulary: int) -> int:
    """Checks one exchange by itself; returns the step of its policy."""
    if len(exchange.logprobs) != len(exchange.sampled_ids):
        raise _invalid(
            "every sampled id needs its own log-probability",
            f"{here}.logprobs",
            f"{len(exchange.logprobs)} values",
            f"{len(exchange.sampled_ids)} values, one per sampled id",
        )
    for name, ids in (("promptIds", exchange.prompt_ids), ("sampledIds", exchange.sampled_ids)):
        if ids and max(ids) >= vocabulary:
            place = next(i for i, token in enumerate(ids) if token >= vocabulary)
            raise _invalid(
                "a token id is outside the vocabulary", f"{here}.{name}[{place}]", ids[place], f"0 to {vocabulary - 1}"
            )
    step = policy_step(exchange.policy)
    if step is None:
        raise _invalid("a policy has no step", f"{here}.policy", exchange.policy, "name@step, for example demo@3")
    if not exchange.prompt_ids and exchange.parent is None:
        raise _invalid("a first exchange has no prompt", f"{here}.promptIds", "[]", "at least one id")
    return step


def _invalid(message: str, field: str, value: object, expected: str) -> LudusError:
    return LudusError(
        "invalid_request",
        message,
        field=field,
        value=value,
        expected=expected,
        advice="send ids and log-probabilities exactly as the sampler returned them",
    )
