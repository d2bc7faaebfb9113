"""Loading a base model: from a folder, and what is said where there is none."""

import pytest
import torch
from training_samples import tiny_base

from ludus_backend.errors import LudusError
from ludus_backend.models import bundled
from ludus_backend.models.attention import GROUPED_ATTENTION
from ludus_backend.models.base_model import cache_folder, load_base
from ludus_backend.protocol import BaseModelSpec


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    base = tiny_base(folder)
    base.model.save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)
    return folder


def test_a_folder_loads_frozen_in_fp32_with_grouped_attention(folder, tmp_path):
    base = load_base(BaseModelSpec(source="path", id=str(folder), context_length=100), tmp_path)
    assert base.model.config._attn_implementation == GROUPED_ATTENTION
    assert all(p.dtype == torch.float32 and not p.requires_grad for p in base.model.parameters())
    assert (base.context_length, base.stop_ids, base.folder) == (100, [96], folder)
    # Embedding 97 x 64; a layer: q and o 64 x 64, k and v 64 x 32, three of 64 x 128, two norms; the last norm.
    assert base.parameters == 6_208 + 2 * (12_288 + 24_576 + 128) + 64
    ids = torch.arange(10)[None]
    expected = tiny_base(tmp_path).model(ids).logits
    torch.testing.assert_close(base.model(ids).logits, expected)


def test_a_twin_shares_weights_but_not_modules(folder, tmp_path):
    base = load_base(BaseModelSpec(source="path", id=str(folder)), tmp_path)
    twin = base.twin()
    assert twin.model.layers[0] is not base.model.model.layers[0]
    assert twin.config is not base.model.config
    assert all(a is b for a, b in zip(twin.parameters(), base.model.parameters(), strict=True))


def refused(spec, tmp_path):
    with pytest.raises(LudusError) as caught:
        load_base(spec, tmp_path)
    return caught.value.detail


def test_missing_models_are_typed_errors(tmp_path, monkeypatch):
    gone = refused(BaseModelSpec(source="path", id=str(tmp_path / "gone")), tmp_path)
    assert (gone.code, gone.field) == ("model_missing", "base.id")
    assert refused(BaseModelSpec(source="path"), tmp_path).code == "invalid_request"
    monkeypatch.setattr(bundled.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv(bundled.WHEEL_VARIABLE, raising=False)
    assert "pip install" in refused(BaseModelSpec(), tmp_path).advice
    monkeypatch.setenv(bundled.WHEEL_VARIABLE, str(tmp_path / "gone.whl"))
    assert refused(BaseModelSpec(), tmp_path).field == bundled.WHEEL_VARIABLE
    (tmp_path / "broken.whl").write_bytes(b"not a wheel")
    monkeypatch.setenv(bundled.WHEEL_VARIABLE, str(tmp_path / "broken.whl"))
    assert refused(BaseModelSpec(), tmp_path).code == "model_missing"
    assert not any((tmp_path / "models").iterdir())


def test_a_context_longer_than_the_model_is_refused(folder, tmp_path):
    detail = refused(BaseModelSpec(source="path", id=str(folder), context_length=10_000), tmp_path)
    assert (detail.field, detail.expected) == ("base.contextLength", "at most 8192")


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LUDUS_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("LUDUS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "ludus"
