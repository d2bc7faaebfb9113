"""What a loss is made of: independent axes, and the presets that name known combinations of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ludus_backend.errors import LudusError
from ludus_backend.protocol import TrainConfig


@dataclass(frozen=True)
class LossAxes:
    """Every choice that shapes the loss, resolved. Names are those of ``TrainConfig``."""

    surrogate: Literal["cispo", "ppo"]
    importance_level: Literal["token", "sequence"] = "token"
    """``sequence``: the ratio is the geometric mean over the trajectory's trained tokens, whatever rows they lie in."""
    aggregation: Literal["token", "trajectory", "constant"] = "token"
    aggregation_length: int | None = None
    clip_low: float = 0.2
    clip_high: float = 0.28
    ratio_cap: float = 5.0
    std_scaling: Literal["group", "batch", "none"] = "group"


PRESETS: dict[str, LossAxes] = {
    # MiniMax-M1 2506.13585 eq. 4; ScaleRL 2510.13786.
    "cispo": LossAxes("cispo"),
    # Clip-higher: DAPO 2503.14476 eq. 10.
    "ppo": LossAxes("ppo"),
    # GSPO 2507.18071 eq. 5 to 7; its section 5.1 gives the clip range.
    "gspo": LossAxes("ppo", "sequence", "trajectory", clip_low=3e-4, clip_high=4e-4),
    # DeepSeekMath 2402.03300 eq. 3.
    "grpo": LossAxes("ppo", aggregation="trajectory", clip_high=0.2),
    # Dr. GRPO 2503.20783: no division by the std; a constant length instead of each reply's own (512: trl's default).
    "dr_grpo": LossAxes("ppo", aggregation="constant", aggregation_length=512, clip_high=0.2, std_scaling="none"),
    "dapo": LossAxes("ppo"),
}

_AXES = (
    "importance_level",
    "aggregation",
    "aggregation_length",
    "clip_low",
    "clip_high",
    "ratio_cap",
    "std_scaling",
)
_COMBINATION = ("importance_level", "aggregation", "clip_low", "clip_high", "std_scaling")
_FIXED: dict[str, tuple[str, ...]] = {
    "gspo": ("importance_level",),
    "grpo": _COMBINATION,
    "dr_grpo": _COMBINATION,
    "dapo": _COMBINATION,
}
_MEANINGLESS: dict[str, tuple[str, ...]] = {"cispo": ("clip_low", "clip_high"), "ppo": ("ratio_cap",)}
"""By surrogate: axes that it does not have."""


def resolve_axes(config: TrainConfig) -> LossAxes:
    """The axes of ``config.loss``, with those that were set by hand.

    Raises ``LudusError(invalid_request)`` naming the option where it contradicts the preset, means nothing to its loss,
    or lacks the option that it belongs to.
    """
    preset = PRESETS[config.loss]
    given = {name: value for name in _AXES if (value := getattr(config, name)) is not None}
    for name, value in given.items():
        if name in _FIXED.get(config.loss, ()) and value != getattr(preset, name):
            raise _refused(
                f"the preset {config.loss} fixes this option",
                name,
                value,
                str(getattr(preset, name)),
                "leave it out, or choose loss ppo, whose options are free",
            )
        if name in _MEANINGLESS[preset.surrogate]:
            other = "ratioCap" if preset.surrogate == "cispo" else "clipLow and clipHigh"
            raise _refused(f"the loss {config.loss} has no such option", name, value, "absent", f"set {other} instead")
    axes = replace(preset, **given)
    if axes.aggregation == "constant" and axes.aggregation_length is None:
        raise _refused(
            "aggregation constant divides by trajectories times a length",
            "aggregation_length",
            None,
            "a number of tokens",
            "give the most tokens that a trajectory may sample",
        )
    if axes.aggregation != "constant" and axes.aggregation_length is not None:
        raise _refused(
            "only aggregation constant has a length",
            "aggregation_length",
            axes.aggregation_length,
            "absent",
            "leave it out, or set aggregation to constant",
        )
    if config.truncated_importance is not None and config.old_logprobs == "sampler":
        raise _refused(
            "the ratio against the sampler's record is the correction already",
            "truncated_importance",
            config.truncated_importance,
            "absent, or oldLogprobs recomputed",
            "set oldLogprobs to recomputed, or cap the ratio itself (ratioCap)",
        )
    return axes


def resolved_config(config: TrainConfig, axes: LossAxes) -> TrainConfig:
    """``config`` with the axes that hold: what a checkpoint's manifest keeps."""
    chosen = {name: getattr(axes, name) for name in _AXES if name not in _MEANINGLESS[axes.surrogate]}
    return config.model_copy(update=chosen)


def _refused(message: str, name: str, value: Any, expected: str, advice: str) -> LudusError:
    return LudusError(
        "invalid_request",
        message,
        field=f"config.{TrainConfig.model_fields[name].alias or name}",
        value=value,
        expected=expected,
        advice=advice,
    )
