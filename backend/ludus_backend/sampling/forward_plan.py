"""One forward pass over tokens of many sequences, as one stream without padding.

Linear layers see exactly the tokens that exist. Only attention knows the sequences: those in neighbouring slots with
about as many new tokens make a group, and a group is one batched attention over a view of its slab.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ludus_backend.sampling.kv_pool import Slot
from ludus_backend.sampling.kv_slab import Slab

ROWS_PER_GROUP = 8
"""Most sequences in one attention call with several queries each: more would not stay in the processor's cache."""


@dataclass
class Piece:
    """``count`` new tokens of a sequence from position ``start`` on; ``ids`` are those tokens."""

    slot: Slot
    start: int
    ids: Sequence[int]

    @property
    def count(self) -> int:
        return len(self.ids)


@dataclass
class Group:
    """Pieces in slots ``low .. high - 1`` of a slab; slots between them that are not theirs are computed in vain.

    ``gather``: ``[(high - low) * kv_heads * folds * queries]``, indices into the stream's (token, head) pairs: query
    heads that share a key-value head are folded into the query axis, so keys and values are never repeated.
    """

    slab: Slab
    low: int
    high: int
    queries: int
    length: int
    """Keys that anybody in the group sees: the longest sequence, new tokens included."""
    gather: torch.Tensor
    positions: torch.Tensor
    """``[high - low, queries]``: position of each query in its sequence, 0 for padding."""
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, folds: int) -> torch.Tensor:
        """Additive ``[high - low, 1, folds * queries, length]``; with ``window`` so many last positions are seen."""
        known = self.masks.get(window)
        if known is None:
            keys = torch.arange(self.length)
            hidden = keys > self.positions[..., None]
            if window is not None:
                hidden |= keys <= self.positions[..., None] - window
            known = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf")).repeat(1, folds, 1)[:, None]
            self.masks[window] = known
        return known


@dataclass
class Write:
    """Where the new keys and values of one slab go: rows ``targets`` of it as ``[slots * kv_heads * capacity, D]``."""

    slab: Slab
    first: int
    last: int
    """Tokens ``first .. last - 1`` of the stream."""
    targets: torch.Tensor


@dataclass
class ForwardPlan:
    input_ids: torch.Tensor
    """``[1, tokens]``."""
    position_ids: torch.Tensor
    """``[1, tokens]``."""
    last: list[int]
    """Index in the stream of each piece's last token, in the order the pieces were given."""
    groups: list[Group]
    writes: list[Write]
    scatter: torch.Tensor
    """``[tokens * heads]``: where each (token, head) of the stream lies in the groups' outputs, one after the other."""


def plan_forward(pieces: Sequence[Piece], heads: int, kv_heads: int) -> ForwardPlan:
    """Orders and groups the pieces. Shapes: see the fields of ``ForwardPlan``."""
    slabs: dict[int, int] = {}
    for piece in pieces:
        slabs.setdefault(id(piece.slot.slab), len(slabs))

    def place(index: int) -> tuple[int, int, int]:
        piece = pieces[index]
        return slabs[id(piece.slot.slab)], piece.count.bit_length(), piece.slot.index

    order = sorted(range(len(pieces)), key=place)
    ordered = [pieces[index] for index in order]
    counts = np.array([piece.count for piece in ordered])
    firsts = np.concatenate([[0], np.cumsum(counts)])
    positions = np.concatenate([np.arange(piece.start, piece.start + piece.count) for piece in ordered])
    last = [0] * len(pieces)
    for rank, index in enumerate(order):
        last[index] = int(firsts[rank + 1]) - 1

    groups, scatter, offset = [], np.empty((positions.size, heads), dtype=np.int64), 0
    for begin, end in _runs([place(index) for index in order]):
        group = _group(ordered[begin:end], firsts[begin : end + 1], heads, kv_heads, scatter, offset)
        groups.append(group)
        offset += group.gather.numel()
    return ForwardPlan(
        input_ids=torch.tensor([[token for piece in ordered for token in piece.ids]]),
        position_ids=torch.from_numpy(positions)[None],
        last=last,
        groups=groups,
        writes=_writes(ordered, firsts, positions, kv_heads),
        scatter=torch.from_numpy(scatter.reshape(-1)),
    )


def _runs(places: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Cuts the ordered pieces into groups: one slab, similar counts, at least half of the slots in between its own."""
    runs, begin = [], 0
    for index in range(1, len(places) + 1):
        if index < len(places):
            slab, size, slot = places[index]
            first = places[begin]
            dense = slot - first[2] + 1 <= 2 * (index - begin + 1)
            small = size == 1 or index - begin < ROWS_PER_GROUP
            if (slab, size) == first[:2] and dense and small:
                continue
        runs.append((begin, index))
        begin = index
    return runs


def _group(
    pieces: list[Piece], firsts: np.ndarray, heads: int, kv_heads: int, scatter: np.ndarray, offset: int
) -> Group:
    """Builds the group; writes into ``scatter`` ``[tokens, heads]`` where its outputs lie, from ``offset`` on."""
    low, high = pieces[0].slot.index, pieces[-1].slot.index + 1
    queries, folds = max(piece.count for piece in pieces), heads // kv_heads
    tokens = np.full((high - low, queries), firsts[0], dtype=np.int64)
    positions = np.zeros((high - low, queries), dtype=np.int64)
    lanes = (np.arange(kv_heads)[:, None] * folds + np.arange(folds)[None, :]) * queries
    for piece, first in zip(pieces, firsts, strict=False):
        row, steps = piece.slot.index - low, np.arange(piece.count)
        tokens[row, : piece.count] = first + steps
        positions[row, : piece.count] = piece.start + steps
        outputs = offset + row * heads * queries + lanes.reshape(1, heads) + steps[:, None]
        scatter[first : first + piece.count] = outputs
    head = np.arange(heads).reshape(1, kv_heads, folds, 1)
    return Group(
        slab=pieces[0].slot.slab,
        low=low,
        high=high,
        queries=queries,
        length=max(piece.start + piece.count for piece in pieces),
        gather=torch.from_numpy((tokens[:, None, None, :] * heads + head).reshape(-1)),
        positions=torch.from_numpy(positions),
    )


def _writes(ordered: list[Piece], firsts: np.ndarray, positions: np.ndarray, kv_heads: int) -> list[Write]:
    writes, begin = [], 0
    for index in range(1, len(ordered) + 1):
        slab = ordered[begin].slot.slab
        if index < len(ordered) and ordered[index].slot.slab is slab:
            continue
        first, last = int(firsts[begin]), int(firsts[index])
        slots = np.repeat([piece.slot.index for piece in ordered[begin:index]], np.diff(firsts[begin : index + 1]))
        rows = (slots[:, None] * kv_heads + np.arange(kv_heads)) * slab.capacity + positions[first:last, None]
        writes.append(Write(slab, first, last, torch.from_numpy(rows.reshape(-1))))
        begin = index
    return writes
