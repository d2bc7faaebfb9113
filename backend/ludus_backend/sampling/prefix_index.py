"""Which resident sequence begins like this prompt? Chains of hashed blocks of ids, checked by comparing the ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

BLOCK = 16
"""Tokens a block. Shorter common prefixes are not worth a copy."""


class Indexed(Protocol):
    """What the index needs of a sequence."""

    policy: str
    ids: list[int]
    indexed: list[int]
    """Keys under which the index holds it, one a block; only the index writes here."""


IndexedT = TypeVar("IndexedT", bound=Indexed)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Number of leading ids that are equal. Slices are compared, by bisection: no loop over ids."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


class PrefixIndex(Generic[IndexedT]):
    """Finds, per policy, the sequences that share whole leading blocks with some ids."""

    def __init__(self) -> None:
        self._holders: dict[int, dict[int, IndexedT]] = {}

    def add(self, sequence: IndexedT) -> None:
        """Indexes the whole blocks of ``sequence.ids`` that are not indexed yet."""
        known = len(sequence.indexed)
        previous = sequence.indexed[-1] if known else _start(sequence.policy)
        for key in _chain(previous, sequence.ids, known):
            sequence.indexed.append(key)
            self._holders.setdefault(key, {})[id(sequence)] = sequence

    def drop(self, sequence: IndexedT, keep_tokens: int = 0) -> None:
        """Forgets the blocks of ``sequence`` beyond its first ``keep_tokens`` ids."""
        keep = keep_tokens // BLOCK
        for key in sequence.indexed[keep:]:
            holders = self._holders[key]
            holders.pop(id(sequence), None)
            if not holders:
                del self._holders[key]
        del sequence.indexed[keep:]

    def find(self, policy: str, ids: list[int]) -> list[list[IndexedT]]:
        """Element ``k``: the sequences that share the first ``k + 1`` blocks of ``ids``. Ends where nobody does."""
        levels = []
        for key in _chain(_start(policy), ids, 0):
            holders = self._holders.get(key)
            if holders is None:
                break
            levels.append(list(holders.values()))
        return levels


def _start(policy: str) -> int:
    return hash(policy)


def _chain(previous: int, ids: list[int], first_block: int) -> Iterator[int]:
    for start in range(first_block * BLOCK, len(ids) - BLOCK + 1, BLOCK):
        previous = hash((previous, *ids[start : start + BLOCK]))
        yield previous
