"""The learner refuses a base whose numbers its shared-prefix pass would change."""

import pytest
import torch
from training_samples import tiny_base
from transformers import Gemma2Config, Gemma2ForCausalLM

from ludus_backend.errors import LudusError
from ludus_backend.models.attention import GROUPED_ATTENTION
from ludus_backend.models.learner import Learner
from ludus_backend.protocol import LoraSpec


def refused(base):
    with pytest.raises(LudusError) as caught:
        Learner(base, LoraSpec(), seed=0)
    assert caught.value.detail.field == "base.id"
    return caught.value.detail


def test_attention_with_a_soft_cap_is_refused(tmp_path):
    base = tiny_base(tmp_path)
    config = Gemma2Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    config._attn_implementation = GROUPED_ATTENTION
    base.model = Gemma2ForCausalLM(config).requires_grad_(False).eval()
    assert refused(base).value == "softcap"


def test_logits_that_are_more_than_the_heads_output_are_refused(tmp_path):
    base = tiny_base(tmp_path)

    def halved(module, inputs, output):
        output.logits = output.logits / 2
        return output

    base.model.register_forward_hook(halved)
    assert "does not fit" in refused(base).message


def test_gradients_flow_to_the_adapter_only(tmp_path):
    learner = Learner(tiny_base(tmp_path), LoraSpec(), seed=0)
    assert len(learner.parameters) == 2 * 7 * 2
    assert sum(parameter.numel() for parameter in learner.parameters) == 2 * 8 * (2 * 128 + 2 * 96 + 3 * 192)
    assert all(parameter.dtype == torch.float32 for parameter in learner.parameters)
