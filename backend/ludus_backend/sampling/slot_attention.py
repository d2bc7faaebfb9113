"""Attention that reads and writes the slots: given to transformers under a name, so any causal model can use it.

The model is called without a cache of its own: this function gets the keys and values of the new tokens, writes them
into their slots and attends over what is there. It needs ``slots=ForwardPlan`` among the forward call's arguments.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers import AttentionInterface

from ludus_backend.sampling.forward_plan import ForwardPlan, Group

SLOT_ATTENTION = "ludus_slots"
"""Name for ``config._attn_implementation``. It has no mask function, so transformers makes no mask."""


def slot_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    plan: ForwardPlan,
    layer: int,
    scaling: float,
    window: int | None = None,
) -> torch.Tensor:
    """``query`` ``[1, heads, tokens, D]``, ``key`` and ``value`` ``[1, kv_heads, tokens, D]``: the plan's new tokens.

    Returns ``[1, tokens, heads, D]``.
    """
    _, heads, tokens, width = query.shape
    kv_heads = key.shape[1]
    for part, new in (("keys", key), ("values", value)):
        stream = new[0].transpose(0, 1)
        for write in plan.writes:
            rows = getattr(write.slab, part)[layer].view(-1, width)
            rows.index_copy_(0, write.targets, stream[write.first : write.last].reshape(-1, width))
    flat = query[0].transpose(0, 1).reshape(tokens * heads, width)
    outputs = []
    for group in plan.groups:
        folded = flat.index_select(0, group.gather).view((group.high - group.low) * kv_heads, -1, width)
        outputs.append(_attend(folded, group, layer, kv_heads, scaling, window).reshape(-1, width))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined.index_select(0, plan.scatter).view(1, tokens, heads, width)


def _attend(
    folded: torch.Tensor, group: Group, layer: int, kv_heads: int, scaling: float, window: int | None
) -> torch.Tensor:
    """``folded`` ``[rows * kv_heads, folds * queries, D]`` against the group's slots; the same shape back."""
    rows, lanes, width = group.high - group.low, folded.shape[1], folded.shape[2]
    keys = group.slab.keys[layer, group.low : group.high].view(rows * kv_heads, -1, width)[:, : group.length]
    values = group.slab.values[layer, group.low : group.high].view(rows * kv_heads, -1, width)[:, : group.length]
    scores = torch.bmm(folded, keys.transpose(1, 2)).view(rows, kv_heads, lanes, group.length)
    scores.mul_(scaling).add_(group.mask(window, lanes // group.queries))
    weights = torch.softmax(scores, dim=-1).view(rows * kv_heads, lanes, group.length)
    return torch.bmm(weights, values)


def _attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    *,
    slots: ForwardPlan,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The function transformers calls. Dropout is not supported: it is 0 when sampling."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = cast(int, module.layer_idx)
    return slot_attention(query, key, value, slots, layer, scale, sliding_window), None


def register() -> None:
    """Makes ``SLOT_ATTENTION`` known to transformers. Idempotent."""
    AttentionInterface.register(SLOT_ATTENTION, _attention_forward)
