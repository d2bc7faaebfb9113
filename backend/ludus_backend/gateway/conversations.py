"""Which served exchange a request continues: found by the text of its messages, inside one episode only.

Two members of a group may say the same words with different ids, so histories are never shared between episodes. What
is kept here is a cache of what clients also hold: losing it costs a fresh render, not training data.
"""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ServedExchange:
    """A prompt and its sample, exactly as the model saw and made them."""

    id: str
    order: tuple[int, int]
    """(when, -choice): among equal texts the newest request counts, and of one request its first choice."""
    prompt_ids: array[int]
    sampled_ids: array[int]


@dataclass(frozen=True)
class Match:
    exchange: ServedExchange
    new_messages: Sequence[Mapping[str, Any]]
    """What the request adds after that exchange's reply."""


@dataclass
class Conversations:
    """The served histories of one episode, keyed by a hash over tools, messages and reply."""

    _by_history: dict[bytes, list[ServedExchange]] = field(default_factory=dict)
    _count: int = 0

    def find(self, chain: Sequence[bytes], messages: Sequence[Mapping[str, Any]], parent: str | None) -> Match | None:
        """The longest served history that ``messages`` extend; ``parent`` settles which, where texts are equal.

        ``chain[k]`` is the hash over the first ``k`` messages (:func:`history_chain`). A named parent that the messages
        do not extend matches nothing: no other exchange is taken in its place.
        """
        for length in range(len(messages), 0, -1):
            served = self._by_history.get(chain[length])
            if served is None:
                continue
            if parent is None:
                return Match(max(served, key=lambda exchange: exchange.order), messages[length:])
            for exchange in served:
                if exchange.id == parent:
                    return Match(exchange, messages[length:])
        return None

    def next_order(self) -> int:
        self._count += 1
        return self._count

    def add(self, chain: Sequence[bytes], reply: Mapping[str, Any], exchange: ServedExchange) -> None:
        """Remembers an exchange under the history that its reply completes."""
        self._by_history.setdefault(extend_chain(chain[-1], reply), []).append(exchange)


def history_chain(
    model: str, tools: Sequence[Mapping[str, Any]] | None, messages: Iterable[Mapping[str, Any]]
) -> list[bytes]:
    """``chain[k]``: SHA-256 chained over model name, tools and the first ``k`` messages in canonical form."""
    chain = [hashlib.sha256(json.dumps([model, tools or []], sort_keys=True).encode()).digest()]
    for message in messages:
        chain.append(extend_chain(chain[-1], message))
    return chain


def extend_chain(head: bytes, message: Mapping[str, Any]) -> bytes:
    """One message further. Equal content (null, "" and missing), byte-for-byte tool arguments; reasoning left out,
    because clients drop it when they send a reply back."""
    calls = [
        [call.get("id"), call["function"]["name"], call["function"]["arguments"]]
        for call in message.get("tool_calls") or []
    ]
    canonical = [message["role"], message.get("content") or "", calls, message.get("tool_call_id"), message.get("name")]
    return hashlib.sha256(head + json.dumps(canonical).encode()).digest()


def prefix_hash(ids: Iterable[int]) -> str:
    """SHA-256 (hex) over ids as little-endian uint32: the protocol's name for a prompt."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return hashlib.sha256(packed.tobytes()).hexdigest()
