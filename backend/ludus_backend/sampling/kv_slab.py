"""A slab: slots of one capacity side by side, so that attention over neighbouring slots is one call on a view.

Its memory comes from the system as zeroed pages, which take no memory before they are written and can be given back one
slot at a time. Zeros matter: attention reads masked positions as well, and 0 times not-a-number is not 0.
"""

from __future__ import annotations

import mmap

import torch

_FLOAT_BYTES = 4


class Slab:
    """``keys`` and ``values``: ``[layers, slots, kv_heads, capacity, head_dim]``, fp32."""

    def __init__(self, layers: int, slots: int, kv_heads: int, capacity: int, head_dim: int) -> None:
        self.slots = slots
        self.capacity = capacity
        self.free: set[int] = set(range(slots))
        """Slots that no sequence holds."""
        self.committed: set[int] = set()
        """Slots that were written since their memory was last given back; what a free one holds is stale but finite."""
        shape = (layers, slots, kv_heads, capacity, head_dim)
        self._slot_bytes = kv_heads * capacity * head_dim * _FLOAT_BYTES
        self._layers = layers
        size = layers * slots * self._slot_bytes
        self._memory = [mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2)]
        self.keys, self.values = (torch.frombuffer(memory, dtype=torch.float32).view(shape) for memory in self._memory)

    def take(self) -> int | None:
        """The lowest free slot, committed ones first; None where all are held."""
        candidates = self.free & self.committed or self.free
        if not candidates:
            return None
        slot = min(candidates)
        self.free.remove(slot)
        self.committed.add(slot)
        return slot

    def give_back(self, slot: int) -> None:
        """Returns the memory of a free slot to the system, where the system can; the slot is zeros again."""
        self.committed.remove(slot)
        page = mmap.PAGESIZE
        for layer in range(self._layers):
            start = (layer * self.slots + slot) * self._slot_bytes
            first, last = -(-start // page) * page, (start + self._slot_bytes) // page * page
            if hasattr(mmap, "MADV_DONTNEED") and first < last:
                for memory in self._memory:
                    memory.madvise(mmap.MADV_DONTNEED, first, last - first)
