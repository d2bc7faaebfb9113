"""Supervised updates for tests; everything follows from seeds."""

from __future__ import annotations

import random

from training_samples import VOCABULARY

from ludus_backend.engine_messages import SftRow, SftUpdate
from ludus_backend.protocol import SftConfig


def sft_rows(seed: int = 0, count: int = 6) -> list[SftRow]:
    """Conversations that share a beginning, of several lengths, with a few trained places each."""
    draw = random.Random(seed)
    system = [draw.randrange(VOCABULARY) for _ in range(6)]
    made = []
    for _ in range(count):
        ids = system + [draw.randrange(VOCABULARY) for _ in range(draw.randint(8, 30))]
        made.append(SftRow(ids=ids, trained=sorted(draw.sample(range(7, len(ids)), draw.randint(2, 6)))))
    return made


def sft_update(
    step: int, seed: int = 0, key: str | None = None, rows: list[SftRow] | None = None, rate: float = 1e-2
) -> SftUpdate:
    config = SftConfig(learning_rate=rate)
    return SftUpdate(key=key or f"sft:{step}", expected_step=step, rows=rows or sft_rows(seed), config=config)
