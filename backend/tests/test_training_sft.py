"""Supervised updates: the loss is the mean over the trained tokens, and a step is a step like any other."""

from __future__ import annotations

import pytest
import torch
from sft_samples import sft_rows, sft_update
from training_samples import VOCABULARY, random_groups, registration, tiny_base

from ludus_backend.engine_messages import SftRow
from ludus_backend.errors import LudusError
from ludus_backend.protocol import DeleteCheckpoints, TrainConfig, TrainRequest
from ludus_backend.training.sft import accumulate_nll
from ludus_backend.training.trainer import Trainer


@pytest.fixture
def trainer(tmp_path):
    made = Trainer(tiny_base(tmp_path), tmp_path / "state")
    made.register(registration())
    yield made
    made.close()


def sft(trainer, step, name="demo", **options):
    return trainer.sft(name, sft_update(step, **options), lambda *_: None)


def weights(trainer, step, name="demo"):
    return (trainer.adapter_folder(name, step) / "adapter_model.safetensors").read_bytes()


def gradients(trainer, given, budget):
    learner = trainer._model("demo").learner
    for parameter in learner.parameters:
        parameter.grad = None
    figures = accumulate_nll(learner.body, learner.head, learner.device, given, budget, lambda *_: None)
    return figures, torch.cat([parameter.grad.flatten() for parameter in learner.parameters])


def test_the_loss_is_the_plain_cross_entropy_over_all_trained_tokens(trainer):
    """Against transformers' own forward, row by row, with one denominator for all."""
    model = tiny_base(trainer._folder).model
    total, count, hits = 0.0, 0, 0
    for row in sft_rows():
        logits = model(input_ids=torch.tensor([row.ids])).logits[0]
        for place in row.trained:
            total -= torch.log_softmax(logits[place - 1].double(), -1)[row.ids[place]].item()
            hits += int(logits[place - 1].argmax()) == row.ids[place]
            count += 1
    figures, _ = gradients(trainer, sft_rows(), 4096)
    assert figures.trained_tokens == count
    assert figures.loss == pytest.approx(total / count, abs=1e-5)
    assert figures.accuracy == pytest.approx(hits / count)


def test_neither_micro_batches_nor_the_order_of_rows_change_the_gradient(trainer):
    sft(trainer, 0)
    whole, expected = gradients(trainer, sft_rows(), 4096)
    for given, budget in ((sft_rows(), 16), (list(reversed(sft_rows())), 64)):
        figures, found = gradients(trainer, given, budget)
        assert figures.loss == pytest.approx(whole.loss, abs=1e-6)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert expected.abs().max() > 1e-3


def test_training_on_rows_makes_them_likely_and_every_update_is_a_step(trainer):
    losses = [sft(trainer, step).metrics["sft/loss"] for step in range(12)]
    assert losses[-1] < losses[0] - 1.0
    assert trainer.steps("demo") == list(range(13))
    assert [c.key for c in trainer.checkpoints("demo").checkpoints[1:3]] == ["sft:0", "sft:1"]


def test_a_repeated_key_makes_no_second_step_and_another_step_is_a_conflict(trainer):
    first = sft(trainer, 0)
    again = sft(trainer, 0)
    assert again.repeated and again.step == first.step == 1
    with pytest.raises(LudusError) as caught:
        sft(trainer, 0, key="other")
    assert (caught.value.detail.code, caught.value.detail.field) == ("step_conflict", "expectedStep")


def test_a_key_whose_step_was_deleted_makes_no_second_one_also_after_a_restart(trainer, tmp_path):
    for step in range(3):
        sft(trainer, step)
    assert trainer.delete("demo", DeleteCheckpoints(keep_last=1), lambda _: False).deleted == [0, 1, 2]
    assert sft(trainer, 0).repeated
    trainer.close()
    second = Trainer(tiny_base(tmp_path), tmp_path / "state")
    second.register(registration())
    again = sft(second, 0)
    assert (again.step, again.repeated) == (1, True)
    assert (sft(second, 3).step, second.steps("demo")) == (4, [3, 4])
    second.close()


def test_reinforcement_learning_goes_on_from_the_supervised_step(trainer):
    sft(trainer, 0)
    before = weights(trainer, 1)
    request = TrainRequest(
        key="rl", expected_step=1, groups=random_groups(1, step=1), config=TrainConfig(learning_rate=1e-2)
    )
    result = trainer.train("demo", request, lambda *_: None)
    assert (result.step, result.policy) == (2, "demo@2")
    assert weights(trainer, 1) == before != weights(trainer, 2)


def test_ckpt_05_supervised_and_reinforced_steps_resume_bit_for_bit(trainer, tmp_path):
    def step(at, name):
        if at % 2 == 0:
            return sft(trainer, at, name, seed=at)
        groups = random_groups(at, step=at)
        request = TrainRequest(key=f"rl:{at}", expected_step=at, groups=groups, config=TrainConfig(learning_rate=1e-2))
        return trainer.train(name, request, lambda *_: None)

    trainer.register(registration("straight"))
    for at in range(6):
        step(at, "straight")
    expected = weights(trainer, 6, "straight")
    for at in range(6):
        trainer.close()
        trainer = Trainer(tiny_base(tmp_path), tmp_path / "state")
        trainer.register(registration())
        step(at, "demo")
    assert trainer.steps("demo") == list(range(7))
    assert weights(trainer, 6) == expected
    trainer.close()


def test_a_gradient_that_is_not_finite_makes_no_step(trainer):
    handle = trainer._model("demo").learner.parameters[0].register_hook(lambda gradient: gradient * float("nan"))
    result = sft(trainer, 0)
    handle.remove()
    assert (result.step, result.trained, result.reasons) == (0, False, {"non_finite_gradient": 1})
    assert sft(trainer, 0).step == 1


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (SftRow(ids=[1, VOCABULARY], trained=[1]), "rows[0].ids"),
        (SftRow(ids=[1] * 513, trained=[1]), "rows[0].ids"),
        (SftRow(ids=[1, 2], trained=[2]), "rows[0].trained"),
        (SftRow(ids=[1, 2, 3], trained=[2, 1]), "rows[0].trained"),
    ],
)
def test_rows_that_the_model_cannot_take_are_refused_before_any_weight_changes(trainer, row, field):
    with pytest.raises(LudusError) as caught:
        sft(trainer, 0, rows=[row])
    assert (caught.value.detail.code, caught.value.detail.field) == ("invalid_request", field)
    assert trainer.steps("demo") == [0]
