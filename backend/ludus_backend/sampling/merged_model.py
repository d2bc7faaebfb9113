"""The weights that sample: the base model with one adapter at a time merged in.

The merged weights are always computed from the pristine base, ``W = W0 + scale * B @ A``; un-merging by subtraction
drifts. Only linear layers have weights of their own here; embeddings, norms and biases are the base model's.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from ludus_backend.models.base_model import LoadedBase
from ludus_backend.sampling.adapter_file import LowRankDelta, adapter_not_applied, read_adapter
from ludus_backend.sampling.packed_linear import PackedLinear


class MergedModel:
    """A second tree of modules over the base's weights, whose linear layers hold the merged ones."""

    def __init__(self, base: LoadedBase) -> None:
        self.model: PreTrainedModel = base.twin()
        linear = {name: module for name, module in base.model.named_modules() if isinstance(module, nn.Linear)}
        self._pristine = {name: module.weight for name, module in linear.items()}
        for name, module in linear.items():
            self.model.set_submodule(name, PackedLinear(module.weight, module.bias))
        self._changed: set[str] = set()

    @torch.inference_mode()
    def load(self, folder: Path) -> bool:
        """Merges the adapter of ``folder``. Returns False where it adds nothing (``B`` is zero, as in ``name@0``).

        The model is checked to take every tensor of the file before anything changes, else
        ``LudusError(adapter_not_applied)``.
        """
        deltas = read_adapter(folder)
        for name, delta in deltas.items():
            self._check(name, delta, folder)
        for name in self._changed - deltas.keys():
            self._linear(name).load(self._pristine[name])
        # Before the first weight changes: a merge that is broken off must not leave a layer behind.
        self._changed |= deltas.keys()
        for name, delta in deltas.items():
            merged = torch.addmm(self._pristine[name], delta.up, delta.down, alpha=delta.scale)
            self._linear(name).load(self._pristine[name] if delta.is_zero else merged)
        self._changed = set(deltas)
        return not all(delta.is_zero for delta in deltas.values())

    def _linear(self, name: str) -> PackedLinear:
        module = self.model.get_submodule(name)
        assert isinstance(module, PackedLinear)
        return module

    def _check(self, name: str, delta: LowRankDelta, folder: Path) -> None:
        weight = self._pristine.get(name)
        if weight is None:
            raise adapter_not_applied("the adapter names a layer that the base model does not have", folder, value=name)
        if weight.shape != (delta.up.shape[0], delta.down.shape[1]):
            shape = (delta.up.shape[0], delta.down.shape[1])
            raise adapter_not_applied(
                f"the adapter's {name} has another shape", folder, value=shape, expected=str(tuple(weight.shape))
            )


@torch.inference_mode()
def largest_change(base: LoadedBase, folder: Path) -> float:
    """Largest ``|scale * B @ A|`` that the adapter of ``folder`` adds to a layer, relative to its largest ``|W|``."""
    changes = [
        delta.scale * (delta.up @ delta.down).abs().max() / base.model.get_parameter(f"{name}.weight").abs().max()
        for name, delta in read_adapter(folder).items()
    ]
    return float(torch.stack(changes).max())
