"""A tiny language model with random weights, for tests of the whole loop in seconds."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ludus_backend.models import attention


def tiny_model(vocabulary: int, end_of_turn: int | None, seed: int = 0) -> LlamaForCausalLM:
    """Llama with hidden size 64, 2 layers, 4 query and 2 key-value heads, tied embeddings, 8192 positions, fp32.

    The same ``seed`` gives the same weights; torch's global random state is left as it was.
    """
    attention.register()
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_of_turn,
        pad_token_id=end_of_turn,
    )
    config._attn_implementation = attention.GROUPED_ATTENTION
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
