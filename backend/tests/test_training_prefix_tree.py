"""The prefix tree: shared parts once, every position found again."""

import random

from ludus_backend.training.prefix_tree import build_tree
from ludus_backend.training.shared_prefix import plan


def test_a_tree_by_hand():
    tree = build_tree([[1, 2, 3], [1, 2, 4, 5], [1, 2], [9]])
    assert [(node.ids, node.start) for node in tree.nodes] == [([1, 2], 0), ([3], 2), ([4, 5], 2), ([9], 0)]
    assert [node.ids for node in tree.shared] == [[1, 2]]
    assert [node.ids for node in tree.tails] == [[3], [4, 5], [9]]
    assert tree.locate(1, 3) == (tree.nodes[2], 1)
    assert tree.locate(2, 1) == (tree.nodes[0], 1)


def random_sequences(seed):
    draw = random.Random(seed)
    return [[draw.randrange(2) for _ in range(draw.randint(1, 12))] for _ in range(30)]


def test_paths_spell_their_sequences_and_no_two_nodes_the_same_prefix():
    for seed in range(20):
        sequences = random_sequences(seed)
        tree = build_tree(sequences)
        for index, sequence in enumerate(sequences):
            assert [token for node in tree.paths[index] for token in node.ids][: len(sequence)] == sequence
            node, offset = tree.locate(index, len(sequence) - 1)
            assert node.ids[offset] == sequence[-1]
        distinct = {tuple(sequence[: end + 1]) for sequence in sequences for end in range(len(sequence))}
        assert sum(len(node.ids) for node in tree.nodes) == len(distinct)


def test_parents_come_first_and_order_of_sequences_does_not_matter():
    sequences = random_sequences(1)
    tree = build_tree(sequences)
    seen: set[int] = set()
    for node in tree.nodes:
        assert node.parent is None or id(node.parent) in seen
        seen.add(id(node))
    turned = build_tree(sequences[::-1])
    assert [(n.ids, n.start) for n in turned.nodes] == [(n.ids, n.start) for n in tree.nodes]


def test_a_plan_keeps_to_its_budget_and_covers_every_sequence():
    sequences = [[group, *range(100, 120), member, *range(member)] for group in range(5) for member in range(6)]
    forests = plan(sequences, 30)
    assert sorted(index for forest in forests for index in forest.members) == list(range(30))
    assert len(forests) > 1
    for forest in forests:
        assert sum(len(node.ids) for node in forest.tree.shared) <= 30
        assert all(sum(len(node.ids) for node in chunk) <= 30 for chunk in forest.chunks)


def test_a_prompt_longer_than_the_budget_is_still_shared():
    (forest,) = plan([[*range(50), 60], [*range(50), 61]], 10)
    assert [len(node.ids) for node in forest.tree.shared] == [50]
