"""Loss, masks and weights against trl 1.16's own GRPO loss (numbers in golden/, made by the script beside them)."""

import json
from pathlib import Path

import pytest
import torch

from ludus_backend.training.advantages import GroupAdvantages
from ludus_backend.training.losses import PRESETS, clamped_log_ratio, policy_loss
from ludus_backend.training.rows import Row
from ludus_backend.training.targets import select_targets

GOLDEN = json.loads((Path(__file__).parent / "golden" / "trl_grpo_loss.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["preset"])
def test_loss_and_gradient_equal_trls(case):
    axes = PRESETS[case["preset"]]
    rows = [
        Row(
            group=0,
            trajectory=index,
            ids=[0] * (1 + len(mask)),
            mask=[False, *(on == 1 for on in mask)],
            logprobs=[0.0, *recorded],
            temperatures=[1.0] * (1 + len(mask)),
            steps=[0] * (1 + len(mask)),
        )
        for index, (mask, recorded) in enumerate(zip(GOLDEN["mask"], case["recorded"], strict=True))
    ]
    targets = select_targets(rows, GroupAdvantages([case["advantages"]], {}), axes.aggregation, "trained")
    whole = torch.tensor(case["logprobs"]).requires_grad_()
    logprobs = whole[targets.sequence, targets.position]
    ratios = clamped_log_ratio(logprobs.detach(), targets.recorded)
    sums = torch.zeros(len(rows)).index_add_(0, targets.trajectory, ratios)
    means = (sums / torch.bincount(targets.trajectory))[targets.trajectory]
    losses = policy_loss(axes, logprobs, targets.recorded, targets.advantage, 5.0, means)
    loss = (losses * targets.weight).sum()
    loss.backward()
    assert whole.grad is not None
    assert loss.item() == pytest.approx(case["loss"], rel=1e-6, abs=1e-6)
    torch.testing.assert_close(whole.grad, torch.tensor(case["gradient"]), atol=1e-6, rtol=1e-6)
