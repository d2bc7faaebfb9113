"""The update with shared prefixes: the same loss and gradient as one plain padded forward."""

import random

import pytest
import torch
from training_samples import VOCABULARY, Talk, random_groups, tiny_base

from ludus_backend.models.learner import Learner
from ludus_backend.protocol import LoraSpec, TrainGroup
from ludus_backend.training.advantages import compute_advantages
from ludus_backend.training.losses import PRESETS
from ludus_backend.training.rows import build_rows
from ludus_backend.training.targets import select_targets
from ludus_backend.training.update import Update


@pytest.fixture(scope="module")
def learner(tmp_path_factory):
    learner = Learner(tiny_base(tmp_path_factory.mktemp("base")), LoraSpec(rank=4, alpha=8), seed=1)
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in learner.parameters:
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=draw))
    return learner


def prepared(groups, preset="cispo", denominator="trained"):
    axes = PRESETS[preset]
    rows = build_rows(groups, VOCABULARY, 512)
    advantages = compute_advantages(groups, axes.std_scaling)
    return axes, rows, advantages, select_targets(rows, advantages, axes.aggregation, denominator)


def gradient_of(learner, groups, budget=10_000, preset="cispo", denominator="trained", bonus=0.0):
    axes, _, _, targets = prepared(groups, preset, denominator)
    for parameter in learner.parameters:
        parameter.grad = None
    update = Update(learner.body, learner.head, learner.device)
    figures = update.accumulate(targets, axes, 5.0, bonus, budget, lambda done, total: None)
    return figures, torch.cat([parameter.grad.flatten() for parameter in learner.parameters])


def plain_gradient(learner, groups, preset="cispo", denominator="trained", bonus=0.0):
    """Written out anew: right-padded rows, stock attention, full logits, formulas straight from the papers."""
    _, rows, advantages, _ = prepared(groups, preset)
    for parameter in learner.parameters:
        parameter.grad = None
    longest = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [0] * (longest - len(row.ids)) for row in rows])
    seen = torch.tensor([[1] * len(row.ids) + [0] * (longest - len(row.ids)) for row in rows])
    learner.body.set_attn_implementation("sdpa")
    logits = learner.head(learner.body(input_ids=ids, attention_mask=seen, use_cache=False).last_hidden_state)
    learner.body.set_attn_implementation("ludus_tree")
    tokens: dict[tuple[int, int], list[tuple[torch.Tensor, torch.Tensor, float, float]]] = {}
    sent = sum(row.trained_tokens for row in rows)
    owners = {(row.group, row.trajectory) for row in rows}
    for index, row in enumerate(rows):
        advantage = advantages.of(row.group, row.trajectory)
        for place, on in enumerate(row.mask):
            if on and advantage is not None:
                logs = torch.log_softmax(logits[index, place - 1] / row.temperatures[place], -1)
                entry = (logs[row.ids[place]], -(logs.exp() * logs).sum(), row.logprobs[place], advantage)
                tokens.setdefault((row.group, row.trajectory), []).append(entry)
    trained = sum(map(len, tokens.values()))
    loss = torch.zeros(())
    for entries in tokens.values():
        mean = torch.stack([logprob.detach() - old for logprob, _, old, _ in entries]).mean()
        for logprob, spread, old, advantage in entries:
            ratio = (logprob - old).exp()
            if preset == "cispo":
                term = -ratio.detach().clamp(max=5.0) * advantage * logprob
            elif preset == "gspo":
                ratio = (mean + logprob - logprob.detach()).exp()
                term = -torch.min(ratio * advantage, ratio.clamp(1 - 3e-4, 1 + 4e-4) * advantage)
            else:
                high = 0.28 if preset in ("ppo", "dapo") else 0.2
                term = -torch.min(ratio * advantage, ratio.clamp(0.8, 1 + high) * advantage)
            term = term - bonus * spread
            if preset in ("grpo", "gspo"):
                loss = loss + term / len(entries) / (len(owners) if denominator == "batch" else len(tokens))
            else:
                loss = loss + term / (sent if denominator == "batch" else trained)
    loss.backward()
    return loss.item(), torch.cat([parameter.grad.flatten() for parameter in learner.parameters])


def with_a_silent_group(seed):
    groups = random_groups(seed)
    return [groups[0], groups[1].model_copy(update={"dropped": "all_failed"}), groups[2]]


def assert_close(found, expected):
    assert ((found - expected).norm() / expected.norm()).item() < 1e-5


@pytest.mark.parametrize("preset", list(PRESETS))
@pytest.mark.parametrize("denominator", ["trained", "batch"])
def test_loss_and_gradient_equal_a_plain_padded_forward(learner, preset, denominator):
    groups = with_a_silent_group(2)
    figures, found = gradient_of(learner, groups, preset=preset, denominator=denominator, bonus=0.03)
    loss, expected = plain_gradient(learner, groups, preset=preset, denominator=denominator, bonus=0.03)
    assert figures.loss == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert_close(found, expected)
    assert figures.computed_tokens < figures.plain_tokens


@pytest.mark.parametrize("budget", [1, 9, 25, 60])
@pytest.mark.parametrize("preset", ["cispo", "gspo"])
def test_train_03_micro_batch_size_does_not_matter(learner, budget, preset):
    groups = random_groups(4)
    whole, expected = gradient_of(learner, groups, preset=preset, bonus=0.01)
    figures, found = gradient_of(learner, groups, budget, preset=preset, bonus=0.01)
    assert figures.loss == pytest.approx(whole.loss, rel=1e-5)
    assert_close(found, expected)
    torch.testing.assert_close(figures.logprobs, whole.logprobs)


def test_train_03_order_of_groups_and_members_does_not_matter(learner):
    groups = random_groups(6)
    _, expected = gradient_of(learner, groups)
    draw = random.Random(1)
    shuffled = [g.model_copy(update={"trajectories": draw.sample(g.trajectories, len(g.trajectories))}) for g in groups]
    _, found = gradient_of(learner, shuffled[::-1])
    assert_close(found, expected)


def test_a_split_trajectory_has_the_weight_of_a_whole_one(learner):
    def group(split):
        talks = [Talk(), Talk()]
        first = talks[0].say([1, 2, 3], [4, 5])
        if split:
            talks[0].say([1, 2, 3, 4, 5, 6], [7])
        else:
            talks[0].say([6], [7], parent=first)
        talks[1].say([1, 2, 3], [8, 9, 10])
        return [TrainGroup(id="g", trajectories=[talks[0].trajectory("a", 1.0), talks[1].trajectory("b", 0.0)])]

    for preset in ("cispo", "gspo", "grpo"):
        _, expected = gradient_of(learner, group(False), preset=preset)
        _, found = gradient_of(learner, group(True), preset=preset)
        assert_close(found, expected)


def test_identical_trajectories_are_computed_once_and_counted_twice(learner):
    def talk():
        made = Talk()
        made.say([1, 2, 3], [4, 5])
        return made

    other = Talk()
    other.say([1, 2, 3], [6])
    groups = [
        TrainGroup(
            id="g",
            trajectories=[
                talk().trajectory("a", 1.0),
                talk().trajectory("b", 0.4),
                other.trajectory("c", 0.0),
            ],
        )
    ]
    figures, found = gradient_of(learner, groups)
    _, expected = plain_gradient(learner, groups)
    assert_close(found, expected)
    assert (figures.computed_tokens, figures.plain_tokens) == (4, 11)


def test_tok_10_ratio_is_1_for_logprobs_recorded_at_the_sampling_temperature(learner):
    groups = random_groups(8)
    figures, _ = gradient_of(learner, groups)
    values = iter(figures.logprobs.tolist())
    for group in groups:
        for trajectory in group.trajectories:
            for exchange in trajectory.exchanges:
                exchange.logprobs = [next(values) for _ in exchange.sampled_ids]
    again, _ = gradient_of(learner, groups, budget=20)
    _, _, _, targets = prepared(groups)
    assert {round(value, 3) for value in targets.temperature.tolist()} == {1.0, 0.7}
    assert (again.logprobs - targets.recorded).abs().max().item() < 1e-5


def test_tok_09_impossible_logprobs_are_left_out_and_counted(learner):
    talks = [Talk(), Talk()]
    talks[0].say([1], [2, 3], [-0.2, -9999.0])
    talks[1].say([1], [4], [-1.0])
    groups = [TrainGroup(id="g", trajectories=[talks[0].trajectory("a", 1.0), talks[1].trajectory("b", 0.0)])]
    _, _, _, targets = prepared(groups)
    assert targets.label.tolist() == [2, 4] and targets.impossible == 1
    assert targets.weight.tolist() == [0.5, 0.5]
