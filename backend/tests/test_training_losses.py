"""Losses: values by hand, gradients by finite differences in float64."""

import math

import pytest
import torch

from ludus_backend.training.axes import LossAxes
from ludus_backend.training.losses import (
    LossInputs,
    cispo_loss,
    clamped_log_ratio,
    clipped_loss,
    entropy,
    k3_divergence,
    token_losses,
    trajectory_mean,
    truncated_weight,
)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_cispo_by_hand():
    # Ratios: e^0.5 = 1.648721; e^3 = 20.0855, capped at 5.
    logprobs = doubles(-1.0, -0.5).requires_grad_()
    losses = cispo_loss(logprobs, logprobs - doubles(-1.5, -3.5), doubles(2.0, -1.0), ratio_cap=5.0)
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


def test_gspo_ratio_is_the_geometric_mean_of_the_trajectorys():
    # Trajectory 0 has log-ratios 0.1 and 0.3, trajectory 1 has -0.5.
    assert trajectory_mean(doubles(0.1, -0.5, 0.3), torch.tensor([0, 1, 0])).tolist() == pytest.approx([0.2, -0.5, 0.2])
    logprobs = doubles(-1.0, -2.0).requires_grad_()
    inputs = LossInputs(doubles(-1.1, -2.3), doubles(1.0, 1.0), torch.tensor([0, 0]))
    axes = LossAxes("ppo", "sequence", clip_high=0.28)
    losses = token_losses(axes, 0.0, logprobs, inputs)
    assert losses.tolist() == pytest.approx([-math.exp(0.2)] * 2)
    losses.mean().backward()
    assert logprobs.grad.tolist() == pytest.approx([-math.exp(0.2) / 2] * 2)


def test_k3_by_hand_and_corrected_by_the_ratio():
    # log reference - log pi = 0.5: e^0.5 - 0.5 - 1 = 0.148721; ratio e^-1 = 0.367879.
    assert k3_divergence(doubles(-1.0, -1.0), doubles(-0.5, -1.0)).tolist() == pytest.approx([0.148721, 0.0], abs=1e-6)
    inputs = LossInputs(doubles(0.0), doubles(0.0), torch.tensor([0]), reference=doubles(-0.5))
    (loss,) = token_losses(LossAxes("ppo"), 2.0, doubles(-1.0), inputs).tolist()
    assert loss == pytest.approx(2.0 * 0.367879 * 0.148721, abs=1e-6)


def test_the_corrected_k3_is_an_unbiased_divergence_and_has_its_gradient():
    """Over three outcomes, in expectation under the sampler: value KL(pi, reference), gradient that of the KL."""
    logits = doubles(0.3, -0.2, 0.8).requires_grad_()
    reference = torch.log_softmax(doubles(-0.1, 0.5, 0.2), -1)
    sampler = torch.log_softmax(doubles(1.0, 0.0, -1.0), -1)
    inputs = LossInputs(sampler, torch.zeros(3, dtype=torch.float64), torch.arange(3), reference=reference)
    policy = torch.log_softmax(logits, -1)
    exact = (policy.exp() * (policy - reference)).sum()
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    estimate = (sampler.exp() * token_losses(LossAxes("ppo"), 1.0, policy, inputs)).sum()
    (found,) = torch.autograd.grad(estimate, logits)
    assert estimate.item() == pytest.approx(exact.item(), abs=1e-12)
    torch.testing.assert_close(found, expected)


def test_truncated_weights_multiply_the_policy_term_only():
    # Trainer over sampler: e^0.3 = 1.349859 and e^1 = 2.718282, cut at 2.
    weight = truncated_weight(doubles(-1.0, -1.0), doubles(-1.3, -2.0), cap=2.0)
    assert weight.tolist() == pytest.approx([1.349859, 2.0], abs=1e-6)
    inputs = LossInputs(doubles(-1.0, -1.0), doubles(1.0, 1.0), torch.tensor([0, 0]), weight, doubles(-1.0, -0.5))
    losses = token_losses(LossAxes("ppo"), 1.0, doubles(-1.0, -1.0), inputs)
    assert losses.tolist() == pytest.approx([-1.349859, -2.0 + 0.148721], abs=1e-6)


def test_tok_09_a_ratio_with_an_impossible_record_stays_finite():
    ratio = clamped_log_ratio(doubles(-0.25, -0.5), doubles(-0.2, -9999.0)).exp()
    assert ratio[0].item() == pytest.approx(0.951229, abs=1e-6)
    assert torch.isfinite(ratio).all()


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


SURROGATES = [
    (surrogate, level, kl, corrected)
    for surrogate in ("cispo", "ppo")
    for level in ("token", "sequence")
    for kl in (0.0, 0.1)
    for corrected in (False, True)
]


@pytest.mark.parametrize(("surrogate", "level", "kl", "corrected"), SURROGATES)
def test_gradients_equal_finite_differences_of_the_frozen_surrogate(surrogate, level, kl, corrected):
    """The surrogate with its detached factors (cispo's capped ratio, the truncated weight) frozen, written out anew."""
    draw = torch.Generator().manual_seed(SURROGATES.index((surrogate, level, kl, corrected)))

    def noise(size):
        return size * torch.randn(6, generator=draw, dtype=torch.float64)

    start = -3 * torch.rand(6, generator=draw, dtype=torch.float64)
    owner = torch.tensor([0, 1, 0, 2, 1, 0])
    old, reference, advantage = start + noise(0.8), start + noise(0.4), noise(1.0)
    weight = (0.5 + torch.rand(6, generator=draw, dtype=torch.float64)) if corrected else None
    axes = LossAxes(surrogate, level, clip_low=0.2, clip_high=0.28, ratio_cap=1.2)

    def ratio_at(x):
        steps = x - old
        if level == "sequence":
            steps = torch.stack([steps[owner == owner[i]].mean() for i in range(6)])
        return steps.exp()

    frozen = ratio_at(start).clamp(max=1.2)

    def surrogate_at(x):
        ratio = ratio_at(x)
        if surrogate == "cispo":
            terms = -frozen * advantage * x
        else:
            terms = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        terms = terms if weight is None else terms * weight
        return (terms + kl * ratio * ((reference - x).exp() - (reference - x) - 1)).sum()

    leaf = start.clone().requires_grad_()
    loss = token_losses(axes, kl, leaf, LossInputs(old, advantage, owner, weight, reference)).sum()
    assert loss.item() == pytest.approx(surrogate_at(start).item(), abs=1e-12)
    loss.backward()
    for index in range(6):
        step = torch.zeros(6, dtype=torch.float64)
        step[index] = 1e-6
        slope = (surrogate_at(start + step) - surrogate_at(start - step)) / 2e-6
        assert leaf.grad[index].item() == pytest.approx(slope.item(), abs=1e-7)
