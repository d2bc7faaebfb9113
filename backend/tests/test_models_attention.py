"""Grouped and tree attention against the plain formula with repeated keys and values."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from ludus_backend.models.attention import grouped_attention
from ludus_backend.models.tree_attention import Memory, Stream, tree_attention


def heads(seed, batch, count, length, width=8):
    return torch.randn(batch, count, length, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def repeated(query, key, value, mask):
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask)


@pytest.mark.parametrize("kind", ["none", "bool", "float", "heads"])
def test_grouped_attention_equals_repeated_keys(kind):
    query, key, value = heads(0, 2, 6, 5), heads(1, 2, 2, 7), heads(2, 2, 2, 7)
    seen = torch.ones(5, 7, dtype=torch.bool).tril(2).expand(2, 1, 5, 7)
    additive = torch.randn(2, 1, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    per_head = torch.randn(2, 6, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    mask = {"none": None, "bool": seen, "float": additive, "heads": per_head}[kind]
    expected = repeated(query, key, value, mask)
    torch.testing.assert_close(grouped_attention(query, key, value, mask), expected)


def test_tree_attention_equals_each_path_by_itself():
    # Nodes: root of 3, child of 2, grandchild of 4, a second child of 1, and another root of 2.
    lengths, ancestors = [3, 2, 4, 1, 2], [[], [0], [0, 1], [0], []]
    query, key, value = heads(0, 1, 6, 12), heads(1, 1, 2, 12), heads(2, 1, 2, 12)
    found = tree_attention(query, key, value, Stream(lengths, ancestors), 0).transpose(1, 2)
    starts = [0, 3, 5, 9, 10]
    places = [list(range(start, start + length)) for start, length in zip(starts, lengths, strict=True)]
    for node, above in enumerate(ancestors):
        path = [place for index in [*above, node] for place in places[index]]
        causal = torch.ones(len(path), len(path), dtype=torch.bool).tril()[None, None]
        expected = repeated(query[:, :, path], key[:, :, path], value[:, :, path], causal)
        torch.testing.assert_close(found[:, :, places[node]], expected[:, :, -lengths[node] :])


def test_ancestors_can_come_from_memory():
    query, key, value = heads(0, 1, 4, 9), heads(1, 1, 2, 9), heads(2, 1, 2, 9)
    whole = tree_attention(query, key, value, Stream([3, 2, 4], [[], [0], [0, 1]]), 0)
    memory = Memory([key[:, :, :5]], [value[:, :, :5]], [3, 2])
    part = tree_attention(query[:, :, 5:], key[:, :, 5:], value[:, :, 5:], Stream([4], [[0, 1]], memory), 0)
    torch.testing.assert_close(part, whole[:, 5:])
