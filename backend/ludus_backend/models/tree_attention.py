"""Attention over a prefix tree, laid out as one stream of tokens without padding.

The nodes of the tree follow each other along the sequence axis (batch 1), so every linear layer sees exactly the tokens
that exist. Only attention knows the tree: the tokens of a node see their ancestors and, causally, their own node. Where
the ancestors were computed in an earlier stream, their keys and values come in as tensors (``Memory``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from ludus_backend.models.attention import refuse_options

TREE_ATTENTION = "ludus_tree"
"""Name under which transformers finds this function; its forward calls need ``tree=Stream(...)``."""


@dataclass
class Memory:
    """Keys and values of a stream, one pair a layer, each ``[1, Hkv, tokens, D]``, and the lengths of its nodes."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    lengths: list[int]


@dataclass
class Stream:
    """One forward pass: nodes that follow each other, and what each of them sees.

    ``lengths[i]``: tokens of node i. ``ancestors[i]``: its ancestors from the root down, as indices into ``memory``
    where there is one, else into this stream (always smaller than i).
    """

    lengths: Sequence[int]
    ancestors: Sequence[Sequence[int]]
    memory: Memory | None = None
    keys: list[torch.Tensor] = field(default_factory=list)
    """Filled by the forward pass, one entry a layer: ``[1, Hkv, tokens, D]``, position-encoded, in the graph."""
    values: list[torch.Tensor] = field(default_factory=list)
    _masks: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def mask(self, queries: int, before: int, groups: int, like: torch.Tensor) -> torch.Tensor | None:
        """Additive ``[groups * queries, before + queries]``: all ancestors, and the own node causally."""
        if queries == 1:
            return None
        known = self._masks.get((queries, before))
        if known is None:
            full = torch.full((queries, before + queries), float("-inf"), dtype=like.dtype, device=like.device)
            known = full.triu_(before + 1).repeat(groups, 1)
            self._masks[queries, before] = known
        return known


def tree_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    stream: Stream,
    layer: int,
    scaling: float | None = None,
) -> torch.Tensor:
    """``query`` ``[1, Hq, N, D]``, ``key`` and ``value`` ``[1, Hkv, N, D]`` with N the stream's tokens.

    Returns ``[1, N, Hq, D]``. Query heads that share a key-value head are folded into the query axis, so nothing is
    repeated. Plain autograd operations throughout.
    """
    _, heads, total, width = query.shape
    shared = key.shape[1]
    groups = heads // shared
    lengths = list(stream.lengths)
    queries = query.view(1, shared, groups, total, width).split(lengths, dim=3)
    own_keys, own_values = key.split(lengths, dim=2), value.split(lengths, dim=2)
    if stream.memory is None:
        past_keys, past_values = own_keys, own_values
    else:
        past_keys = stream.memory.keys[layer].split(stream.memory.lengths, dim=2)
        past_values = stream.memory.values[layer].split(stream.memory.lengths, dim=2)
    parts = []
    for index, length in enumerate(lengths):
        above = stream.ancestors[index]
        keys = torch.cat([*(past_keys[i] for i in above), own_keys[index]], dim=2)
        values = torch.cat([*(past_values[i] for i in above), own_values[index]], dim=2)
        folded = queries[index].reshape(1, shared, groups * length, width)
        mask = stream.mask(length, keys.shape[2] - length, groups, query)
        seen = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
        parts.append(seen.view(1, shared, groups, length, width))
    return torch.cat(parts, dim=3).view(1, heads, total, width).transpose(1, 2)


def _attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    tree: Stream,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The function transformers calls, layer after layer."""
    refuse_options(options, ("softcap", "s_aux", "position_bias", "sliding_window"))
    tree.keys.append(key)
    tree.values.append(value)
    layer = cast(int, module.layer_idx)
    return tree_attention(query, key, value, tree, layer, scaling), None


def register() -> None:
    """Makes ``TREE_ATTENTION`` known to transformers (without a mask function: it makes its own). Idempotent."""
    AttentionInterface.register(TREE_ATTENTION, _attention_forward)
