"""Tiny models, adapters made by PEFT, and plain full forward passes: the independent values of the sampler's tests."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from ludus_backend.models.base_model import LoadedBase
from ludus_backend.protocol import BaseModelSpec
from ludus_backend.sampling.sampler import Failure, Sample, SampleRequest
from ludus_backend.sampling.torch_sampler import TorchSampler

VOCABULARY = 257
END = 256
CONTEXT = 256
MOST_STEPS = 10_000
"""Forward passes; no test needs a tenth of them."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A real byte-level tokenizer: ids 0 to 255 are single bytes (in the alphabet's order), 256 ends a turn."""
    alphabet = sorted(ByteLevel.alphabet())
    words = Tokenizer(BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    words.pre_tokenizer = ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    tokenizer.add_special_tokens({"eos_token": "<end>"})
    assert tokenizer.eos_token_id == END
    return tokenizer


def tiny_base(family: str = "llama", folder: Path = Path("nowhere"), **options: Any) -> LoadedBase:
    """Two layers, hidden size 48, 6 query and 2 key-value heads, random weights from seed 0."""
    config = AutoConfig.for_model(
        family,
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=END,
        initializer_range=0.2,
        **options,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    model.requires_grad_(False).eval()
    return LoadedBase(
        spec=BaseModelSpec(source="path", id=str(folder)),
        folder=folder,
        model=model,
        tokenizer=byte_tokenizer(),
        context_length=CONTEXT,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        stop_ids=[END],
    )


def save_adapter(base: LoadedBase, folder: Path, seed: int, size: float = 0.1, **options: Any) -> Path:
    """A LoRA adapter written by PEFT itself; ``size`` is the standard deviation of ``B`` (0: the untrained adapter)."""
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **options}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        wrapped = get_peft_model(copy.deepcopy(base.model), LoraConfig(**settings))
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(0, size) if size else parameter.data.zero_()
    wrapped.save_pretrained(folder)
    return folder


def plain_model(base: LoadedBase, adapter: Path | None) -> torch.nn.Module:
    """The base with the adapter attached by PEFT, not merged: what the sampler must agree with."""
    model = copy.deepcopy(base.model)
    return model if adapter is None else PeftModel.from_pretrained(model, adapter).eval()


def plain_logits(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """Logits ``[len(ids), vocabulary]`` of one plain forward pass."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).logits[0].float()


def plain_logprobs(
    model: torch.nn.Module, prompt: list[int], reply: list[int], temperature: float = 1.0
) -> list[float]:
    """Log-probabilities of ``reply`` after ``prompt``."""
    logits = plain_logits(model, prompt + reply)[len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(reply)[:, None])[:, 0].tolist()


def run(sampler: TorchSampler, requests: list[SampleRequest]) -> dict[int, Sample]:
    """Samples all requests together; fails where one of them fails."""
    for request in requests:
        sampler.submit(request)
    return drain(sampler)


def drain(sampler: TorchSampler) -> dict[int, Sample]:
    """Steps until nothing is left; fails where that takes forever."""
    samples: dict[int, Sample] = {}
    for _ in range(MOST_STEPS):
        if not (sampler.running or sampler.waiting):
            return samples
        for outcome in sampler.step():
            assert not isinstance(outcome, Failure), outcome
            if outcome.sample is not None:
                samples[outcome.request] = outcome.sample
    raise AssertionError(f"{sampler.running} requests are still running after {MOST_STEPS} steps")
