"""Memory for keys and values: preallocated slots, so that a new token writes in place and nothing is ever concatenated.

A slot holds one sequence. Slots of one capacity lie side by side in a slab, so that attention over neighbouring slots is
one batched call on a view. A sequence that outgrows its slot moves to one of the next capacity.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import torch

SLOTS_PER_SLAB = 16
"""Most slots a slab is given. Memory of a slot is committed only when the slot is first used."""

_SMALLEST = 128


def slot_capacity(tokens: int) -> int:
    """The smallest capacity that holds ``tokens``: 128, then multiples of ``_step``."""
    step = _step(tokens)
    return max(_SMALLEST, -(-tokens // step) * step)


def largest_capacity(tokens: int) -> int:
    """The largest capacity of at most ``tokens``; 0 where even the smallest is larger."""
    step = _step(tokens)
    return tokens // step * step if tokens >= _SMALLEST else 0


def _step(tokens: int) -> int:
    """Small steps waste little memory; growing sequences move less often where they are long."""
    return 64 if tokens <= 1024 else 256 if tokens <= 4096 else 1024


@dataclass(eq=False)
class Slab:
    """``keys`` and ``values``: ``[layers, slots, kv_heads, capacity, head_dim]``."""

    capacity: int
    keys: torch.Tensor
    values: torch.Tensor
    free: list[int] = field(default_factory=list)
    """Heap of used and released slots; what they hold is stale but finite."""
    used: int = 0
    """Slots ``0 .. used - 1`` have been given out once; the others are zeros that take no memory yet."""

    @property
    def slots(self) -> int:
        return self.keys.shape[1]


@dataclass(eq=False)
class Slot:
    slab: Slab
    index: int

    @property
    def capacity(self) -> int:
        return self.slab.capacity


class KvPool:
    """Slots of fp32 keys and values within a budget of bytes."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int, budget_bytes: int) -> None:
        self._shape = (layers, kv_heads, head_dim)
        self.budget_bytes = budget_bytes
        self.token_bytes = 2 * layers * kv_heads * head_dim * 4
        self._slabs: dict[int, list[Slab]] = {}

    @property
    def used_bytes(self) -> int:
        """Committed memory: every slot that was ever used in a slab that still exists."""
        return sum(slab.used * slab.capacity for slabs in self._slabs.values() for slab in slabs) * self.token_bytes

    def allocate(self, tokens: int) -> Slot | None:
        """A slot for at least ``tokens`` tokens, or None where that would pass the budget."""
        capacity = slot_capacity(tokens)
        slabs = self._slabs.setdefault(capacity, [])
        for slab in slabs:
            if slab.free:
                return Slot(slab, heapq.heappop(slab.free))
        if not self._fits(capacity):
            return None
        slab = next((slab for slab in slabs if slab.used < slab.slots), None) or self._new_slab(capacity)
        slab.used += 1
        return Slot(slab, slab.used - 1)

    def outside_budget(self, tokens: int) -> Slot:
        """A slot that is never released and not counted: for a probe that must work when memory is full."""
        return Slot(self._empty_slab(slot_capacity(tokens), 1), 0)

    def release(self, slot: Slot) -> None:
        """Gives the slot back; a slab without a slot in use gives its memory back."""
        slab = slot.slab
        heapq.heappush(slab.free, slot.index)
        if len(slab.free) == slab.used:
            self._slabs[slab.capacity].remove(slab)

    def copy(self, source: Slot, target: Slot, tokens: int) -> None:
        """Copies the first ``tokens`` keys and values of ``source`` into ``target``."""
        for part in ("keys", "values"):
            origin, goal = getattr(source.slab, part), getattr(target.slab, part)
            goal[:, target.index, :, :tokens].copy_(origin[:, source.index, :, :tokens])

    def _fits(self, capacity: int) -> bool:
        return self.used_bytes + capacity * self.token_bytes <= self.budget_bytes

    def _new_slab(self, capacity: int) -> Slab:
        within_budget = max(1, self.budget_bytes // (capacity * self.token_bytes))
        slab = self._empty_slab(capacity, min(SLOTS_PER_SLAB, within_budget))
        self._slabs[capacity].append(slab)
        return slab

    def _empty_slab(self, capacity: int, slots: int) -> Slab:
        """Zeros: attention reads masked positions as well, and 0 times not-a-number is not 0.

        NumPy asks the system for zeroed pages, which cost nothing until they are written; torch would write them all.
        """
        layers, kv_heads, head_dim = self._shape
        shape = (layers, slots, kv_heads, capacity, head_dim)
        keys, values = (torch.from_numpy(np.zeros(shape, dtype=np.float32)) for _ in range(2))
        return Slab(capacity, keys, values)
