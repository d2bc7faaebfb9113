"""Loss axes: presets set them, explicit ones may not contradict, and no option is silently without meaning."""

import pytest
from pydantic import ValidationError

from ludus_backend.errors import LudusError
from ludus_backend.protocol import TrainConfig, TrainGroup
from ludus_backend.training.axes import PRESETS, LossAxes, resolve_axes, resolved_config


def axes(**options):
    return resolve_axes(TrainConfig(**options))


def refused(**options):
    with pytest.raises(LudusError) as caught:
        axes(**options)
    detail = caught.value.detail
    assert detail.code == "invalid_request" and detail.expected and detail.advice
    return detail


def test_defaults():
    assert axes() == LossAxes("cispo", "token", "token", None, 0.2, 0.28, 5.0, "group")


def test_presets_set_axes():
    assert axes(loss="ppo") == axes(loss="dapo") == LossAxes("ppo", "token", "token", None, 0.2, 0.28)
    assert axes(loss="gspo") == LossAxes("ppo", "sequence", "trajectory", None, 3e-4, 4e-4)
    assert axes(loss="grpo") == LossAxes("ppo", "token", "trajectory", None, 0.2, 0.2)
    assert axes(loss="dr_grpo") == LossAxes("ppo", "token", "constant", 512, 0.2, 0.2, std_scaling="none")


def test_free_axes_can_be_set():
    assert axes(loss="gspo", clip_low=0.1, aggregation="token").clip_low == 0.1
    assert axes(loss="cispo", std_scaling="batch", importance_level="sequence").importance_level == "sequence"
    assert axes(loss="ppo", aggregation="constant", aggregation_length=9).aggregation_length == 9
    assert axes(loss="dr_grpo", aggregation_length=64).aggregation_length == 64


@pytest.mark.parametrize(
    ("options", "field", "expected"),
    [
        ({"loss": "dr_grpo", "std_scaling": "group"}, "stdScaling", "none"),
        ({"loss": "dr_grpo", "aggregation": "token"}, "aggregation", "constant"),
        ({"loss": "grpo", "aggregation": "token"}, "aggregation", "trajectory"),
        ({"loss": "grpo", "clip_high": 0.28}, "clipHigh", "0.2"),
        ({"loss": "dapo", "clip_low": 0.1}, "clipLow", "0.2"),
        ({"loss": "dapo", "importance_level": "sequence"}, "importanceLevel", "token"),
        ({"loss": "gspo", "importance_level": "token"}, "importanceLevel", "sequence"),
    ],
)
def test_a_preset_with_a_conflicting_axis_is_refused(options, field, expected):
    detail = refused(**options)
    assert (detail.field, detail.expected) == (f"config.{field}", expected)


def test_a_preset_with_its_own_axis_spelled_out_is_accepted():
    for name, preset in PRESETS.items():
        config = resolved_config(TrainConfig(loss=name), preset)
        assert resolve_axes(config) == preset


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"loss": "cispo", "clip_high": 0.2}, "clipHigh"),
        ({"loss": "ppo", "ratio_cap": 5}, "ratioCap"),
        ({"loss": "gspo", "ratio_cap": 5}, "ratioCap"),
        ({"aggregation": "constant"}, "aggregationLength"),
        ({"aggregation_length": 64}, "aggregationLength"),
        ({"truncated_importance": 2.0}, "truncatedImportance"),
    ],
)
def test_an_option_without_meaning_or_without_its_partner_is_refused(options, field):
    assert refused(**options).field == f"config.{field}"


def test_a_truncated_weight_goes_with_recomputed_probabilities():
    axes(truncated_importance=2.0, old_logprobs="recomputed")


@pytest.mark.parametrize("name", ["clipRange", "importance_sampling_level", "beta"])
def test_unknown_options_are_refused_by_name(name):
    with pytest.raises(ValidationError, match=name) as caught:
        TrainConfig.model_validate({name: 1})
    assert caught.value.errors()[0]["type"] == "extra_forbidden"


def test_train_02_a_log_probability_that_is_not_a_number_never_reaches_the_trainer():
    exchange = {"id": "e", "prefixHash": "", "promptIds": [1], "sampledIds": [2], "policy": "demo@0"}
    trajectory = {"id": "t", "reward": 1.0, "exchanges": [exchange | {"logprobs": [float("nan")]}]}
    with pytest.raises(ValidationError) as caught:
        TrainGroup.model_validate({"id": "g", "trajectories": [trajectory]})
    assert caught.value.errors()[0]["loc"] == ("trajectories", 0, "exchanges", 0, "logprobs", 0)
