"""Loss, masks and weights against trl 1.16's own GRPO loss (numbers in golden/, made by the script beside them).

trl's types in our axes: grpo is aggregation trajectory, dr_grpo constant with trl's longest completion, dapo and cispo
token; bnpo is token too, since its local denominator is the global one where there is one micro-batch.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from ludus_backend.training.advantages import GroupAdvantages
from ludus_backend.training.axes import LossAxes
from ludus_backend.training.losses import LossInputs, token_losses, truncated_weight
from ludus_backend.training.rows import Row
from ludus_backend.training.targets import select_targets

GOLDEN = json.loads((Path(__file__).parent / "golden" / "trl_grpo_loss.json").read_text())
AGGREGATION = {"grpo": "trajectory", "dr_grpo": "constant", "bnpo": "token", "dapo": "token", "cispo": "token"}


def name_of(case):
    parts = [case["loss_type"], case["level"], f"moved-{case['spread']}"]
    return "-".join(parts + ["kl"] * (case["kl"] > 0) + ["corrected"] * case["corrected"])


def axes_of(case):
    low, high = case["clip"]
    aggregation = AGGREGATION[case["loss_type"]]
    return LossAxes(
        "cispo" if case["loss_type"] == "cispo" else "ppo",
        importance_level=case["level"],
        aggregation=aggregation,
        aggregation_length=GOLDEN["longest"] if aggregation == "constant" else None,
        clip_low=low,
        clip_high=high,
        ratio_cap=high,
    )


def test_the_table_is_full():
    near = [case for case in GOLDEN["cases"] if case["spread"] == 0.3]
    assert len({(c["loss_type"], c["level"], c["kl"] > 0, c["corrected"]) for c in near}) == len(near) == 40
    assert Counter(case["spread"] for case in GOLDEN["cases"]) == {0.3: 40, 0.0003: 3, 3.0: 3}
    assert GOLDEN["trl"] == "1.16.0"


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=name_of)
def test_loss_and_gradient_equal_trls(case):
    axes = axes_of(case)
    rows = [
        Row(
            group=0,
            trajectory=index,
            ids=[0] * (1 + len(mask)),
            mask=[False, *(on == 1 for on in mask)],
            logprobs=[0.0, *sampler],
            temperatures=[1.0] * (1 + len(mask)),
            steps=[0] * (1 + len(mask)),
            exchanges=[0] * (1 + len(mask)),
        )
        for index, (mask, sampler) in enumerate(zip(GOLDEN["mask"], case["sampler"], strict=True))
    ]
    targets = select_targets(rows, GroupAdvantages([GOLDEN["advantages"]], {}), axes, "trained")

    def trained(values):
        return torch.tensor(values)[targets.sequence, targets.position]

    old = trained(case["old"])
    inputs = LossInputs(
        old=old,
        advantage=targets.advantage,
        trajectory=targets.trajectory,
        correction=truncated_weight(old, targets.recorded, GOLDEN["cap"]) if case["corrected"] else None,
        reference=trained(case["reference"]) if case["kl"] else None,
    )
    whole = torch.tensor(case["logprobs"]).requires_grad_()
    logprobs = whole[targets.sequence, targets.position]
    loss = (token_losses(axes, case["kl"], logprobs, inputs) * targets.weight).sum()
    loss.backward()
    assert whole.grad is not None
    assert loss.item() == pytest.approx(case["loss"], rel=1e-6, abs=1e-6)
    torch.testing.assert_close(whole.grad, torch.tensor(case["gradient"]), atol=1e-6, rtol=1e-6)
