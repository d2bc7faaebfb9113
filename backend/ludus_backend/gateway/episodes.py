"""Episodes: the scope of conversation identity, of policy leases and of request ids, until deleted or idle too long."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ludus_backend.gateway.conversations import Conversations
from ludus_backend.gateway.models import ServedModel

if TYPE_CHECKING:
    from ludus_backend.gateway.generation import Generation

KEY_PREFIX = "ludus-episode-"
IMPLICIT_TTL_SECONDS = 3600.0
_SWEEP_SECONDS = 5.0


@dataclass
class EpisodeState:
    """One episode. ``leases``: model name to the ``name@step`` that its first call resolved to."""

    id: str
    key: str
    ttl_seconds: float
    last_used: float
    leases: dict[str, str] = field(default_factory=dict)
    conversations: Conversations = field(default_factory=Conversations)
    kv_key: str = field(default_factory=lambda: secrets.token_hex(8))
    """Under which the engine keeps its KV caches; not the id, which a later episode may have again."""
    requests: dict[str, tuple[bytes, Generation]] = field(default_factory=dict)
    """Finished and running generations by request id, with the hash of the body they answer."""
    running: set[Generation] = field(default_factory=set)

    def policy_of(self, model: ServedModel, *, latest: bool) -> str:
        """The leased policy; ``latest`` looks past the lease without changing it."""
        return model.newest if latest else self.leases.setdefault(model.info.name, model.newest)


class Episodes:
    """All open episodes. ``forget(kv_key)`` is called for each one that ends."""

    def __init__(self, forget: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._forget = forget
        self._clock = clock
        self._by_id: dict[str, EpisodeState] = {}
        self._by_key: dict[str, EpisodeState] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, episode_id: str | None, ttl_seconds: float = IMPLICIT_TTL_SECONDS) -> EpisodeState:
        """Opens an episode, or finds it again under its id: a repeat after a lost answer gets the same key."""
        known = self._by_id.get(episode_id) if episode_id is not None else None
        if known is not None:
            known.ttl_seconds, known.last_used = ttl_seconds, self._clock()
            return known
        opened = EpisodeState(
            id=episode_id if episode_id is not None else f"episode-{secrets.token_hex(12)}",
            key=KEY_PREFIX + secrets.token_urlsafe(24),
            ttl_seconds=ttl_seconds,
            last_used=self._clock(),
        )
        self._by_id[opened.id] = self._by_key[opened.key] = opened
        return opened

    def by_id(self, episode_id: str) -> EpisodeState:
        """The episode a request names in its header, opened with the default TTL where it is not open."""
        known = self._by_id.get(episode_id)
        if known is None:
            return self.open(episode_id)
        known.last_used = self._clock()
        return known

    def by_key(self, key: str) -> EpisodeState | None:
        """The episode a key stands for. Keys are random (192 bits): a look-up that takes longer reveals nothing."""
        known = self._by_key.get(key)
        if known is not None:
            known.last_used = self._clock()
        return known

    def leased_steps(self, model: str) -> list[int]:
        """Steps of ``model`` that open episodes hold, ascending."""
        held = (episode.leases.get(model) for episode in self._by_id.values())
        return sorted({int(policy.rpartition("@")[2]) for policy in held if policy is not None})

    async def close(self, episode_id: str) -> None:
        """Ends leases, stops what still samples for it, and frees ids and KV. Closing what is not open is no error."""
        closed = self._by_id.pop(episode_id, None)
        if closed is None:
            return
        del self._by_key[closed.key]
        running = list(closed.running)
        for generation in running:
            generation.abandon()
        await asyncio.gather(*(generation.ended() for generation in running))
        self._forget(closed.kv_key)

    async def sweep(self) -> None:
        """Closes every episode that has been idle longer than its TTL; one that still samples is not idle."""
        now = self._clock()
        for episode in list(self._by_id.values()):
            if episode.running:
                episode.last_used = now
            elif now - episode.last_used > episode.ttl_seconds:
                await self.close(episode.id)

    async def keep_sweeping(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await self.sweep()
