"""Which examples make up which update."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ludus_backend.protocol import SftConfig


def batches(lengths: Sequence[int], config: SftConfig) -> list[list[int]]:
    """Indices of examples for each update, over all epochs; ``lengths`` in tokens, prompts included.

    An update is filled in order until the next example would exceed ``tokensPerStep``; a longer one stands alone. No
    update spans two epochs, so every example is seen exactly once in each. Depends on lengths and config only.
    """
    order = list(range(len(lengths)))
    draw = random.Random(config.seed)
    made: list[list[int]] = []
    for _ in range(config.epochs):
        if config.shuffle:
            draw.shuffle(order)
        room = 0
        for index in order:
            if lengths[index] > room:
                made.append([])
                room = config.tokens_per_step
            made[-1].append(index)
            room -= lengths[index]
    return made
