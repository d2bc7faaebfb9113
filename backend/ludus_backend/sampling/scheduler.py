"""Who computes next: admission, prefix reuse, chunked prefill and preemption, for one policy at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ludus_backend.sampling.forward_plan import Piece
from ludus_backend.sampling.kv_store import KvStore, Resident
from ludus_backend.sampling.prefix_index import BLOCK
from ludus_backend.sampling.sampler import SampleRequest
from ludus_backend.sampling.stop_strings import StopStrings

MOST_RUNNING = 256
"""Sequences that run at once; the others wait."""

_FIRST_ROOM = 32
"""Tokens of reply that a sequence has room for when it starts; it moves to a larger slot as it grows."""

_WORTH_WAITING = BLOCK
"""A sequence waits for another to compute a common prefix if that saves it at least so many tokens.

Low, because the members of a group often make the same moves: then their next prompts are equal too.
"""


@dataclass(eq=False)
class Sequence:
    """A request and how far it is. ``ids``: prompt and sampled ids."""

    request: SampleRequest
    max_tokens: int
    stops: StopStrings
    ids: list[int]
    logprobs: list[float] = field(default_factory=list)
    resident: Resident | None = None
    cached_tokens: int | None = None
    """Known when its first token is computed."""

    @property
    def sampled(self) -> int:
        return len(self.logprobs)

    @property
    def reply(self) -> list[int]:
        return self.ids[len(self.request.prompt_ids) :]


class Scheduler:
    """First come, first served. Sequences of the running policy join between steps while no older one waits."""

    def __init__(self, store: KvStore, chunk_tokens: int) -> None:
        """``chunk_tokens``: new prompt tokens computed in one forward pass, about."""
        self._store = store
        self._chunk_tokens = chunk_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def next(self) -> list[tuple[Sequence, Piece]]:
        """The pieces of the next forward pass, all of one policy; empty only where no sequence is left."""
        self._admit()
        planned: list[tuple[Sequence, Piece]] = []
        budget = self._chunk_tokens
        prefilling = False
        for sequence in list(self.running):
            resident = sequence.resident
            # None: it was preempted a moment ago, for a sequence before it.
            if resident is None or self._waits(sequence, resident):
                continue
            count = len(sequence.ids) - resident.computed
            if count > 1:
                if prefilling and count > budget:
                    # Cutting it now would not save a pass: it starts the next one whole.
                    continue
                count, prefilling = min(count, self._chunk_tokens), True
                budget -= count
            if not self._reserve(sequence, resident, resident.computed + count):
                continue
            if sequence.cached_tokens is None:
                sequence.cached_tokens = resident.computed
            start = resident.computed
            planned.append((sequence, Piece(resident.slot, start, sequence.ids[start : start + count])))
        return planned

    def finish(self, sequence: Sequence) -> None:
        """Takes a sequence out; its keys and values stay for the conversation."""
        if sequence.resident is None:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        self._store.release(sequence.resident)

    def abandon(self, sequence: Sequence) -> None:
        """Takes a running sequence out, and its keys and values out of memory: they may be half written."""
        self.running.remove(sequence)
        if sequence.resident is not None:
            self._store.discard(sequence.resident)

    def _admit(self) -> None:
        joining = bool(self.running)
        policy = self.running[0].request.policy if joining else None
        for sequence in list(self.waiting):
            policy = policy or sequence.request.policy
            if sequence.request.policy != policy:
                if joining:
                    return
                continue
            if len(self.running) >= MOST_RUNNING:
                return
            left = sequence.max_tokens - sequence.sampled
            room = min(left, _FIRST_ROOM) if sequence.cached_tokens is None else left
            sequence.resident = self._store.acquire(policy, sequence.request.conversation, sequence.ids, room)
            if sequence.resident is None:
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)

    def _waits(self, sequence: Sequence, resident: Resident) -> bool:
        """Copies what another sequence has computed of the same prefix; True while it is worth waiting for more."""
        if len(sequence.ids) - resident.computed <= BLOCK:
            return False
        found = self._store.donor(resident)
        if found is None:
            return False
        donor, shared = found
        ready = min(shared, donor.computed)
        # Waiting only for earlier, unfinished requests: then the earliest never waits, and nobody waits in a circle.
        grows = ready < shared and donor.live and donor.order < resident.order
        if grows and shared - resident.computed >= _WORTH_WAITING:
            return True
        if ready - resident.computed >= BLOCK:
            self._store.copy(donor, resident, ready)
        return False

    def _reserve(self, sequence: Sequence, resident: Resident, tokens: int) -> bool:
        """Room for ``tokens`` tokens; where memory is full the latest sequences give theirs up, at last this one."""
        while not self._store.reserve(resident, tokens):
            latest = self.running[-1]
            self._preempt(latest)
            if latest is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        assert sequence.resident is not None
        self._store.discard(sequence.resident)
        sequence.resident = None
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)
