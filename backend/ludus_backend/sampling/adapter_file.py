"""Reading a PEFT LoRA adapter folder: ``adapter_config.json`` and ``adapter_model.safetensors``."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ludus_backend.errors import LudusError

_PREFIX = "base_model.model."
_ADVICE = "save the adapter again with PEFT; nothing was sampled with it"
_UNSUPPORTED = {
    "use_dora": False,
    "bias": "none",
    "fan_in_fan_out": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}
"""Options that change what the tensors mean, and the only value each may have here."""


@dataclass
class LowRankDelta:
    """``scale * up @ down`` is added to a weight. ``down``: ``[rank, in]``, ``up``: ``[out, rank]``."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float

    @property
    def is_zero(self) -> bool:
        return not (bool(self.up.any()) and bool(self.down.any()))


def adapter_not_applied(message: str, folder: Path, *, value: object = None, expected: str | None = None) -> LudusError:
    """The error of an adapter that would not change the model as it says."""
    return LudusError(
        "adapter_not_applied",
        f"{message} ({folder.name})",
        field="adapter",
        value=value,
        expected=expected,
        advice=_ADVICE,
    )


def read_adapter(folder: Path) -> dict[str, LowRankDelta]:
    """Deltas by module name (``model.layers.0.self_attn.q_proj``).

    The scale is ``alpha / rank``, with rsLoRA ``alpha / sqrt(rank)``. Every tensor of the file is used, or
    ``LudusError(adapter_not_applied)`` names what is wrong.
    """
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        message = "the adapter cannot be read"
        raise adapter_not_applied(message, folder, value=error, expected="a PEFT folder") from error
    for option, only in _UNSUPPORTED.items():
        if config.get(option) and config[option] != only:
            raise adapter_not_applied(f"adapter option {option} is not supported", folder, value=config[option])
    halves: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        module, _, half = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        if half not in ("lora_A", "lora_B") or not name.startswith(_PREFIX):
            raise adapter_not_applied("a tensor of the adapter is not a LoRA matrix", folder, value=name)
        halves.setdefault(module, {})[half] = tensor.float()
    return {module: _delta(module, pair, config, folder) for module, pair in halves.items()}


def _delta(module: str, pair: dict[str, torch.Tensor], config: dict[str, object], folder: Path) -> LowRankDelta:
    if len(pair) != 2 or pair["lora_A"].shape[0] != pair["lora_B"].shape[1]:
        shapes = {half: tuple(tensor.shape) for half, tensor in pair.items()}
        message = f"lora_A and lora_B of {module} do not belong together"
        raise adapter_not_applied(message, folder, value=shapes, expected="[rank, in], [out, rank]")
    rank = pair["lora_A"].shape[0]
    alpha = float(str(config["lora_alpha"]))
    divisor = math.sqrt(rank) if config.get("use_rslora") else rank
    return LowRankDelta(pair["lora_A"], pair["lora_B"], alpha / divisor)
