"""A prefix tree over token sequences: what several sequences share at their beginning stands in it once.

The members of a group share their prompt, groups share a system prompt, and same-seed episodes that took the same first
moves share those too. An update computes each node once; loss and gradient stay those of the plain sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Node:
    """A run of tokens without a branch."""

    ids: list[int]
    start: int
    """Position of its first token in every sequence that runs through it."""
    parent: Node | None
    children: dict[int, Node] = field(default_factory=dict)
    """By first token."""

    def ancestors(self) -> list[Node]:
        """From the root down, without the node itself."""
        found: list[Node] = []
        above = self.parent
        while above is not None:
            found.append(above)
            above = above.parent
        return found[::-1]


@dataclass
class PrefixTree:
    """The nodes in depth-first order (parents first) and, for each sequence, the nodes it runs through."""

    nodes: list[Node]
    paths: list[list[Node]]

    @property
    def shared(self) -> list[Node]:
        """Nodes that others continue: their keys and values are needed again. Depth first."""
        return [node for node in self.nodes if node.children]

    @property
    def tails(self) -> list[Node]:
        """Nodes that nothing continues."""
        return [node for node in self.nodes if not node.children]

    def locate(self, sequence: int, position: int) -> tuple[Node, int]:
        """The node that holds ``position`` of ``sequence``, and the offset inside it."""
        for node in self.paths[sequence]:
            if position < node.start + len(node.ids):
                return node, position - node.start
        raise IndexError(f"sequence {sequence} has no position {position}")


def build_tree(sequences: Sequence[Sequence[int]]) -> PrefixTree:
    """Builds the tree; the order of its nodes depends on the set of sequences, not on their order. O(all tokens)."""
    roots: dict[int, Node] = {}
    ends: list[Node] = []
    for sequence in sequences:
        ends.append(_insert(roots, list(sequence)))
    nodes: list[Node] = []
    pending = [roots[first] for first in sorted(roots, reverse=True)]
    while pending:
        node = pending.pop()
        nodes.append(node)
        pending.extend(node.children[first] for first in sorted(node.children, reverse=True))
    # Paths are read from the leaves at the end: a later insertion may have split a node on an earlier path.
    return PrefixTree(nodes, [[*end.ancestors(), end] for end in ends])


def _insert(roots: dict[int, Node], ids: list[int]) -> Node:
    siblings, parent, position = roots, None, 0
    while True:
        node = siblings.get(ids[position])
        if node is None:
            node = Node(ids[position:], position, parent)
            siblings[ids[position]] = node
            return node
        common = _common(node.ids, ids, position)
        position += common
        if common < len(node.ids):
            node = _split(node, common)
            siblings[node.ids[0]] = node
        if position == len(ids):
            return node
        siblings, parent = node.children, node


def _common(run: list[int], ids: list[int], position: int) -> int:
    if ids[position : position + len(run)] == run:
        return len(run)
    longest = min(len(run), len(ids) - position)
    return next((i for i in range(longest) if run[i] != ids[position + i]), longest)


def _split(node: Node, at: int) -> Node:
    """Cuts ``node`` after ``at`` tokens; the returned upper half takes its place, the node itself keeps the rest."""
    upper = Node(node.ids[:at], node.start, node.parent, {node.ids[at]: node})
    node.ids, node.start, node.parent = node.ids[at:], node.start + at, upper
    return upper
