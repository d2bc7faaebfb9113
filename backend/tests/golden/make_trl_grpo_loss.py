"""Writes trl_grpo_loss.json: losses and gradients of trl's own GRPO loss, for the tests that run without trl.

Needs an environment with trl==1.16.0 (the loss is a private method: another version may lack it). Run from ``backend``:
``python tests/golden/make_trl_grpo_loss.py``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
import trl
from trl.trainer.grpo_trainer import GRPOTrainer

ROWS, TOKENS, LONGEST = 4, 7, 7
# Our preset, trl's loss type and importance level, clip range (cispo: the cap is trl's epsilon_high).
CASES = [
    ("cispo", "cispo", "token", (0.2, 5.0)),
    ("ppo", "dapo", "token", (0.2, 0.28)),
    ("dapo", "dapo", "token", (0.2, 0.28)),
    ("grpo", "grpo", "token", (0.2, 0.2)),
    ("dr_grpo", "dr_grpo", "token", (0.2, 0.2)),
    ("gspo", "grpo", "sequence", (3e-4, 4e-4)),
]


def trainer(loss_type: str, level: str, clip: tuple[float, float], logprobs: torch.Tensor) -> SimpleNamespace:
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
        importance_sampling_level=level,
        beta=0.0,
        args=SimpleNamespace(use_bias_correction_kl=True, delta=None, steps_per_generation=1),
        loss_type=loss_type,
        epsilon_low=clip[0],
        epsilon_high=clip[1],
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=LONGEST,
        accelerator=accelerator,
        _entropy_bonus_enabled=False,
        aux_loss_enabled=False,
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
    )


def main() -> None:
    draw = torch.Generator().manual_seed(0)
    completion, tools = torch.ones(ROWS, TOKENS), torch.ones(ROWS, TOKENS)
    completion[0, 5:] = 0
    completion[2, 6:] = 0
    tools[:, 2:4] = 0
    mask = completion * tools
    cases = []
    for preset, loss_type, level, clip in CASES:
        for spread in (0.0003, 0.3, 3.0):
            logprobs = (-3 * torch.rand(ROWS, TOKENS, generator=draw)).requires_grad_()
            recorded = logprobs.detach() + spread * torch.randn(ROWS, TOKENS, generator=draw)
            advantages = torch.tensor([1.2, -0.7, 0.1, -0.6])
            inputs = {
                "prompt_ids": torch.zeros(ROWS, 3, dtype=torch.long),
                "prompt_mask": torch.ones(ROWS, 3),
                "completion_ids": torch.zeros(ROWS, TOKENS, dtype=torch.long),
                "completion_mask": completion,
                "tool_mask": tools,
                "advantages": advantages,
                "old_per_token_logps": recorded,
                "num_items_in_batch": mask.sum(),
            }
            loss = GRPOTrainer._compute_loss(trainer(loss_type, level, clip, logprobs), None, inputs)
            loss.backward()
            # Dr. GRPO divides by rows x longest completion; this backend by its trained tokens.
            factor = ROWS * LONGEST / mask.sum().item() if loss_type == "dr_grpo" else 1.0
            cases.append(
                {
                    "preset": preset,
                    "logprobs": logprobs.tolist(),
                    "recorded": recorded.tolist(),
                    "advantages": advantages.tolist(),
                    "loss": loss.item() * factor,
                    "gradient": (logprobs.grad * factor).tolist(),
                }
            )
    path = Path(__file__).with_name("trl_grpo_loss.json")
    path.write_text(json.dumps({"trl": trl.__version__, "mask": mask.tolist(), "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
