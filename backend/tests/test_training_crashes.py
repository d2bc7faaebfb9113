"""A trainer killed in the middle of saves: no step is broken, lost or made twice, and the weights end up the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from sft_samples import sft_update
from training_samples import registration, tiny_base

from ludus_backend.checkpoints import CheckpointStore
from ludus_backend.training.trainer import Trainer

KILLS = 20 if os.environ.get("LUDUS_FULL") else 2
"""``npm run test:full`` sets LUDUS_FULL; each one is a process that loads torch."""

TRAINER = """
import sys
from pathlib import Path
from sft_samples import sft_update
from training_samples import registration, tiny_base
from ludus_backend.training.trainer import Trainer

def heard(done, total, phase):
    if phase == "checkpoint":
        print("saving", flush=True)

trainer = Trainer(tiny_base(Path(sys.argv[1])), Path(sys.argv[1]))
info = trainer.register(registration())
for step in range(info.step, int(sys.argv[2])):
    trainer.sft("demo", sft_update(step, seed=step), heard)
    print(step + 1, flush=True)
"""


def trainer_process(state: Path, until: int) -> subprocess.Popen[str]:
    here = Path(__file__).parent
    paths = {"PYTHONPATH": os.pathsep.join([str(here.parent), str(here)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", TRAINER, str(state), str(until)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **paths})


def test_ckpt_05_kills_in_the_middle_of_saves_break_and_lose_nothing(tmp_path: Path) -> None:
    draw = random.Random(1)
    state, until = tmp_path / "killed", 3 * KILLS + 2
    store = CheckpointStore(state / "models" / "demo" / "checkpoints")
    for _ in range(KILLS):
        process = trainer_process(state, until)
        assert process.stdout is not None
        saves, wanted, committed = 0, draw.randint(1, 3), 0
        for line in process.stdout:
            if line == "saving\n":
                saves += 1
                if saves == wanted:
                    break
            else:
                committed = int(line)
        time.sleep(draw.uniform(0, 0.02))
        process.kill()
        committed = max([committed, *(int(line) for line in process.stdout.read().split() if line != "saving")])
        process.wait()
        store.clean()
        newest, notices = store.newest_whole()
        assert notices == []
        assert newest is not None and newest.step >= committed
        assert store.steps() == list(range(newest.step + 1))
    finish = trainer_process(state, until)
    finish.communicate()
    assert finish.returncode == 0
    straight = Trainer(tiny_base(tmp_path), tmp_path / "straight")
    straight.register(registration())
    for step in range(until):
        straight.sft("demo", sft_update(step, seed=step), lambda *_: None)
    expected = straight.adapter_folder("demo", until) / "adapter_model.safetensors"
    assert store.steps() == list(range(until + 1))
    assert (store.folder(until) / expected.name).read_bytes() == expected.read_bytes()
    assert [stored.key for stored in store.all()] == [None, *(f"sft:{step}" for step in range(until))]
    straight.close()
