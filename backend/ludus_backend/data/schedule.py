"""The learning rate of each update of a supervised fine-tuning."""

from __future__ import annotations

import math

from ludus_backend.protocol import SftConfig


def learning_rate(update: int, updates: int, config: SftConfig) -> float:
    """The rate of update ``update`` (from 0) of ``updates``.

    Warm-up: over ``w = floor(warmupRatio * updates)`` updates it is ``(update + 1) / (w + 1)`` of the full rate: no
    update is wasted on a rate of 0. After it, with ``p = (update - w) / (updates - w)``: ``constant`` 1, ``linear``
    ``1 - p``, ``cosine`` ``(1 + cos(pi p)) / 2`` of it (as transformers' schedules decay).
    """
    warm = math.floor(config.warmup_ratio * updates)
    if update < warm:
        return config.learning_rate * (update + 1) / (warm + 1)
    progress = (update - warm) / (updates - warm)
    share = {"constant": 1.0, "linear": 1.0 - progress, "cosine": (1.0 + math.cos(math.pi * progress)) / 2.0}
    return config.learning_rate * share[config.schedule]
