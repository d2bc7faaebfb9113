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


def test_adv_04_one_survivor_has_nothing_to_be_compared_with():
    found = compute_advantages([group("a", [0.9])], "group")
    assert found.advantages == [None] and found.reasons == {"group_too_small": 1}


def turns(name, members):
    """A group whose members are (reward, returns by turn); a return of None is an exchange that is not trained."""
    trajectories = []
    for index, (reward, returns) in enumerate(members):
        talk = Talk()
        for value in returns:
            talk.say([1], [2], trained=value is not None)
        for exchange, value in zip(talk.exchanges, returns, strict=True):
            exchange.return_to_go = value
        trajectories.append(talk.trajectory(f"{name}.{index}", reward))
    return TrainGroup(id=name, trajectories=trajectories)


def test_turn_credit_centres_returns_by_group_and_turn():
    # Turn 0: 3, 1, 2, mean 2. Turn 1: 2 and 0, mean 1. Turn 2: one member only, so its return 4 less the mean reward 2.
    made = turns("a", [(3, [3, 2, 4]), (1, [1, 0]), (2, [2])])
    found = compute_advantages([made], "none", "turn")
    assert found.advantages[0] == [[1.0, 1.0, 2.0], [-1.0, -1.0], [0.0]]
    assert [found.of(0, 0, turn) for turn in range(3)] == [1.0, 1.0, 2.0]
    # One scale a group: the root mean square of the six values, sqrt((1 + 1 + 4 + 1 + 1 + 0) / 6) = 1.154701.
    scaled = compute_advantages([made], "group", "turn").advantages[0]
    assert scaled[0] == pytest.approx([0.866025, 0.866025, 1.732049], abs=1e-5)


def test_turn_credit_leaves_out_exchanges_that_are_not_trained():
    found = compute_advantages([turns("a", [(1, [None, 5]), (0, [None, 3])])], "group", "turn")
    assert found.advantages[0] == [
        [None, pytest.approx(1.0, abs=1e-5)],
        [None, pytest.approx(-1.0, abs=1e-5)],
    ]


def test_turn_credit_sees_a_signal_that_equal_rewards_hide():
    found = compute_advantages(
        [turns("a", [(1, [1, 1]), (1, [1, 0])]), turns("b", [(1, [1]), (1, [1])])], "none", "turn"
    )
    assert found.advantages == [[[0.0, 0.5], [0.0, -0.5]], None] and found.reasons == {"zero_variance": 1}


def test_turn_credit_needs_every_return():
    made = turns("a", [(1, [1, 1]), (0, [1, 0])])
    made.trajectories[1].exchanges[1].return_to_go = None
    with pytest.raises(LudusError) as caught:
        compute_advantages([group("z", [1, 0]).model_copy(update={"dropped": "all_failed"}), made], "none", "turn")
    assert caught.value.detail.field == "groups[1].trajectories[1].exchanges[1].returnToGo"


def test_train_04_what_is_too_old_is_dropped_and_counted():
    trajectories = []
    for index, step in enumerate([7, 9, 10]):
        talk = Talk(step)
        talk.say([1], [2])
        trajectories.append(talk.trajectory(str(index), float(index)))
    made = TrainGroup(id="a", trajectories=trajectories)
    found = compute_advantages([made], "none", oldest_step=10 - 1)
    assert found.advantages[0] == [None, -0.5, 0.5] and found.reasons == {"stale": 1}
    assert compute_advantages([made], "none").reasons == {}


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


def test_tok_12_a_trajectory_that_sampled_nothing_is_in_no_baseline():
    made = group("a", [1, 0, 100])
    for exchange in made.trajectories[2].exchanges:
        exchange.sampled_ids = []
    found = compute_advantages([made], "none")
    assert found.advantages[0] == [0.5, -0.5, None]
    assert found.reasons == {"no_sampled_tokens": 1}


def test_a_trajectory_kept_out_of_the_loss_stays_in_the_baseline():
    found = compute_advantages([group("a", [1, 0, 5], silent={2})], "none")
    assert found.advantages[0] == [-1.0, -2.0, None]
    assert found.reasons == {"no_trained_tokens": 1}
    # sqrt((1 + 4 + 9) / 3) = 2.160247: the deviation is the group's, of all its rewards.
    assert compute_advantages([group("a", [1, 0, 5], silent={2})], "group").advantages[0][0] == pytest.approx(-0.462910)
