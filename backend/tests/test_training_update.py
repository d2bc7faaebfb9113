"""The update with shared prefixes: the same loss and gradient as one plain padded forward."""

import random
from types import SimpleNamespace

import pytest
import torch
from training_samples import VOCABULARY, Talk, random_groups, tiny_base

from ludus_backend.models.learner import Learner
from ludus_backend.protocol import LoraSpec, TrainConfig, TrainGroup
from ludus_backend.training.advantages import compute_advantages
from ludus_backend.training.axes import PRESETS, resolve_axes
from ludus_backend.training.optimise import optimise
from ludus_backend.training.rows import build_rows
from ludus_backend.training.targets import select_targets
from ludus_backend.training.update import Objective, Update


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def learner(base):
    learner = Learner(base, LoraSpec(rank=4, alpha=8), seed=1)
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in learner.parameters:
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=draw))
    return learner


def prepared(groups, **options):
    config = TrainConfig(grad_clip=1e9, **options)
    axes = resolve_axes(config)
    rows = build_rows(groups, VOCABULARY, 512)
    advantages = compute_advantages(groups, axes.std_scaling, config.credit)
    targets = select_targets(rows, advantages, axes, config.denominator)
    return SimpleNamespace(config=config, axes=axes, rows=rows, advantages=advantages, targets=targets)


def gradient_of(learner, groups, budget=10_000, **options):
    """What the update saw, and the gradient of all parameters as one vector."""
    made = prepared(groups, **options)
    update = Update(learner.body, learner.head, learner.device, made.targets, budget)
    objective = Objective(made.axes, made.config.kl, made.config.entropy_bonus)
    done = optimise(learner, update, made.targets, objective, made.config, lambda done, total: None)
    assert done.failure is None
    figures = done.steps[0].update
    seen = SimpleNamespace(
        loss=figures.loss,
        logprobs=figures.logprobs,
        inputs=done.inputs,
        computed_tokens=update.computed_tokens,
        plain_tokens=update.plain_tokens,
        micro_batches=update.micro_batches,
    )
    return seen, torch.cat([parameter.grad.flatten() for parameter in learner.parameters])


def plain_gradient(learner, groups, base, **options):
    """Written out anew: right-padded rows, stock attention, full logits, formulas straight from the papers."""
    made = prepared(groups, **options)
    config, axes, rows = made.config, made.axes, made.rows
    for parameter in learner.parameters:
        parameter.grad = None
    longest = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [0] * (longest - len(row.ids)) for row in rows])
    seen = torch.tensor([[1] * len(row.ids) + [0] * (longest - len(row.ids)) for row in rows])
    learner.body.set_attn_implementation("sdpa")
    logits = learner.head(learner.body(input_ids=ids, attention_mask=seen, use_cache=False).last_hidden_state)
    learner.body.set_attn_implementation("ludus_tree")
    with torch.no_grad():
        untrained = base.model(input_ids=ids, attention_mask=seen, use_cache=False).logits
    owners = {(row.group, row.trajectory) for row in rows}
    tokens: dict[tuple[int, int], list[SimpleNamespace]] = {}
    for index, row in enumerate(rows):
        for place, on in enumerate(row.mask):
            if on and made.advantages.trains(row.group, row.trajectory):
                logs = torch.log_softmax(logits[index, place - 1] / row.temperatures[place], -1)
                logprob = logs[row.ids[place]]
                recomputed = config.old_logprobs == "recomputed"
                correction = 1.0
                if config.truncated_importance is not None:
                    correction = (logprob.detach() - row.logprobs[place]).exp().clamp(max=config.truncated_importance)
                token = SimpleNamespace(
                    logprob=logprob,
                    entropy=-(logs.exp() * logs).sum(),
                    old=logprob.detach() if recomputed else row.logprobs[place],
                    advantage=made.advantages.of(row.group, row.trajectory, row.exchanges[place]),
                    correction=correction,
                    reference=torch.log_softmax(untrained[index, place - 1] / row.temperatures[place], -1)[
                        row.ids[place]
                    ],
                )
                tokens.setdefault((row.group, row.trajectory), []).append(token)
    trajectories = len(owners) if config.denominator == "batch" else len(tokens)
    trained = sum(map(len, tokens.values()))
    sent = sum(row.trained_tokens for row in rows)
    loss = torch.zeros(())
    for entries in tokens.values():
        mean = torch.stack([entry.logprob - entry.old for entry in entries]).mean()
        for entry in entries:
            ratio = (mean if axes.importance_level == "sequence" else entry.logprob - entry.old).exp()
            if axes.surrogate == "cispo":
                term = -ratio.detach().clamp(max=axes.ratio_cap) * entry.advantage * entry.logprob
            else:
                cut = ratio.clamp(1 - axes.clip_low, 1 + axes.clip_high)
                term = -torch.min(ratio * entry.advantage, cut * entry.advantage)
            away = entry.reference - entry.logprob
            term = term * entry.correction + config.kl * ratio * (away.exp() - away - 1)
            term = term - config.entropy_bonus * entry.entropy
            denominator = {
                "token": sent if config.denominator == "batch" else trained,
                "trajectory": trajectories * len(entries),
                "constant": trajectories * (axes.aggregation_length or 0),
            }[axes.aggregation]
            loss = loss + term / denominator
    loss.backward()
    return loss.item(), torch.cat([parameter.grad.flatten() for parameter in learner.parameters])


def with_a_silent_group(seed):
    groups = random_groups(seed)
    return [groups[0], groups[1].model_copy(update={"dropped": "all_failed"}), groups[2]]


def assert_close(found, expected):
    assert ((found - expected).norm() / expected.norm()).item() < 1e-5


CHOICES = {
    **{preset: {"loss": preset} for preset in PRESETS},
    "cispo-sequence-kl": {"importance_level": "sequence", "kl": 0.2},
    "gspo-token-mean-kl": {"loss": "gspo", "aggregation": "token", "kl": 0.2},
    "ppo-recomputed-truncated": {"loss": "ppo", "old_logprobs": "recomputed", "truncated_importance": 1.1, "kl": 0.2},
    "gspo-recomputed-truncated": {"loss": "gspo", "old_logprobs": "recomputed", "truncated_importance": 1.1},
    "cispo-constant": {"aggregation": "constant", "aggregation_length": 12, "std_scaling": "batch"},
    "cispo-turn": {"credit": "turn", "kl": 0.1},
}


def with_returns(groups, seed=0):
    """The same groups, each exchange with a return of its own."""
    draw = random.Random(seed)
    for group in groups:
        for trajectory in group.trajectories:
            for exchange in trajectory.exchanges:
                exchange.return_to_go = draw.random()
    return groups


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("denominator", ["trained", "batch"])
def test_loss_and_gradient_equal_a_plain_padded_forward(learner, base, choice, denominator):
    groups = with_returns(with_a_silent_group(2))
    options = {"denominator": denominator, "entropy_bonus": 0.03, **CHOICES[choice]}
    figures, found = gradient_of(learner, groups, **options)
    loss, expected = plain_gradient(learner, groups, base, **options)
    assert figures.loss == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert_close(found, expected)
    assert figures.computed_tokens < figures.plain_tokens


@pytest.mark.parametrize("budget", [1, 9, 25, 60])
@pytest.mark.parametrize("choice", ["cispo", "gspo", "grpo", "gspo-token-mean-kl", "cispo-turn"])
def test_train_03_micro_batch_size_does_not_matter(learner, budget, choice):
    """Neither does whether rows are packed: a budget of 1 gives every tail a forward pass of its own, a large one lays
    many into one stream. There is no padding on either side, so no padding side to compare."""
    groups = with_returns(random_groups(4))
    options = {"entropy_bonus": 0.01, **CHOICES[choice]}
    whole, expected = gradient_of(learner, groups, **options)
    figures, found = gradient_of(learner, groups, budget, **options)
    assert figures.micro_batches > whole.micro_batches
    assert figures.loss == pytest.approx(whole.loss, rel=1e-5)
    assert_close(found, expected)
    torch.testing.assert_close(figures.logprobs, whole.logprobs)


@pytest.mark.parametrize("choice", ["cispo", "gspo", "ppo-recomputed-truncated"])
def test_train_03_order_of_groups_and_members_does_not_matter(learner, choice):
    groups = random_groups(6)
    _, expected = gradient_of(learner, groups, **CHOICES[choice])
    draw = random.Random(1)
    shuffled = [g.model_copy(update={"trajectories": draw.sample(g.trajectories, len(g.trajectories))}) for g in groups]
    _, found = gradient_of(learner, shuffled[::-1], **CHOICES[choice])
    assert_close(found, expected)


@pytest.mark.parametrize("budget", [2, 10_000])
@pytest.mark.parametrize("choice", [name for name in CHOICES if name != "cispo-turn"])
def test_a_split_trajectory_has_the_weight_of_a_whole_one(learner, choice, budget):
    """In one row or in two, in one micro-batch or in several."""

    def group(split):
        talks = [Talk(), Talk()]
        first = talks[0].say([1, 2, 3], [4, 5])
        if split:
            talks[0].say([1, 2, 3, 4, 5, 6], [7])
        else:
            talks[0].say([6], [7], parent=first)
        talks[1].say([1, 2, 3], [8, 9, 10])
        return [TrainGroup(id="g", trajectories=[talks[0].trajectory("a", 1.0), talks[1].trajectory("b", 0.0)])]

    _, expected = gradient_of(learner, group(False), **CHOICES[choice])
    _, found = gradient_of(learner, group(True), budget, **CHOICES[choice])
    assert_close(found, expected)


def test_the_reference_is_the_base_model_and_the_adapter_comes_back(learner, base):
    groups = random_groups(3)
    before, _ = gradient_of(learner, groups)
    figures, _ = gradient_of(learner, groups, kl=0.1)
    targets = prepared(groups).targets
    for entry in (0, len(targets) - 1):
        ids = targets.sequences[targets.sequence[entry]][: targets.position[entry] + 1]
        with torch.no_grad():
            logits = base.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        expected = torch.log_softmax(logits / targets.temperature[entry], -1)[targets.label[entry]]
        assert figures.inputs.reference[entry].item() == pytest.approx(expected.item(), abs=1e-5)
    torch.testing.assert_close(figures.logprobs, before.logprobs, rtol=0, atol=0)
    assert all(parameter.requires_grad for parameter in learner.parameters)


def test_recomputed_probabilities_make_the_first_ratio_1(learner):
    figures, _ = gradient_of(learner, random_groups(3), old_logprobs="recomputed")
    torch.testing.assert_close(figures.logprobs, figures.inputs.old, rtol=0, atol=1e-6)


def test_tok_15_rows_in_one_stream_do_not_see_each_other(learner):
    """[1, 2, 3] and [4, 5] packed: the log-probabilities of each are those of a plain pass over it alone."""

    def group(*replies):
        talks = [Talk() for _ in replies]
        for talk, ids in zip(talks, replies, strict=True):
            talk.say(ids[:1], ids[1:])
        members = [talk.trajectory(str(index), float(index)) for index, talk in enumerate(talks)]
        return [TrainGroup(id="g", trajectories=members)]

    figures, _ = gradient_of(learner, group([1, 2, 3], [4, 5]))
    assert figures.micro_batches == 1 and figures.computed_tokens == 3
    learner.body.set_attn_implementation("sdpa")
    expected = []
    for ids in ([1, 2, 3], [4, 5]):
        with torch.no_grad():
            hidden = learner.body(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
            logs = torch.log_softmax(learner.head(hidden), -1)
        expected += [logs[place, token].item() for place, token in enumerate(ids[1:])]
    learner.body.set_attn_implementation("ludus_tree")
    assert figures.logprobs.tolist() == pytest.approx(expected, abs=1e-5)


def test_identical_trajectories_are_computed_once_and_counted_twice(learner, base):
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
    _, expected = plain_gradient(learner, groups, base)
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
    targets = prepared(groups).targets
    assert {round(value, 3) for value in targets.temperature.tolist()} == {1.0, 0.7}
    assert (again.logprobs - targets.recorded).abs().max().item() < 1e-5


def test_tok_09_impossible_logprobs_are_left_out_and_counted(learner):
    talks = [Talk(), Talk()]
    talks[0].say([1], [2, 3], [-0.2, -9999.0])
    talks[1].say([1], [4], [-1.0])
    groups = [TrainGroup(id="g", trajectories=[talks[0].trajectory("a", 1.0), talks[1].trajectory("b", 0.0)])]
    targets = prepared(groups).targets
    assert targets.label.tolist() == [2, 4] and targets.impossible == 1
    assert targets.weight.tolist() == [0.5, 0.5]
