"""A disk that is really full: a file system of 2 MB in memory, mounted in a namespace of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WRITER = """
import json, subprocess, sys
from pathlib import Path
from ludus_backend.checkpoints import CheckpointStore
from ludus_backend.errors import LudusError
folder = Path(sys.argv[1])
store = CheckpointStore(folder / "checkpoints")
store.write(1, {"adapter_model.safetensors": b"w" * 100_000})
large = {"adapter_model.safetensors": b"w" * 3_000_000}
try:
    store.write(2, large)
except LudusError as error:
    found = error.detail.model_dump()
store.clean()
left = sorted(entry.name for entry in (folder / "checkpoints").iterdir())
newest = store.newest_whole()[0].step
subprocess.run(["mount", "-o", "remount,size=8m", str(folder)], check=True)
again = store.write(2, large).step
print(json.dumps([found, left, newest, again, store.steps()]))
"""


def in_small_disk(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    mount = 'mount -t tmpfs -o size=2m tmpfs "$0" && exec "$@"'
    source = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    arguments = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(folder), *command]
    return subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, **source})


def test_ckpt_02_a_full_disk_harms_nothing_and_the_same_step_can_be_written_once_there_is_room(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or in_small_disk(tmp_path, "true").returncode != 0:
        pytest.skip("this system lets no test mount a file system")
    ended = in_small_disk(tmp_path, sys.executable, "-c", WRITER, str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    error, left, newest, again, steps = json.loads(ended.stdout)
    assert (error["code"], error["value"]) == ("disk_full", str(tmp_path / "checkpoints"))
    assert error["expected"] == "3000000 free bytes"
    assert (left, newest) == (["000001"], 1)
    assert (again, steps) == (2, [1, 2])
