"""Exports: what a fresh transformers or peft loads is what was trained."""

from __future__ import annotations

import errno
import os

import pytest
import torch
from peft import PeftModel
from training_samples import random_groups, registration, tiny_base
from transformers import AutoModelForCausalLM, AutoTokenizer

from ludus_backend.engine import export as exporting
from ludus_backend.engine.export import export, lost_in_rounding, merge
from ludus_backend.engine_messages import SftRow, SftUpdate
from ludus_backend.errors import LudusError
from ludus_backend.models.base_model import cache_folder, load_base
from ludus_backend.protocol import BaseModelSpec, ExportModel, RegisterModel, SftConfig, TrainConfig, TrainRequest
from ludus_backend.sampling.adapter_file import LowRankDelta
from ludus_backend.training.trainer import Trainer

IDS = torch.arange(3, 40)[None]


@pytest.fixture
def base(tmp_path):
    made = tiny_base(tmp_path)
    made.tokenizer.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    return made


@pytest.fixture
def trainer(base, tmp_path):
    """``demo`` at step 2, with a learning rate that leaves a mark."""
    made = Trainer(base, tmp_path / "state")
    made.register(registration())
    for step in range(2):
        groups = random_groups(step, step=step)
        config = TrainConfig(learning_rate=2e-2, grad_clip=1.0)
        made.train("demo", TrainRequest(key=f"k{step}", expected_step=step, groups=groups, config=config), lambda *_: 0)
    yield made
    made.close()


def exported(trainer, tmp_path, name="out", step=None, **options):
    request = ExportModel(step=step, destination=str(tmp_path / name), **options)
    return export(trainer._base, trainer.stored("demo", step), request, tmp_path / "state")


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS).logits


def adapted(trainer, tmp_path, step=2):
    """The adapter's own output, by peft on a base of its own."""
    return logits(PeftModel.from_pretrained(tiny_base(tmp_path).model, trainer.adapter_folder("demo", step)))


def test_ckpt_07_the_merged_weight_is_the_base_plus_scale_times_b_a():
    up, down = torch.tensor([[1.0], [2.0], [0.0], [-1.0]]), torch.tensor([[0.5, 0.0, -1.0, 0.25]])
    merged = merge(torch.eye(4), LowRankDelta(down, up, 2.0))
    expected = torch.tensor([[2.0, 0.0, -2.0, 0.5], [2.0, 1.0, -4.0, 1.0], [0.0, 0.0, 1.0, 0.0], [-1.0, 0.0, 2.0, 0.5]])
    torch.testing.assert_close(merged, expected, atol=1e-6, rtol=0)


def test_ckpt_07_a_fresh_load_of_the_merged_model_gives_the_adapters_logits(trainer, tmp_path):
    found = exported(trainer, tmp_path, dtype="fp32")
    fresh = AutoModelForCausalLM.from_pretrained(found.path, dtype=torch.float32)
    expected = adapted(trainer, tmp_path)
    torch.testing.assert_close(logits(fresh), expected, atol=1e-5, rtol=1e-5)
    assert (expected - logits(tiny_base(tmp_path).model)).abs().max() > 0.01
    assert (found.step, found.warnings) == (2, [])
    assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"} <= set(found.files)


def test_ckpt_07_exporting_twice_gives_the_same_bytes_and_leaves_the_base_alone(trainer, tmp_path):
    before = {name: tensor.clone() for name, tensor in trainer._base.model.state_dict().items()}
    first, second = (exported(trainer, tmp_path, name, dtype="bf16") for name in ("one", "two"))
    assert first.files == second.files and first.bytes == second.bytes
    for name in first.files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer._base.model.state_dict().items())


@pytest.mark.parametrize(("dtype", "kind", "limit"), [("fp16", torch.float16, 5e-3), ("bf16", torch.bfloat16, 4e-2)])
def test_ckpt_07_half_precision_is_the_merged_model_up_to_rounding(trainer, tmp_path, dtype, kind, limit):
    found = exported(trainer, tmp_path, dtype=dtype)
    fresh = AutoModelForCausalLM.from_pretrained(found.path, dtype="auto")
    assert fresh.dtype == kind
    expected = adapted(trainer, tmp_path)
    assert (logits(fresh.float()) - expected).abs().max() < limit * expected.abs().max()


def test_the_tokenizer_and_its_chat_template_come_along_and_nothing_of_this_package(trainer, tmp_path, base):
    found = exported(trainer, tmp_path, dtype="fp16")
    tokenizer = AutoTokenizer.from_pretrained(found.path)
    talk = [{"role": "user", "content": "w3 w5"}]
    assert tokenizer.apply_chat_template(talk, tokenize=False) == "w3 w5 "
    assert tokenizer("w3<end>")["input_ids"] == base.tokenizer("w3<end>")["input_ids"] == [3, 96]
    assert "ludus" not in (tmp_path / "out" / "config.json").read_text().replace(str(tmp_path), "")


def test_ckpt_07_a_change_below_the_rounding_step_is_a_warning(trainer, tmp_path, base):
    """bfloat16 has 8 bits: near 1 its step is 2 ** -7."""
    weight = torch.ones(4, 4)
    small = LowRankDelta(torch.full((1, 4), 0.5), torch.full((4, 1), 0.001), 2.0)
    assert lost_in_rounding(weight, small, torch.bfloat16) and not lost_in_rounding(weight, small, torch.float16)
    assert not lost_in_rounding(weight, LowRankDelta(small.down, small.up, 20.0), torch.bfloat16)
    assert exported(trainer, tmp_path, step=0).warnings == ["the adapter is zero: this is the base model"]
    request = TrainRequest(key="tiny", expected_step=0, groups=random_groups(0), config=TrainConfig(learning_rate=1e-7))
    trainer.register(registration("faint"))
    trainer.train("faint", request, lambda *_: 0)
    faint = ExportModel(destination=str(tmp_path / "faint"), dtype="bf16")
    [warning] = export(base, trainer.stored("faint", 1), faint, tmp_path / "state").warnings
    assert warning.startswith("rounding to bfloat16 erases the adapter's change of 14 of 14 layers")


def test_the_adapter_is_copied_as_it_is(trainer, tmp_path):
    found = exported(trainer, tmp_path, format="adapter", step=1)
    assert found.files == ["adapter_config.json", "adapter_model.safetensors"]
    assert (found.step, found.bytes) == (1, sum((tmp_path / "out" / name).stat().st_size for name in found.files))
    fresh = logits(PeftModel.from_pretrained(tiny_base(tmp_path).model, found.path))
    torch.testing.assert_close(fresh, adapted(trainer, tmp_path, 1))


def test_places_that_cannot_take_an_export_are_refused(trainer, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine.txt").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "taken")
    for name in ("taken", "taken/mine.txt", "link", "no/such/parent", "state/models/demo/checkpoints/000009"):
        with pytest.raises(LudusError) as caught:
            exported(trainer, tmp_path, name)
        assert (caught.value.detail.code, caught.value.detail.field) == ("invalid_request", "destination")
    relative = ExportModel(destination="here")
    with pytest.raises(LudusError, match="an absolute path"):
        export(trainer._base, trainer.stored("demo", None), relative, tmp_path / "state")
    assert (taken / "mine.txt").read_text() == "kept"


def test_ckpt_02_a_full_disk_leaves_no_half_export(trainer, tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = sorted(entry.name for entry in tmp_path.iterdir())
    with monkeypatch.context() as broken:
        broken.setattr(exporting, "_flush", full)
        with pytest.raises(LudusError) as caught:
            exported(trainer, tmp_path)
    assert caught.value.detail.code == "disk_full"
    with monkeypatch.context() as broken:
        broken.setattr(exporting.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000})())
        with pytest.raises(LudusError) as caught:
            exported(trainer, tmp_path)
    assert caught.value.detail.code == "disk_full" and "free bytes" in (caught.value.detail.expected or "")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before


@pytest.mark.skipif(not os.environ.get("LUDUS_FULL"), reason="takes half a minute; npm run test:full")
def test_ckpt_07_the_bundled_model_is_exported_with_its_chat_template(tmp_path):
    base = load_base(BaseModelSpec(), cache_folder())
    trainer = Trainer(base, tmp_path / "state")
    trainer.register(RegisterModel(name="demo"))
    talk = [{"role": "user", "content": "Ping?"}, {"role": "assistant", "content": "Pong!"}]
    ids = base.tokenizer.apply_chat_template(talk, tokenize=True, return_dict=False)
    rows = [SftRow(ids=ids, trained=list(range(len(ids) - 6, len(ids))))]
    update = SftUpdate(key="one", expected_step=0, rows=rows, config=SftConfig(learning_rate=1e-3))
    trainer.sft("demo", update, lambda *_: None)
    adapter = PeftModel.from_pretrained(
        load_base(BaseModelSpec(), cache_folder()).model, trainer.adapter_folder("demo", 1)
    )
    with torch.no_grad():
        expected = adapter(input_ids=torch.tensor([ids])).logits
    for dtype, limit in (("fp32", 1e-5), ("bf16", 5e-2)):
        request = ExportModel(destination=str(tmp_path / dtype), dtype=dtype)
        found = export(base, trainer.stored("demo", 1), request, tmp_path / "state")
        fresh = AutoModelForCausalLM.from_pretrained(found.path, dtype=torch.float32)
        with torch.no_grad():
            difference = (fresh(input_ids=torch.tensor([ids])).logits - expected).abs().max()
        assert difference < limit * expected.abs().max()
        tokenizer = AutoTokenizer.from_pretrained(found.path)
        assert tokenizer.apply_chat_template(talk, tokenize=True, return_dict=False) == ids
    trainer.close()
