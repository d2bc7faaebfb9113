"""Runs the merged model over pieces of sequences: the only place that calls a transformers model to sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ludus_backend.errors import LudusError
from ludus_backend.models.base_model import LoadedBase
from ludus_backend.sampling import slot_attention
from ludus_backend.sampling.forward_plan import Piece, plan_forward
from ludus_backend.sampling.kv_pool import KvPool
from ludus_backend.sampling.merged_model import MergedModel

_PROBE_TOKENS = 8
_TOLERANCE = 1e-2
"""Largest difference of a probe logit between our forward pass and transformers' own; fp32 noise is below 1e-4."""


class ModelRunner:
    """Forward passes over slots, and the probe that says whether an adapter changed anything."""

    def __init__(self, base: LoadedBase, kv_bytes: int) -> None:
        config = base.model.config.get_text_config()
        self._heads = config.num_attention_heads
        self._kv_heads = getattr(config, "num_key_value_heads", None) or self._heads
        width = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self.vocabulary = config.vocab_size
        self.pool = KvPool(config.num_hidden_layers, self._kv_heads, width, kv_bytes)
        slot_attention.register()
        self._merged = MergedModel(base)
        self._merged.model.set_attn_implementation(slot_attention.SLOT_ATTENTION)
        self._probe_slot = self.pool.outside_budget(_PROBE_TOKENS)
        self._probe = [token % self.vocabulary for token in range(1, 1 + _PROBE_TOKENS)]
        self._base_logits = self._probe_logits()
        self._check_against(base)

    @torch.inference_mode()
    def forward(self, pieces: Sequence[Piece], ready: Sequence[int]) -> torch.Tensor:
        """Computes keys and values of the pieces.

        Returns fp32 logits ``[len(ready), vocabulary]``: those after the last token of ``pieces[index]`` for each
        ``index`` of ``ready``.
        """
        plan = plan_forward(pieces, self._heads, self._kv_heads)
        output = self._merged.model(
            input_ids=plan.input_ids,
            position_ids=plan.position_ids,
            use_cache=False,
            logits_to_keep=torch.tensor([plan.last[index] for index in ready], dtype=torch.long),
            slots=plan,
        )
        return output.logits[0].float()

    def load(self, adapter: Path) -> bool:
        """Merges an adapter; False where it is zero. See ``MergedModel.load``."""
        return self._merged.load(adapter)

    def distance_from_base(self) -> float:
        """Largest absolute difference of a fixed prompt's next-token logits, merged weights against the base's."""
        return float((self._probe_logits() - self._base_logits).abs().max())

    def _probe_logits(self) -> torch.Tensor:
        return self.forward([Piece(self._probe_slot, 0, self._probe)], [0])

    @torch.inference_mode()
    def _check_against(self, base: LoadedBase) -> None:
        plain = base.model(input_ids=torch.tensor([self._probe]), use_cache=False, logits_to_keep=1).logits[0]
        difference = float((plain.float() - self._base_logits).abs().max())
        if not difference < _TOLERANCE:
            raise LudusError(
                "invalid_request",
                "this model's attention is not plain attention over keys and values",
                field="base.id",
                value=f"{base.model.config.model_type}, logits differ by {difference:g}",
                expected="a decoder such as Llama, Qwen, Mistral or SmolLM",
                advice="use another base model, or the vllm engine",
            )
