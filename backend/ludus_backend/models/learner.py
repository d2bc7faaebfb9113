"""A LoRA adapter in training over the shared base: its parameters, optimiser, and how both become files and back."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import Linear as LoraLinear
from safetensors.torch import load_file, save

from ludus_backend.errors import LudusError
from ludus_backend.models import lora_linear, tree_attention
from ludus_backend.models.base_model import LoadedBase
from ludus_backend.protocol import LoraSpec, SftConfig, TrainConfig

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PROBE_LIMIT = 1e-3
"""Largest difference of logits, relative to the largest logit, that rounding explains."""
_PROBE_TOKENS = 8


class Learner:
    """One adapter (``default`` to peft) on a twin of the base: the base's own modules stay as they are.

    A fresh adapter is that of peft: A random by ``seed``, B zero, so ``name@0`` equals the base. Raises
    ``LudusError(invalid_request)`` for a LoRA that cannot be made or a base whose attention the tree does not fit.
    """

    def __init__(self, base: LoadedBase, lora: LoraSpec, seed: int) -> None:
        tree_attention.register()
        if lora.dropout != 0:
            raise LudusError(
                "invalid_request",
                "dropout would make the policy in training another one than the policy that sampled",
                field="lora.dropout",
                value=lora.dropout,
                expected="0",
                advice="leave dropout out",
            )
        twin = base.twin()
        twin.config.name_or_path = str(base.spec.id or base.folder.name)
        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,  # type: ignore[arg-type]
            lora_dropout=0.0,
            target_modules=lora.target_modules,
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                self._model = get_peft_model(twin, config)
            except ValueError as error:
                raise LudusError(
                    "invalid_request",
                    f"the adapter cannot be made: {error}",
                    field="lora.targetModules",
                    value=lora.target_modules,
                    expected="all-linear, or names of linear layers of the base model",
                    advice="use all-linear",
                ) from error
        twin.set_attn_implementation(tree_attention.TREE_ATTENTION)
        lora_linear.fuse(self._model)
        self.body: torch.nn.Module = twin.get_decoder()
        self.head: torch.nn.Module = twin.get_output_embeddings()
        self.device = base.model.device
        self.parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self.optimizer = _optimizer(self.parameters)
        self._refuse_other_attention(base)

    def configure(self, config: TrainConfig | SftConfig) -> None:
        """Sets the optimiser's options for the next step; moments and step count stay."""
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate
            group["betas"] = (config.beta1, config.beta2)
            group["weight_decay"] = config.weight_decay

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Inside, ``body`` is the base model: the reference policy of a KL term, without a second set of weights."""
        with self._model.disable_adapter():
            yield

    def adapter_files(self) -> dict[str, bytes]:
        """The PEFT folder: ``adapter_config.json`` and ``adapter_model.safetensors``. Equal weights, equal bytes."""
        config = self._model.peft_config["default"].to_dict()
        config = {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}
        config["inference_mode"] = True
        weights = {name: tensor.contiguous() for name, tensor in get_peft_model_state_dict(self._model).items()}
        return {
            ADAPTER_CONFIG: json.dumps(config, indent=2, sort_keys=True, default=str).encode(),
            ADAPTER_WEIGHTS: save(weights, metadata={"format": "pt"}),
        }

    def optimizer_file(self) -> bytes:
        """The optimiser's state and torch's random state, for ``torch.load(weights_only=True)``."""
        buffer = io.BytesIO()
        torch.save({"optimizer": self.optimizer.state_dict(), "random": torch.get_rng_state()}, buffer)
        return buffer.getvalue()

    def load(self, folder: Path, optimizer: Path | None) -> None:
        """Takes weights from a PEFT folder and, where there is one, the optimiser's and random state from its file."""
        weights = load_file(folder / ADAPTER_WEIGHTS)
        known = get_peft_model_state_dict(self._model)
        if weights.keys() != known.keys() or any(weights[name].shape != known[name].shape for name in known):
            raise ValueError(f"{ADAPTER_WEIGHTS} does not hold the tensors of this adapter")
        set_peft_model_state_dict(self._model, weights)
        self.optimizer = _optimizer(self.parameters)
        if optimizer is not None:
            state = torch.load(optimizer, weights_only=True)
            self.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"])

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Whether the adapter can be used: finite weights, also merged into the base's, and finite logits."""
        if not all(bool(parameter.isfinite().all()) for parameter in self.parameters):
            return False
        for module in self._model.modules():
            if isinstance(module, LoraLinear):
                down = cast(torch.Tensor, module.lora_A["default"].weight)
                up = cast(torch.Tensor, module.lora_B["default"].weight)
                # No entry of scale * B @ A is larger than this.
                bound = module.scaling["default"] * module.r["default"] * down.abs().max() * up.abs().max()
                if not bool(bound.isfinite()):
                    return False
        ids = torch.arange(1, 1 + _PROBE_TOKENS, device=self.device).remainder(
            cast(torch.Tensor, self.head.weight).shape[0]
        )[None]
        places = torch.arange(_PROBE_TOKENS, device=self.device)[None]
        stream = tree_attention.Stream([_PROBE_TOKENS], [[]])
        hidden = self.body(input_ids=ids, position_ids=places, use_cache=False, tree=stream).last_hidden_state
        return bool(self.head(hidden).isfinite().all())

    def snapshot(self) -> Any:
        """A copy of everything a step changes."""
        return [parameter.detach().clone() for parameter in self.parameters], copy.deepcopy(self.optimizer.state_dict())

    @torch.no_grad()
    def restore(self, snapshot: Any) -> None:
        """Goes back to a snapshot, bit for bit."""
        weights, optimizer = snapshot
        for parameter, weight in zip(self.parameters, weights, strict=True):
            parameter.copy_(weight)
        self.optimizer = _optimizer(self.parameters)
        self.optimizer.load_state_dict(optimizer)

    @torch.no_grad()
    def _refuse_other_attention(self, base: LoadedBase) -> None:
        """Compares a branching probe with the plain base (a fresh adapter changes nothing yet)."""
        ids = torch.arange(10, 22, device=self.device).remainder(base.model.config.vocab_size)
        trunk, first, second = ids[:4], ids[4:9], ids[9:]
        places = torch.tensor([[*range(4), *range(4, 9), *range(4, 7)]], device=self.device)
        stream = tree_attention.Stream([4, 5, 3], [[], [0], [0]])
        hidden = self.body(input_ids=ids[None], position_ids=places, use_cache=False, tree=stream).last_hidden_state
        logits = self.head(hidden)[0]
        for tail, place in ((first, slice(4, 9)), (second, slice(9, 12))):
            expected = base.model(input_ids=torch.cat([trunk, tail])[None], use_cache=False).logits[0, 4:]
            difference = ((logits[place] - expected).abs().max() / expected.abs().max()).item()
            if not difference <= _PROBE_LIMIT:
                raise LudusError(
                    "invalid_request",
                    "this architecture does not fit the trainer's shared-prefix attention",
                    field="base.id",
                    value=base.spec.id or base.spec.source,
                    expected=f"logits within {_PROBE_LIMIT} of the plain model's (found {difference})",
                    advice="use a decoder with full attention in every layer, such as Llama or Qwen",
                )


def _optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=0.0, fused=True)
