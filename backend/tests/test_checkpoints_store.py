"""Checkpoints: whole or not there."""

import errno
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ludus_backend import durable
from ludus_backend.checkpoints import MANIFEST, OPTIMIZER, CheckpointStore
from ludus_backend.errors import LudusError

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"w" * 4096, OPTIMIZER: b"o" * 100}


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints")


def test_a_checkpoint_comes_back_with_key_metrics_and_result(store):
    store.write(3, FILES, key="run:3", metrics={"loss": 0.5}, result={"step": 3}, config={"loss": "cispo"})
    found = store.read(3)
    assert found.folder.name == "000003"
    assert (found.key, found.metrics, found.result) == ("run:3", {"loss": 0.5}, {"step": 3})
    assert found.config == {"loss": "cispo"}
    assert (found.folder / "adapter_model.safetensors").read_bytes() == FILES["adapter_model.safetensors"]


def test_ckpt_01_resume_takes_the_newest_whole_one_and_says_what_it_skipped(store, tmp_path):
    for step in (3, 4, 5):
        store.write(step, FILES)
    root = tmp_path / "checkpoints"
    with open(root / "000004" / "adapter_model.safetensors", "r+b") as file:
        file.truncate(512)
    for entry in (root / "000005").iterdir():
        entry.unlink()
    (root / "000006.tmp").mkdir()
    (root / ".tmp-000006-x").mkdir()
    (root / ".tmp-000006-x" / "half").write_bytes(b"1")
    (root / "000007").write_text("a file, not a folder")
    store.clean()
    found, notices = store.newest_whole()
    assert found is not None and found.step == 3
    assert len(notices) == 2
    assert "checkpoint 5" in notices[0] and "manifest.json is missing" in notices[0]
    assert "checkpoint 4" in notices[1] and "512 bytes instead of 4096" in notices[1]
    assert not (root / "000006.tmp").exists() and not (root / ".tmp-000006-x").exists()
    assert store.steps() == [3]
    store.write(4, FILES)
    assert store.read(4).step == 4
    assert (root / "000004.broken").is_dir()


def test_a_changed_byte_is_noticed(store):
    store.write(1, FILES)
    path = store.folder(1) / "adapter_model.safetensors"
    path.write_bytes(b"v" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match="hash"):
        store.read(1)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"v": 1}', '{"v": 99, "step": 1}', '{"v": 1, "step": 2}'])
def test_an_unreadable_manifest_is_a_broken_checkpoint(store, content):
    store.write(1, FILES)
    (store.folder(1) / MANIFEST).write_text(content)
    with pytest.raises(ValueError, match="manifest"):
        store.read(1)
    assert store.all() == []


def test_ckpt_02_a_full_disk_is_a_typed_error_and_harms_nothing(store, monkeypatch, tmp_path):
    store.write(1, FILES)
    real = os.fsync
    calls = 0

    def full_at_the_second_file(descriptor):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(durable.os, "fsync", full_at_the_second_file)
    with pytest.raises(LudusError) as caught:
        store.write(2, FILES)
    assert caught.value.detail.code == "disk_full"
    assert caught.value.detail.expected == f"{sum(map(len, FILES.values()))} free bytes"
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["000001"]
    assert store.read(1).step == 1


def test_old_optimizer_states_are_dropped_and_the_rest_stays_whole(store):
    for step in range(4):
        store.write(step, FILES)
    store.drop_old_optimizers(keep=2)
    kept = [step for step in store.steps() if (store.folder(step) / OPTIMIZER).exists()]
    assert kept == [2, 3]
    assert store.read(0).step == 0


def test_the_manifest_is_strict_json(store):
    with pytest.raises(ValueError):
        store.write(1, FILES, metrics={"loss": float("nan")})
    assert store.steps() == []
    store.write(1, FILES)
    assert json.loads((store.folder(1) / MANIFEST).read_text())["files"].keys() == FILES.keys()


WRITER = """
import sys
from pathlib import Path
from ludus_backend.checkpoints import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]))
step = int(sys.argv[2])
while True:
    store.write(step, {"adapter_model.safetensors": bytes([step % 256]) * 200_000, "optimizer.pt": b"o" * 400_000})
    print(step, flush=True)
    step += 1
"""


def test_a_process_killed_at_any_moment_leaves_no_broken_and_loses_no_committed_step(store, tmp_path):
    draw = random.Random(0)
    newest = -1
    for _ in range(20 if os.environ.get("LUDUS_FULL") else 4):
        arguments = [sys.executable, "-c", WRITER, str(tmp_path / "checkpoints"), str(newest + 1)]
        source = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        writer = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env={**os.environ, **source})
        assert writer.stdout is not None
        reported = [int(writer.stdout.readline()) for _ in range(draw.randint(1, 3))]
        time.sleep(draw.uniform(0, 0.02))
        writer.kill()
        reported += [int(line) for line in writer.stdout.read().split()]
        writer.wait()
        store.clean()
        found, notices = store.newest_whole()
        assert notices == []
        assert found is not None and found.step >= reported[-1]
        assert store.steps() == list(range(found.step + 1))
        newest = found.step
