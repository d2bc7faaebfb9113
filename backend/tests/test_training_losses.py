"""Losses: values by hand, gradients by finite differences in float64."""

import math

import pytest
import torch

from ludus_backend.errors import LudusError
from ludus_backend.protocol import TrainConfig
from ludus_backend.training.losses import (
    cispo_loss,
    clamped_log_ratio,
    clipped_loss,
    entropy,
    resolve_axes,
    trajectory_log_ratio,
)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_cispo_by_hand():
    # Ratios: e^0.5 = 1.648721; e^3 = 20.0855, capped at 5.
    logprobs = doubles(-1.0, -0.5).requires_grad_()
    losses = cispo_loss(logprobs, doubles(-1.5, -3.5), doubles(2.0, -1.0), ratio_cap=5.0)
    assert losses.tolist() == pytest.approx([1.648721 * 2.0, 5.0 * -0.5], abs=1e-6)
    losses.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-3.297443, 5.0], abs=1e-6)


def test_clipped_by_hand():
    # Ratios 1.5 and 0.5 with either sign of A: only the side that would go on too far is cut.
    log_ratio = doubles(math.log(1.5), math.log(1.5), math.log(0.5), math.log(0.5)).requires_grad_()
    losses = clipped_loss(log_ratio, doubles(1.0, -1.0, 1.0, -1.0), 0.2, 0.28)
    assert losses.tolist() == pytest.approx([-1.28, 1.5, -0.5, 0.8])
    losses.sum().backward()
    assert log_ratio.grad.tolist() == pytest.approx([0.0, 1.5, -0.5, 0.0])


def test_gspo_ratio_is_the_geometric_mean_and_every_token_gets_its_gradient():
    logprobs = doubles(-1.0, -2.0).requires_grad_()
    mean = doubles(0.0001, 0.0001)
    log_ratio = trajectory_log_ratio(logprobs, mean)
    assert log_ratio.tolist() == pytest.approx([0.0001, 0.0001])
    clipped_loss(log_ratio, doubles(1.0, 1.0), 3e-4, 4e-4).sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-math.exp(0.0001)] * 2)


def test_log_ratios_are_clamped_before_exp():
    ratio = clamped_log_ratio(doubles(-0.5, -9999.0), doubles(-9999.0, -0.5))
    assert ratio.tolist() == [20.0, -20.0]
    assert torch.isfinite(ratio.exp()).all()


def test_tok_10_temperature_scales_logits_not_logprobs():
    logits = doubles(2.0, 0.0)
    assert torch.log_softmax(logits, -1)[0].item() == pytest.approx(-0.126928, abs=1e-6)
    assert torch.log_softmax(logits / 0.5, -1)[0].item() == pytest.approx(-0.018150, abs=1e-6)


def test_entropy_of_a_fair_coin_is_log_2():
    assert entropy(torch.log_softmax(doubles(0.3, 0.3), -1)).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("seed", range(3))
def test_gradients_equal_finite_differences_of_the_frozen_surrogate(seed):
    draw = torch.Generator().manual_seed(seed)
    logprobs = -3 * torch.rand(6, generator=draw, dtype=torch.float64)
    recorded = logprobs + 0.8 * torch.randn(6, generator=draw, dtype=torch.float64)
    advantages = torch.randn(6, generator=draw, dtype=torch.float64)
    frozen = (logprobs - recorded).exp().clamp(max=1.2)
    mean = torch.full((6,), 0.1, dtype=torch.float64)
    pairs = [
        (lambda x: cispo_loss(x, recorded, advantages, 1.2), lambda x: -frozen * advantages * x),
        (lambda x: clipped_loss(x - recorded, advantages, 0.2, 0.28),) * 2,
        (
            lambda x: clipped_loss(trajectory_log_ratio(x, mean), advantages, 0.2, 0.28),
            lambda x: clipped_loss(mean + x - logprobs, advantages, 0.2, 0.28),
        ),
    ]
    for loss, surrogate in pairs:
        leaf = logprobs.clone().requires_grad_()
        loss(leaf).sum().backward()
        for index in range(6):
            step = torch.zeros(6, dtype=torch.float64)
            step[index] = 1e-6
            slope = (surrogate(logprobs + step).sum() - surrogate(logprobs - step).sum()) / 2e-6
            assert leaf.grad[index].item() == pytest.approx(slope.item(), abs=1e-8)


def test_presets_set_axes():
    assert resolve_axes(TrainConfig(loss="dr_grpo")).std_scaling == "none"
    assert resolve_axes(TrainConfig(loss="grpo")).aggregation == "trajectory"
    assert resolve_axes(TrainConfig(loss="dapo")).clip_high == 0.28
    gspo = resolve_axes(TrainConfig(loss="gspo"))
    assert (gspo.level, gspo.clip_low, gspo.clip_high) == ("trajectory", 3e-4, 4e-4)
    assert resolve_axes(TrainConfig(loss="gspo", clip_low=0.1)).clip_low == 0.1
    assert resolve_axes(TrainConfig(loss="cispo", std_scaling="batch")).std_scaling == "batch"


def test_a_preset_with_a_conflicting_axis_is_refused():
    with pytest.raises(LudusError) as caught:
        resolve_axes(TrainConfig(loss="dr_grpo", std_scaling="group"))
    assert caught.value.detail.field == "config.stdScaling" and caught.value.detail.expected == "none"
    assert resolve_axes(TrainConfig(loss="dr_grpo", std_scaling="none")).std_scaling == "none"
