"""Memory for keys and values: preallocated slots, so that a new token writes in place and nothing is ever concatenated.

A slot holds one sequence. A sequence that outgrows its slot moves to one of the next capacity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ludus_backend.sampling.kv_slab import Slab

SLOTS_PER_SLAB = 16
"""Most slots a slab is given."""

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
        """Committed memory: slots in use, and released ones that were not given back to the system yet."""
        return sum(len(slab.committed) * slab.capacity for slab in self._all_slabs()) * self.token_bytes

    def allocate(self, tokens: int) -> Slot | None:
        """A slot for at least ``tokens`` tokens, or None where that would pass the budget."""
        capacity = slot_capacity(tokens)
        slabs = self._slabs.setdefault(capacity, [])
        roomy = next((slab for slab in slabs if slab.free & slab.committed), None)
        if roomy is None:
            if not self._make_room(capacity * self.token_bytes):
                return None
            roomy = next((slab for slab in slabs if slab.free), None) or self._new_slab(capacity)
        index = roomy.take()
        assert index is not None
        return Slot(roomy, index)

    def outside_budget(self, tokens: int) -> Slot:
        """A slot that is never released and not counted: for a probe that must work when memory is full."""
        return Slot(self._slab(slot_capacity(tokens), 1), 0)

    def release(self, slot: Slot) -> None:
        """Gives the slot back; a slab without a slot in use gives its memory back."""
        slab = slot.slab
        slab.free.add(slot.index)
        if len(slab.free) == slab.slots:
            self._slabs[slab.capacity].remove(slab)

    def copy(self, source: Slot, target: Slot, tokens: int) -> None:
        """Copies the first ``tokens`` keys and values of ``source`` into ``target``."""
        for part in ("keys", "values"):
            origin, goal = getattr(source.slab, part), getattr(target.slab, part)
            goal[:, target.index, :, :tokens].copy_(origin[:, source.index, :, :tokens])

    def _make_room(self, needed: int) -> bool:
        """Whether ``needed`` bytes more fit; released slots of any capacity give their memory back until they do."""
        left = self.budget_bytes - self.used_bytes
        for slab in self._all_slabs():
            for slot in sorted(slab.free & slab.committed, reverse=True):
                if left >= needed:
                    return True
                slab.give_back(slot)
                left += slab.capacity * self.token_bytes
        return left >= needed

    def _all_slabs(self) -> Iterator[Slab]:
        return (slab for slabs in self._slabs.values() for slab in slabs)

    def _new_slab(self, capacity: int) -> Slab:
        within_budget = max(1, self.budget_bytes // (capacity * self.token_bytes))
        slab = self._slab(capacity, min(SLOTS_PER_SLAB, within_budget))
        self._slabs[capacity].append(slab)
        return slab

    def _slab(self, capacity: int, slots: int) -> Slab:
        layers, kv_heads, head_dim = self._shape
        return Slab(layers, slots, kv_heads, capacity, head_dim)
