"""Rows from exchanges: exact ids, masks, and errors that name the field."""

import hashlib

import pytest
from training_samples import VOCABULARY, Talk, random_groups

from ludus_backend.errors import LudusError
from ludus_backend.protocol import TrainGroup
from ludus_backend.training.rows import build_rows, prefix_hash


def rows_of(talk: Talk, **options):
    group = TrainGroup(id="g", trajectories=[talk.trajectory("t", 1.0)])
    return build_rows([group], options.get("vocabulary", VOCABULARY), options.get("context_length", 100))


def test_prefix_hash_is_sha256_of_little_endian_uint32():
    assert prefix_hash([1, 258]) == hashlib.sha256(b"\x01\0\0\0\x02\x01\0\0").hexdigest()


def test_tok_02_sampled_ids_are_trained_as_they_are():
    talk = Talk()
    talk.say([9], [1, 2], [-0.4, -0.9])
    (row,) = rows_of(talk)
    assert [i for i, on in zip(row.ids, row.mask, strict=True) if on] == [1, 2]
    assert row.logprobs == [0.0, -0.4, -0.9]


def test_tok_06_only_sampled_tokens_carry_loss():
    talk = Talk()
    first = talk.say([1, 1], [7, 8, 2])
    talk.say([3, 3], [9, 2], parent=first)
    (row,) = rows_of(talk)
    assert row.ids == [1, 1, 7, 8, 2, 3, 3, 9, 2]
    assert [int(on) for on in row.mask] == [0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert row.trained_tokens == 5


def test_tok_05_a_separator_that_was_not_sampled_has_mask_0():
    talk = Talk()
    first = talk.say([5], [40, 41, 2])
    talk.say([10, 50, 51], [6], parent=first)
    (row,) = rows_of(talk)
    assert row.ids[1:7] == [40, 41, 2, 10, 50, 51]
    assert [int(on) for on in row.mask[1:7]] == [1, 1, 1, 0, 0, 0]


def test_tok_01_a_history_that_is_no_extension_makes_a_second_row():
    talk = Talk()
    talk.say([1, 2], [3, 4])
    talk.say([1, 2, 4, 5], [6])
    first, second = rows_of(talk)
    assert first.ids == [1, 2, 3, 4]
    assert second.ids == [1, 2, 4, 5, 6]
    assert first.trained_tokens + second.trained_tokens == 3


def test_a_second_child_of_one_parent_repeats_the_history_with_mask_0():
    talk = Talk()
    root = talk.say([1], [2])
    talk.say([3], [4], parent=root)
    talk.say([5], [6], parent=root)
    first, second = rows_of(talk)
    assert first.ids == [1, 2, 3, 4] and first.mask == [False, True, False, True]
    assert second.ids == [1, 2, 5, 6] and second.mask == [False, False, False, True]


def test_every_sampled_token_is_trained_exactly_once():
    groups = random_groups(3)
    sampled = sum(len(e.sampled_ids) for g in groups for t in g.trajectories for e in t.exchanges)
    assert sum(row.trained_tokens for row in build_rows(groups, VOCABULARY, 512)) == sampled


def test_an_exchange_that_is_not_trained_has_mask_0():
    talk = Talk()
    first = talk.say([1], [2, 3], trained=False)
    talk.say([4], [5], parent=first)
    (row,) = rows_of(talk)
    assert row.mask == [False, False, False, False, True]


def test_rows_keep_step_and_temperature_of_each_sample():
    talk = Talk(step=4, temperature=0.7)
    talk.say([1], [2])
    (row,) = rows_of(talk)
    assert row.steps == [-1, 4] and row.temperatures == [1.0, 0.7]


def broken(change, **options):
    talk = Talk()
    first = talk.say([1, 2], [3, 4])
    talk.say([5], [6], parent=first)
    talk.exchanges[1] = talk.exchanges[1].model_copy(update=change)
    with pytest.raises(LudusError) as caught:
        rows_of(talk, **options)
    detail = caught.value.detail
    assert detail.code == "invalid_request" and detail.expected and detail.advice
    return detail


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"logprobs": []}, "logprobs"),
        ({"logprobs": [-1.0, -1.0]}, "logprobs"),
        ({"sampled_ids": [VOCABULARY]}, "sampledIds[0]"),
        ({"prompt_ids": [5, VOCABULARY]}, "promptIds[1]"),
        ({"prefix_hash": "0" * 64}, "prefixHash"),
        ({"prompt_ids": [6]}, "prefixHash"),
        ({"parent": "e7"}, "parent"),
        ({"parent": None, "prompt_ids": []}, "promptIds"),
        ({"id": "e0"}, "id"),
        ({"policy": "demo"}, "policy"),
    ],
)
def test_errors_name_the_field(change, field):
    assert broken(change).field == f"groups[0].trajectories[0].exchanges[1].{field}"


def test_tok_11_a_row_beyond_the_context_is_refused_not_cut():
    detail = broken({}, context_length=5)
    assert detail.field == "groups[0].trajectories[0].exchanges[1].sampledIds" and detail.value == "6"
