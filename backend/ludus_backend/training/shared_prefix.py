"""Forward and backward over many sequences that share prefixes, each shared part computed once.

The sequences become a prefix tree. Its shared nodes are one forward pass whose keys and values then stand as *leaves*:
the tails follow in length-sorted chunks of a token budget, and the graph of a chunk is freed before the next begins.
What the chunks sent back into the leaves goes, at the end, once through the shared nodes. The gradient is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ludus_backend.models.tree_attention import Memory, Stream
from ludus_backend.training.prefix_tree import Node, PrefixTree, build_tree

Visit = Callable[[torch.Tensor, list[int], list[int]], None]
"""Receives hidden states ``[tokens, hidden]``, rows of it, and for each row the entry of the caller's positions that it
answers; one row may answer several entries. With gradients on, the hidden states are a leaf: the visitor calls
``backward`` on its loss."""


@dataclass
class Forest:
    """Sequences that are computed together."""

    tree: PrefixTree
    members: list[int]
    """Indices of its sequences in the caller's list."""
    chunks: list[list[Node]]
    """The tails, shortest first, at most ``budget`` tokens together (a longer one stands alone)."""

    @property
    def tokens(self) -> int:
        """Tokens that pass through the model: the tree's, not the sequences'."""
        return sum(len(node.ids) for node in self.tree.nodes)


def plan(sequences: Sequence[Sequence[int]], budget: int) -> list[Forest]:
    """Splits the work so that neither the shared nodes nor a chunk of tails hold more than ``budget`` tokens.

    One sequence that is longer than the budget raises it to its own length: a plain pass would need as much. Depends on
    the set of sequences, not on their order.
    """
    if not sequences:
        return []
    order = sorted(range(len(sequences)), key=lambda index: tuple(sequences[index]))
    return _forests(sequences, order, max(budget, max(map(len, sequences))), budget)


def _forests(sequences: Sequence[Sequence[int]], members: list[int], largest: int, budget: int) -> list[Forest]:
    tree = build_tree([sequences[index] for index in members])
    if len(members) > 1 and sum(len(node.ids) for node in tree.shared) > largest:
        cut = _cheapest_cut(sequences, members)
        return [
            *_forests(sequences, members[:cut], largest, budget),
            *_forests(sequences, members[cut:], largest, budget),
        ]
    tails = sorted(tree.tails, key=lambda node: len(node.ids))
    chunks: list[list[Node]] = []
    filled = budget
    for tail in tails:
        if filled + len(tail.ids) > budget:
            chunks.append([])
            filled = 0
        chunks[-1].append(tail)
        filled += len(tail.ids)
    return [Forest(tree, members, chunks)]


def _cheapest_cut(sequences: Sequence[Sequence[int]], members: list[int]) -> int:
    """Where to halve sorted sequences: between the neighbours that share least, nearest the middle."""

    def shared(cut: int) -> int:
        left, right = sequences[members[cut - 1]], sequences[members[cut]]
        length = min(len(left), len(right))
        return next((i for i in range(length) if left[i] != right[i]), length)

    middle = len(members) / 2
    return min(range(1, len(members)), key=lambda cut: (shared(cut), abs(cut - middle)))


class SharedPrefixPass:
    """Runs forests through ``body``: a transformers decoder without head whose attention is ``TREE_ATTENTION``."""

    def __init__(self, body: torch.nn.Module, device: torch.device) -> None:
        self._body = body
        self._device = device

    def run(
        self, forest: Forest, positions: Sequence[tuple[int, int]], visit: Visit, progress: Callable[[int], None]
    ) -> None:
        """Visits the hidden state at every ``(sequence, position)``; with gradients on, goes backward too.

        ``sequence`` is an index in the caller's list; entries of other forests are passed over. ``progress`` hears the
        tokens that were done since the last call.
        """
        shared = forest.tree.shared
        where = _places(forest, positions)
        number = {id(node): index for index, node in enumerate(shared)}
        above = {id(node): [number[id(a)] for a in node.ancestors()] for node in forest.tree.nodes}
        trunk, memory = None, None
        if shared:
            trunk = Stream([len(node.ids) for node in shared], [above[id(node)] for node in shared])
            trunk_hidden = self._forward(shared, trunk)
            memory = Memory([_leaf(k) for k in trunk.keys], [_leaf(v) for v in trunk.values], list(trunk.lengths))
            progress(sum(trunk.lengths))
        for chunk in forest.chunks:
            lengths = [len(node.ids) for node in chunk]
            hidden = self._forward(chunk, Stream(lengths, [above[id(node)] for node in chunk], memory))
            gradient = _visit(hidden, chunk, where, visit)
            if gradient is not None:
                hidden.backward(gradient)
            progress(sum(lengths))
        if trunk is not None and memory is not None:
            gradient = _visit(trunk_hidden, shared, where, visit)
            sources = [*trunk.keys, *trunk.values, trunk_hidden]
            gradients = [*(k.grad for k in memory.keys), *(v.grad for v in memory.values), gradient]
            pairs = [(source, g) for source, g in zip(sources, gradients, strict=True) if g is not None]
            if pairs and torch.is_grad_enabled():
                torch.autograd.backward([source for source, _ in pairs], [g for _, g in pairs])

    def _forward(self, nodes: Sequence[Node], stream: Stream) -> torch.Tensor:
        """Hidden states ``[tokens of nodes, hidden]``."""
        ids = [token for node in nodes for token in node.ids]
        places = [node.start + offset for node in nodes for offset in range(len(node.ids))]
        output = self._body(
            input_ids=torch.tensor([ids], device=self._device),
            position_ids=torch.tensor([places], device=self._device),
            use_cache=False,
            tree=stream,
        )
        return output.last_hidden_state[0]


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(torch.is_grad_enabled())


def _places(forest: Forest, positions: Sequence[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
    """For each node (by identity) the ``(offset, entry of positions)`` that it holds."""
    local = {member: index for index, member in enumerate(forest.members)}
    found: dict[int, list[tuple[int, int]]] = {}
    for entry, (sequence, position) in enumerate(positions):
        if sequence in local:
            node, offset = forest.tree.locate(local[sequence], position)
            found.setdefault(id(node), []).append((offset, entry))
    return found


def _visit(
    hidden: torch.Tensor, nodes: Sequence[Node], where: dict[int, list[tuple[int, int]]], visit: Visit
) -> torch.Tensor | None:
    """Calls ``visit`` where the nodes hold positions; returns the gradient of ``hidden``, or None."""
    rows: list[int] = []
    entries: list[int] = []
    start = 0
    for node in nodes:
        for offset, entry in where.get(id(node), []):
            rows.append(start + offset)
            entries.append(entry)
        start += len(node.ids)
    if not rows:
        return None
    leaf = _leaf(hidden)
    visit(leaf, rows, entries)
    return leaf.grad
