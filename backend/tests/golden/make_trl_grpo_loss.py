"""Writes trl_grpo_loss.json: losses and gradients of trl's own GRPO loss, for the tests that run without trl.

The full table: {grpo, bnpo, dr_grpo, dapo, cispo} x {token, sequence} x KL off/on x sampler correction off/on, all with
log-ratios of about 0.3, and six rows more whose policy has hardly moved or has moved far. Numbers have six decimals:
exact in the file, equal in both programs.

Needs an environment with trl==1.16.0 (the loss is a private method: another version may lack it). Run from ``backend``:
``python tests/golden/make_trl_grpo_loss.py``.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
import trl
from trl.trainer.grpo_trainer import GRPOTrainer

ROWS, TOKENS, LONGEST = 4, 7, 9
KL, CAP = 0.04, 1.25


def trainer(case: dict, logprobs: torch.Tensor) -> SimpleNamespace:
    """The attributes of a trainer that the loss reads."""
    accelerator = SimpleNamespace(
        num_processes=1,
        gather=lambda value: value,
        reduce=lambda value, reduction=None: value,
        gather_for_metrics=lambda value: value,
        sync_gradients=True,
    )
    return SimpleNamespace(
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=case["level"],
        beta=case["kl"],
        args=SimpleNamespace(use_bias_correction_kl=True, delta=None, steps_per_generation=1),
        loss_type=case["loss_type"],
        epsilon_low=case["clip"][0],
        epsilon_high=case["clip"][1],
        use_vllm=case["corrected"],
        vllm_importance_sampling_correction=case["corrected"],
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=LONGEST,
        accelerator=accelerator,
        _entropy_bonus_enabled=False,
        aux_loss_enabled=False,
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
    )


def rounded(values: torch.Tensor) -> list[list[float]]:
    return [[round(value, 6) for value in row] for row in values.tolist()]


def main() -> None:
    draw = torch.Generator().manual_seed(0)

    def noise(size: float) -> torch.Tensor:
        return size * torch.randn(ROWS, TOKENS, generator=draw)

    completion, tools = torch.ones(ROWS, TOKENS), torch.ones(ROWS, TOKENS)
    completion[0, 5:] = 0
    completion[2, 6:] = 0
    tools[:, 2:4] = 0
    mask = completion * tools
    advantages = [1.2, -0.7, 0.1, -0.6]
    table = [
        {"loss_type": loss_type, "level": level, "kl": kl, "corrected": corrected, "clip": (0.2, 0.28), "spread": 0.3}
        for loss_type, level, kl, corrected in itertools.product(
            ("grpo", "bnpo", "dr_grpo", "dapo", "cispo"), ("token", "sequence"), (0.0, KL), (False, True)
        )
    ]
    table += [
        {"loss_type": loss_type, "level": level, "kl": 0.0, "corrected": False, "clip": clip, "spread": spread}
        for (loss_type, level, clip), spread in itertools.product(
            (("dapo", "token", (0.2, 0.28)), ("grpo", "sequence", (3e-4, 4e-4)), ("cispo", "token", (0.2, 5.0))),
            (0.0003, 3.0),
        )
    ]
    for case in table:
        if case["loss_type"] == "cispo":
            case["clip"] = (0.2, 5.0 if case["spread"] != 0.3 else 1.3)
        current = rounded(-3 * torch.rand(ROWS, TOKENS, generator=draw))
        logprobs = torch.tensor(current).requires_grad_()
        old = rounded(logprobs.detach() + noise(case["spread"]))
        reference = rounded(logprobs.detach() + noise(0.2))
        sampler = rounded(torch.tensor(old) + noise(0.2))
        inputs = {
            "prompt_ids": torch.zeros(ROWS, 3, dtype=torch.long),
            "prompt_mask": torch.ones(ROWS, 3),
            "completion_ids": torch.zeros(ROWS, TOKENS, dtype=torch.long),
            "completion_mask": completion,
            "tool_mask": tools,
            "advantages": torch.tensor(advantages),
            "old_per_token_logps": torch.tensor(old),
            "ref_per_token_logps": torch.tensor(reference),
            "num_items_in_batch": mask.sum(),
            # What trl's token_truncate makes of the sampler's log-probabilities.
            "importance_sampling_ratio": (torch.tensor(old) - torch.tensor(sampler)).exp().clamp(max=CAP),
        }
        loss = GRPOTrainer._compute_loss(trainer(case, logprobs), None, inputs)
        loss.backward()
        case |= {"logprobs": current, "old": old, "reference": reference, "sampler": sampler}
        case |= {"loss": loss.item(), "gradient": logprobs.grad.tolist()}
    golden = {
        "trl": trl.__version__,
        "mask": mask.tolist(),
        "advantages": advantages,
        "longest": LONGEST,
        "cap": CAP,
        "cases": table,
    }
    lines = json.dumps(golden | {"cases": []})[:-2] + ",\n".join(json.dumps(case) for case in table) + "]}\n"
    Path(__file__).with_name("trl_grpo_loss.json").write_text(lines)


if __name__ == "__main__":
    main()
