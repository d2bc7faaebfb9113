"""Resident sequences: whose keys and values are in memory, who may reuse them, and who leaves when memory is short."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from ludus_backend.sampling.kv_pool import KvPool, Slot, largest_capacity
from ludus_backend.sampling.prefix_index import BLOCK, PrefixIndex, common_prefix


@dataclass(eq=False)
class Resident:
    """One sequence in memory. Positions ``0 .. computed - 1`` of ``ids`` have their keys and values in ``slot``."""

    policy: str
    conversation: str | None
    slot: Slot
    ids: list[int]
    order: int
    """Counts requests: of two live sequences with one prefix, the earlier computes it and the later waits."""
    computed: int = 0
    live: bool = True
    """A request works on it: it can be copied from, not evicted."""
    forgotten: bool = False
    """To be dropped as soon as no request works on it."""
    indexed: list[int] = field(default_factory=list)


class KvStore:
    """Keys and values by conversation and by prefix. Those of one policy never serve another."""

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        self._index: PrefixIndex[Resident] = PrefixIndex()
        self._idle: OrderedDict[int, Resident] = OrderedDict()
        """Least recently used first."""
        self._conversations: dict[str, list[Resident]] = {}
        self._requests = 0

    @property
    def used_bytes(self) -> int:
        return self._pool.used_bytes

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that fits the budget when nothing else is in memory."""
        return largest_capacity(self._pool.budget_bytes // self._pool.token_bytes)

    def acquire(self, policy: str, conversation: str | None, ids: list[int], room: int) -> Resident | None:
        """A live resident for ``ids`` with room for ``room`` more tokens; None where live requests fill the memory.

        The conversation's own sequence is taken over where ``ids`` continue it; its ``computed`` says how much of it is
        there already. At least the last id is left to compute: sampling needs its logits. The list ``ids`` is kept, not
        copied: sampled ids appended to it belong to the resident too.
        """
        self._requests += 1
        for level in self._index.find(policy, ids):
            for kept in level:
                if id(kept) in self._idle:
                    self._idle.move_to_end(id(kept))
        own = self._own(policy, conversation, ids)
        if own is not None:
            self._idle.pop(id(own))
            self._truncate(own, common_prefix(own.ids[: own.computed], ids[:-1]))
            own.ids, own.live, own.order = ids, True, self._requests
            if self.reserve(own, len(ids) + room):
                self._index.add(own)
                return own
            self._drop(own)
        slot = self._allocate(len(ids) + room)
        if slot is None:
            return None
        resident = Resident(policy, conversation, slot, ids, self._requests)
        self._index.add(resident)
        if conversation is not None:
            self._conversations.setdefault(conversation, []).append(resident)
        return resident

    def donor(self, resident: Resident) -> tuple[Resident, int] | None:
        """Another sequence that begins like this one, and how many ids they share (the last id excluded).

        Its keys and values of those ids are there already, or it is an earlier request that will compute them: then
        ``computed`` of the donor is smaller than that number. A later request counts for what it has computed only:
        two that waited for each other would wait for ever. None where nobody shares a block.
        """
        levels = self._index.find(resident.policy, resident.ids)
        for depth in range(len(levels), 0, -1):
            others = [other for other in levels[depth - 1] if other is not resident]
            ready = [other for other in others if other.computed >= depth * BLOCK]
            earlier = [other for other in others if other.order < resident.order]
            if ready or earlier:
                best = max(ready or earlier, key=lambda other: other.computed)
                shared = common_prefix(best.ids, resident.ids[:-1])
                return best, shared if best.order < resident.order else min(shared, best.computed)
        return None

    def copy(self, donor: Resident, resident: Resident, tokens: int) -> None:
        """Takes the first ``tokens`` keys and values of ``donor`` over into ``resident``."""
        self._pool.copy(donor.slot, resident.slot, tokens)
        resident.computed = tokens

    def reserve(self, resident: Resident, tokens: int) -> bool:
        """Makes room for ``tokens`` tokens in all, moving to a larger slot where needed; False: memory is full."""
        if tokens <= resident.slot.capacity:
            return True
        larger = self._allocate(tokens)
        if larger is None:
            return False
        self._pool.copy(resident.slot, larger, resident.computed)
        self._pool.release(resident.slot)
        resident.slot = larger
        return True

    def release(self, resident: Resident) -> None:
        """The request is done: the sequence stays for its conversation, or as a prefix, until memory is short."""
        resident.live = False
        self._truncate(resident, resident.computed)
        if resident.forgotten or resident.computed == 0:
            self._drop(resident)
            return
        self._index.add(resident)
        self._idle[id(resident)] = resident

    def discard(self, resident: Resident) -> None:
        """The request gives its memory up at once."""
        self._drop(resident)

    def forget(self, conversation: str) -> None:
        """Frees what the conversation holds; sequences in use leave when their request ends."""
        for resident in list(self._conversations.get(conversation, ())):
            resident.forgotten = True
            if not resident.live:
                self._drop(resident)

    def drop_policy(self, policy: str) -> None:
        """Frees the idle sequences of a policy."""
        for resident in [resident for resident in self._idle.values() if resident.policy == policy]:
            self._drop(resident)

    def _own(self, policy: str, conversation: str | None, ids: list[int]) -> Resident | None:
        """The conversation's idle sequence that ``ids`` continue; sequences of other policies are dropped.

        One that would lose more than a block is left alone: seats of one episode may take turns in one conversation.
        """
        best, longest = None, 0
        for resident in list(self._conversations.get(conversation, ()) if conversation is not None else ()):
            if resident.live:
                continue
            if resident.policy != policy:
                self._drop(resident)
                continue
            shared = common_prefix(resident.ids, ids)
            if shared > longest and resident.computed - shared <= BLOCK:
                best, longest = resident, shared
        return best

    def _truncate(self, resident: Resident, tokens: int) -> None:
        self._index.drop(resident, tokens)
        del resident.ids[tokens:]
        resident.computed = tokens

    def _allocate(self, tokens: int) -> Slot | None:
        """A slot, evicting idle sequences from the least recently used on while there is no room."""
        while (slot := self._pool.allocate(tokens)) is None:
            if not self._idle:
                return None
            self._drop(next(iter(self._idle.values())))
        return slot

    def _drop(self, resident: Resident) -> None:
        resident.live = False
        self._idle.pop(id(resident), None)
        self._index.drop(resident)
        self._pool.release(resident.slot)
        if resident.conversation is not None:
            siblings = self._conversations[resident.conversation]
            siblings.remove(resident)
            if not siblings:
                del self._conversations[resident.conversation]
