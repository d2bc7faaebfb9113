"""The seam between the engine and whatever samples: requests in, tokens out, adapters published and retired."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Finish = Literal["stop", "length"]


@dataclass
class SampleRequest:
    """One continuation to sample. The fields mean what ``engine_messages.Generate`` says of them."""

    id: int
    policy: str
    prompt_ids: list[int]
    max_tokens: int
    conversation: str | None = None
    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    stop: list[str] = field(default_factory=list)


@dataclass
class Sample:
    """A finished reply. ``logprobs``: one per id, natural log, of the processed distribution."""

    ids: list[int]
    logprobs: list[float]
    finish: Finish
    cached_tokens: int
    """Prompt tokens that were not computed for this request."""


@dataclass
class Outcome:
    """What one step brought a request: a new token, and its whole sample where that token was the last."""

    request: int
    token: int
    logprob: float
    sample: Sample | None = None


@dataclass
class Failure:
    """A request that cannot be sampled after all."""

    request: int
    error: Exception


class Sampler(Protocol):
    """Generates from ids with a named policy. Everything happens in the caller's thread, inside ``step``."""

    def publish(self, policy: str, adapter: Path) -> None:
        """Makes ``policy`` (``name@step``) available, or raises ``LudusError(adapter_not_applied)``."""

    def retire(self, policy: str) -> None:
        """Forgets the policy, its keys and values. Unknown names are fine."""

    def knows(self, policy: str) -> bool:
        """Whether requests for ``policy`` are accepted."""

    def in_use(self, policy: str) -> bool:
        """Whether a request for ``policy`` has not ended yet."""

    def submit(self, request: SampleRequest) -> None:
        """Queues it. Errors: ``unknown_model``, ``context_length_exceeded``, ``too_large``, ``invalid_request``."""

    def cancel(self, request: int) -> bool:
        """Drops a request; False where it is not (or no longer) here. No outcome follows."""

    def abort_running(self) -> list[int]:
        """Drops the requests that have begun, after ``step`` raised; returns their ids. No outcome follows."""

    def forget(self, conversation: str) -> None:
        """Frees what is kept for a conversation."""

    @property
    def waiting(self) -> int:
        """Requests that have not begun."""

    @property
    def running(self) -> int:
        """Requests that have begun."""

    def step(self) -> list[Outcome | Failure]:
        """One forward pass for as many requests as fit. An empty list does not mean that nothing is left."""
