"""Advantages: by group id, population std, nothing invented."""

import pytest
from training_samples import Talk

from ludus_backend.errors import LudusError
from ludus_backend.protocol import TrainGroup
from ludus_backend.training.advantages import compute_advantages


def group(name, rewards, dropped=None, silent=()):
    trajectories = []
    for index, reward in enumerate(rewards):
        talk = Talk()
        talk.say([1], [2], trained=index not in silent)
        trajectories.append(talk.trajectory(f"{name}.{index}", reward))
    return TrainGroup(id=name, trajectories=trajectories, dropped=dropped)


def test_adv_06_population_std():
    found = compute_advantages([group("a", [1, 0, 0, 1])], "group").advantages[0]
    assert found == pytest.approx([0.999998, -0.999998, -0.999998, 0.999998], abs=1e-7)


def test_adv_03_scorable_members_only():
    found = compute_advantages([group("a", [1, 0.5, 0])], "group").advantages[0]
    assert found == pytest.approx([1.2247, 0.0, -1.2247], abs=1e-4)


def test_adv_01_equal_rewards_carry_no_signal_and_are_counted():
    found = compute_advantages([group("a", [0.7] * 4), group("b", [0.1 + 0.2, 0.3])], "group")
    assert found.advantages == [None, None]
    assert found.reasons == {"zero_variance": 2}
    assert found.zero_variance_share == 1.0


def test_adv_08_groups_are_formed_by_id_never_by_text():
    # Both scenarios have the same prompt ids; sizes 3 and 2.
    found = compute_advantages([group("a", [1, 0, 0]), group("b", [1, 1])], "none")
    assert found.advantages[0] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert found.advantages[1] is None and found.reasons == {"zero_variance": 1}


def test_adv_08_one_id_twice_is_refused():
    with pytest.raises(LudusError) as caught:
        compute_advantages([group("a", [1, 0]), group("b", [1, 0]), group("a", [0, 1])], "group")
    assert caught.value.detail.field == "groups[2].id" and "groups[0]" in caught.value.detail.expected


def test_adv_05_a_group_of_one_is_too_small():
    found = compute_advantages([group("a", [1.0])], "group")
    assert found.advantages == [None] and found.reasons == {"group_too_small": 1}
    assert found.zero_variance_share == 0.0


def test_batch_scaling_divides_by_the_std_of_all_centred_rewards():
    # Centred: [1, -1] and [3, -3]; population std sqrt(20 / 4) = 2.236068.
    found = compute_advantages([group("a", [2, 0]), group("b", [6, 0]), group("c", [5, 5])], "batch")
    assert found.advantages[0] == pytest.approx([0.447213, -0.447213], abs=1e-6)
    assert found.advantages[1] == pytest.approx([1.341640, -1.341640], abs=1e-6)


def test_a_group_dropped_by_the_sender_keeps_its_cause():
    found = compute_advantages([group("a", [1, 1], dropped="all_solved"), group("b", [1, 0])], "group")
    assert found.advantages[0] is None and found.reasons == {"dropped_all_solved": 1}
    assert found.zero_variance_share == 0.5


def test_tok_12_a_trajectory_without_trained_tokens_is_in_no_baseline():
    found = compute_advantages([group("a", [1, 0, 100], silent={2})], "none")
    assert found.advantages[0] == [0.5, -0.5, None]
    assert found.reasons == {"no_trained_tokens": 1}
