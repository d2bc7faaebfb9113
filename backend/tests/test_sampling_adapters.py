"""Adapters: what PEFT wrote is what samples, all of it, from the pristine base, or it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sampling_support import plain_logprobs, plain_model, run, save_adapter, tiny_base

from ludus_backend.errors import LudusError
from ludus_backend.sampling.adapter_file import read_adapter
from ludus_backend.sampling.sampler import SampleRequest
from ludus_backend.sampling.torch_sampler import TorchSampler

BASE = tiny_base()
PROMPT = [7, 1, 200, 33, 8, 9]
WEIGHTS = "adapter_model.safetensors"


def reply_logprobs(sampler: TorchSampler, policy: str) -> tuple[list[int], list[float]]:
    sample = run(sampler, [SampleRequest(id=1, policy=policy, prompt_ids=PROMPT, max_tokens=5, seed=3)])[1]
    return sample.ids, sample.logprobs


@pytest.mark.parametrize("options", [{}, {"use_rslora": True, "r": 9}, {"target_modules": ["q_proj", "down_proj"]}])
def test_lora_03_every_tensor_of_the_file_is_applied(tmp_path: Path, options: dict[str, object]) -> None:
    folder = save_adapter(BASE, tmp_path, seed=1, **options)
    deltas = read_adapter(folder)
    assert 2 * len(deltas) == len(load_file(folder / WEIGHTS))
    sampler = TorchSampler(BASE)
    sampler.publish("demo@1", folder)
    ids, logprobs = reply_logprobs(sampler, "demo@1")
    assert logprobs == pytest.approx(plain_logprobs(plain_model(BASE, folder), PROMPT, ids), abs=1e-4)
    assert logprobs != pytest.approx(plain_logprobs(plain_model(BASE, None), PROMPT, ids), abs=1e-2)


def test_name_at_0_is_the_base_exactly(tmp_path: Path) -> None:
    zero, other = save_adapter(BASE, tmp_path / "0", seed=1, size=0.0), save_adapter(BASE, tmp_path / "1", seed=2)
    sampler = TorchSampler(BASE)
    sampler.publish("demo@0", zero)
    fresh = reply_logprobs(sampler, "demo@0")
    assert fresh[1] == pytest.approx(plain_logprobs(plain_model(BASE, None), PROMPT, fresh[0]), abs=1e-4)
    sampler.publish("demo@1", other)
    reply_logprobs(sampler, "demo@1")
    sampler.retire("demo@0")
    sampler.publish("demo@0", zero)
    assert reply_logprobs(sampler, "demo@0") == fresh


def test_merging_does_not_drift_and_does_not_touch_the_base(tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in BASE.model.state_dict().items()}
    folders = [save_adapter(BASE, tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    narrow = save_adapter(BASE, tmp_path / "narrow", seed=3, target_modules=["v_proj"])
    sampler = TorchSampler(BASE)
    for index, folder in enumerate((*folders, narrow)):
        sampler.publish(f"demo@{index}", folder)
    first = [reply_logprobs(sampler, f"demo@{index}") for index in range(3)]
    for index in range(3):
        sampler.retire(f"demo@{index}")
    sampler = TorchSampler(BASE)
    for index, folder in reversed(list(enumerate((*folders, narrow)))):
        sampler.publish(f"demo@{index}", folder)
    assert [reply_logprobs(sampler, f"demo@{index}") for index in range(3)] == first
    assert all(torch.equal(tensor, before[name]) for name, tensor in BASE.model.state_dict().items())


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def first_key(tensors: dict[str, torch.Tensor]) -> str:
    return next(name for name in sorted(tensors) if "lora_B" in name)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda tensors: tensors.pop(first_key(tensors)), id="a half is missing"),
        pytest.param(
            lambda tensors: tensors.update({first_key(tensors).replace("layers.0", "layers.9"): torch.zeros(1, 4)}),
            id="a layer that does not exist",
        ),
        pytest.param(lambda tensors: tensors.update({"base_model.model.x": torch.zeros(2)}), id="not a LoRA matrix"),
        pytest.param(lambda tensors: tensors.update({first_key(tensors): torch.zeros(5, 4)}), id="another shape"),
    ],
)
def test_lora_03_an_adapter_that_would_not_be_applied_whole_is_refused(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object]
) -> None:
    folder = save_adapter(BASE, tmp_path, seed=1)
    rewrite(folder, change)
    sampler = TorchSampler(BASE)
    with pytest.raises(LudusError) as caught:
        sampler.publish("demo@1", folder)
    assert caught.value.detail.code == "adapter_not_applied"
    assert caught.value.detail.value and caught.value.detail.advice
    assert not sampler.knows("demo@1")


def test_lora_03_weights_that_did_not_arrive_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_adapter(BASE, tmp_path, seed=1)
    sampler = TorchSampler(BASE)
    # The adapter is read and said to be merged, but no weight changes.
    monkeypatch.setattr(sampler._runner, "load", lambda adapter: True)
    with pytest.raises(LudusError) as caught:
        sampler.publish("demo@1", folder)
    assert caught.value.detail.code == "adapter_not_applied"
    assert "does not change the model" in caught.value.detail.message


def test_an_adapter_whose_effect_rounds_away_is_applied_all_the_same(tmp_path: Path) -> None:
    # 1e-12 beside weights of about 1: less than fp32 (2**-24) can add to them.
    sampler = TorchSampler(BASE)
    sampler.publish("demo@1", save_adapter(BASE, tmp_path, seed=1, size=1e-12))
    assert sampler.knows("demo@1")


def test_options_that_change_the_meaning_of_the_tensors_are_refused(tmp_path: Path) -> None:
    folder = save_adapter(BASE, tmp_path, seed=1)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    with pytest.raises(LudusError, match="use_dora"):
        TorchSampler(BASE).publish("demo@1", folder)


def test_a_failed_publish_leaves_the_other_policies_alone(tmp_path: Path) -> None:
    sampler = TorchSampler(BASE)
    sampler.publish("demo@1", save_adapter(BASE, tmp_path / "1", seed=1))
    good = reply_logprobs(sampler, "demo@1")
    with pytest.raises(LudusError):
        sampler.publish("demo@2", tmp_path / "nowhere")
    assert reply_logprobs(sampler, "demo@1") == good
