"""Choosing the next token of each row, and its log-probability.

The log-probability is that of the distribution that was really sampled: log-softmax of ``logits / temperature``, after
top-k, top-p and min-p where a request asks for them. Choice is by inverse transform: the smallest id whose cumulated
probability passes a uniform number, which depends on the request's seed and the token's index alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_BLOCK = 128
"""Ids whose probabilities are summed first: the choice then looks into one block only."""


@dataclass
class Choosing:
    """How one row is sampled. ``temperature`` 0: the likeliest id, with its log-probability at temperature 1."""

    seed: int
    index: int
    """Which token of the reply: 0, 1, 2, ..."""
    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None

    @property
    def cuts(self) -> bool:
        return self.temperature > 0 and (self.top_k is not None or bool(self.min_p) or (self.top_p or 1.0) < 1.0)


def uniform(seed: int, index: int) -> float:
    """A number in ``[0, 1)`` with 53 random bits, the same on every machine: BLAKE2b of seed and token index."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def choose(logits: torch.Tensor, rows: Sequence[Choosing]) -> tuple[list[int], list[float]]:
    """``logits`` ``[rows, vocabulary]`` -> an id and its log-probability (natural log, fp32) for each row."""
    logprobs = processed_logprobs(logits, rows)
    sampled = _inverse_transform(logprobs.exp(), [uniform(row.seed, row.index) for row in rows])
    greedy = torch.tensor([row.temperature == 0 for row in rows])
    if bool(greedy.any()):
        sampled = torch.where(greedy, logprobs.argmax(-1), sampled)
    return sampled.tolist(), logprobs.gather(1, sampled[:, None])[:, 0].tolist()


def processed_logprobs(logits: torch.Tensor, rows: Sequence[Choosing]) -> torch.Tensor:
    """Log-probabilities ``[rows, vocabulary]`` of the distributions that are sampled; ``-inf`` where one is cut."""
    temperatures = torch.tensor([row.temperature or 1.0 for row in rows], dtype=torch.float32)
    scaled = logits.float() if bool((temperatures == 1).all()) else logits.float() / temperatures[:, None]
    logprobs = torch.log_softmax(scaled, dim=-1)
    for index, row in enumerate(rows):
        if row.cuts:
            logprobs[index] = _cut(logprobs[index], row)
    return logprobs


def _cut(logprobs: torch.Tensor, row: Choosing) -> torch.Tensor:
    """Top-k and min-p (relative to the likeliest id), then top-p over what is left, then renormalised: as vLLM does.

    ``logprobs`` ``[vocabulary]``; top-p keeps the smallest set of likeliest ids whose probability reaches ``top_p``.
    """
    ordered, ids = torch.sort(logprobs, descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if row.top_k is not None:
        keep[row.top_k :] = False
    if row.min_p:
        keep &= ordered.exp() >= row.min_p * ordered[0].exp()
    if row.top_p is not None and row.top_p < 1.0:
        share = torch.where(keep, ordered.double().exp(), 0.0)
        share /= share.sum()
        keep &= share.cumsum(0) - share < row.top_p
    kept = torch.full_like(logprobs, float("-inf"))
    kept[ids[keep]] = ordered[keep]
    return torch.log_softmax(kept, dim=-1)


def _inverse_transform(probabilities: torch.Tensor, uniforms: list[float]) -> torch.Tensor:
    """Ids ``[rows]``. ``probabilities`` ``[rows, vocabulary]`` are summed in fp64, first by blocks, then inside one."""
    rows, vocabulary = probabilities.shape
    padded = torch.nn.functional.pad(probabilities, (0, -vocabulary % _BLOCK)).view(rows, -1, _BLOCK)
    blocks = padded.sum(-1, dtype=torch.float64).cumsum(-1)
    total = blocks[:, -1:]
    target = torch.tensor(uniforms, dtype=torch.float64)[:, None] * total
    # A product that rounds up to the total would point behind the last possible id.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    # A row without a number in it (logits that are not finite) gets some id: its log-probability tells, and the other
    # rows go on.
    last = _last_possible(padded.sum(-1))
    block = torch.minimum(torch.searchsorted(blocks, target, right=True), last)
    before = torch.where(block > 0, blocks.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = padded[torch.arange(rows), block[:, 0]].double()
    place = torch.searchsorted(inside.cumsum(-1) + before, target, right=True)
    # Rounding can leave the target a hair above the block's own sum: then the last id of the block that is possible.
    return (block * _BLOCK + torch.minimum(place, _last_possible(inside)))[:, 0]


def _last_possible(masses: torch.Tensor) -> torch.Tensor:
    """``[rows, 1]``: the last place of ``masses`` ``[rows, places]`` that is above 0; 0 where none is."""
    return torch.arange(masses.shape[1]).where(masses > 0, 0).amax(-1, keepdim=True)
