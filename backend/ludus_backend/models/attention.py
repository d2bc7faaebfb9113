"""Grouped-query attention that never repeats keys and values.

With ``g = query heads / key-value heads``, transformers' ``sdpa`` copies K and V ``g`` times whenever a mask is given.
Here the ``g`` query heads that share a key-value head are laid one after the other along the query axis instead:
``[batch, Hq, Q, D] -> [batch, Hkv, g * Q, D]``. The numbers are the same; the copies, and their gradients, are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from ludus_backend.errors import LudusError

GROUPED_ATTENTION = "ludus_grouped"
"""Name under which transformers finds this function (``attn_implementation=GROUPED_ATTENTION``)."""


def grouped_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None = None,
) -> torch.Tensor:
    """Attention of ``query`` ``[batch, Hq, Q, D]`` over ``key`` and ``value`` ``[batch, Hkv, K, D]``.

    ``mask``: None (everything visible), bool (True = visible) or additive float, shape ``[batch or 1, 1 or Hq, Q, K]``.
    ``scaling`` defaults to ``D ** -0.5``. Returns ``[batch, Hq, Q, D]``.
    """
    batch, heads, queries, width = query.shape
    shared = key.shape[1]
    groups = heads // shared
    folded = query.reshape(batch, shared, groups * queries, width)
    if mask is not None and groups > 1:
        if mask.shape[1] == 1:
            mask = mask.repeat(1, 1, groups, 1)
        else:
            mask = mask.reshape(mask.shape[0], shared, groups * queries, mask.shape[-1])
    attended = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return attended.reshape(batch, heads, queries, width)


def _attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The function transformers calls; returns ``[batch, Q, Hq, D]``. Dropout is not supported: it is 0 here."""
    refuse_options(options, ("softcap", "s_aux", "position_bias"))
    attended = grouped_attention(query, key, value, attention_mask, scaling)
    return attended.transpose(1, 2).contiguous(), None


def _attention_mask(*arguments: Any, **options: Any) -> torch.Tensor | None:
    """A real mask, always: the folded query axis has no meaning for SDPA's own ``is_causal``."""
    return sdpa_mask(*arguments, **{**options, "allow_is_causal_skip": False})


def refuse_options(options: Mapping[str, Any], unsupported: Sequence[str]) -> None:
    """What an architecture asks of attention and does not get must be an error, not another model.

    Raises ``LudusError(invalid_request)``.
    """
    for name in unsupported:
        if options.get(name) is not None:
            raise LudusError(
                "invalid_request",
                "the base model needs a kind of attention that this backend does not have",
                field="base.id",
                value=name,
                expected="plain softmax attention, as in Llama or Qwen",
                advice="choose another base model",
            )


def register() -> None:
    """Makes ``GROUPED_ATTENTION`` known to transformers. Idempotent."""
    AttentionInterface.register(GROUPED_ATTENTION, _attention_forward)
    AttentionMaskInterface.register(GROUPED_ATTENTION, _attention_mask)
