"""Forks: step 0 of the new model has the weights of the step it was forked from, and the source stays as it is."""

from __future__ import annotations

import pytest
from training_samples import random_groups, registration, tiny_base

from ludus_backend.checkpoints import OPTIMIZER
from ludus_backend.errors import LudusError
from ludus_backend.protocol import ForkModel, RegisterModel, TrainConfig, TrainRequest
from ludus_backend.training.fork import find_source, remove_unfinished, write_fork
from ludus_backend.training.trainer import Trainer


@pytest.fixture
def models(tmp_path):
    return tmp_path / "state" / "models"


@pytest.fixture
def trainer(tmp_path):
    """``demo`` at step 3."""
    made = Trainer(tiny_base(tmp_path), tmp_path / "state")
    made.register(registration())
    for step in range(3):
        train(made, "demo", step)
    yield made
    made.close()


def train(trainer, name, step, seed=None):
    groups = random_groups(step if seed is None else seed, step=step)
    request = TrainRequest(key=f"key-{step}", expected_step=step, groups=groups, config=TrainConfig(learning_rate=1e-2))
    return trainer.train(name, request, lambda *_: None)


def weights(trainer, name, step):
    return (trainer.adapter_folder(name, step) / "adapter_model.safetensors").read_bytes()


def forked(trainer, models, **options) -> RegisterModel:
    fork = ForkModel(name="fork", **options)
    request = write_fork(models, fork, find_source(models, fork))
    trainer.register(request)
    return request


def refused(models, **options):
    with pytest.raises(LudusError) as caught:
        fork = ForkModel(name="fork", **options)
        write_fork(models, fork, find_source(models, fork))
    assert caught.value.detail.code == "invalid_request"
    return caught.value.detail.field


def test_step_0_of_a_fork_has_the_weights_and_goes_its_own_way(trainer, models):
    forked(trainer, models, model="demo", step=2)
    assert weights(trainer, "fork", 0) == weights(trainer, "demo", 2)
    assert trainer.register(registration("fork")).notices == []
    train(trainer, "fork", 0, seed=9)
    assert trainer.steps("fork") == [0, 1] and trainer.steps("demo") == [0, 1, 2, 3]
    assert weights(trainer, "fork", 1) != weights(trainer, "demo", 3)


def test_with_the_optimizer_a_fork_makes_the_step_its_source_would_make(trainer, models):
    forked(trainer, models, model="demo", optimizer=True)
    fresh = ForkModel(name="fresh", model="demo")
    trainer.register(write_fork(models, fresh, find_source(models, fresh)))
    train(trainer, "demo", 3)
    for name in ("fork", "fresh"):
        train(trainer, name, 0, seed=3)
    expected = weights(trainer, "demo", 4)
    assert weights(trainer, "fork", 1) == expected != weights(trainer, "fresh", 1)


def test_the_path_may_be_a_run_its_state_a_model_or_a_checkpoint(trainer, models, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "backend").symlink_to(models.parent)
    elsewhere = tmp_path / "other" / "models"
    for number, (path, step) in enumerate(
        [(run, 3), (models.parent, 3), (models / "demo", 3), (models / "demo" / "checkpoints" / "000001", 1)]
    ):
        fork = ForkModel(name=f"fork-{number}", path=str(path))
        source = find_source(elsewhere, fork)
        assert (source.declared.name, source.stored.step) == ("demo", step)
        write_fork(elsewhere, fork, source)
        made = elsewhere / f"fork-{number}" / "checkpoints" / "000000" / "adapter_model.safetensors"
        assert made.read_bytes() == weights(trainer, "demo", step)
        assert not (made.parent / OPTIMIZER).exists()


def test_a_repeat_finds_the_fork_and_another_one_under_its_name_is_refused(trainer, models):
    forked(trainer, models, model="demo", step=2)
    train(trainer, "fork", 0)
    forked(trainer, models, model="demo", step=2)
    assert trainer.steps("fork") == [0, 1]
    assert refused(models, model="demo", step=1) == "name"


def test_the_newest_whole_step_is_the_default_and_a_broken_one_is_left_as_it_is(trainer, models):
    broken = models / "demo" / "checkpoints" / "000003" / "adapter_model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1])
    assert find_source(models, ForkModel(name="fork", model="demo")).stored.step == 2
    assert broken.exists()
    assert refused(models, model="demo", step=3) == "step"


def test_what_cannot_be_forked_is_refused_by_field(trainer, models, tmp_path):
    assert refused(models) == "model"
    assert refused(models, model="other") == "model"
    assert refused(models, model="demo", step=7) == "step"
    assert refused(models, model="demo", step=0, optimizer=True) == "optimizer"
    assert refused(models, path="relative") == "path"
    assert refused(models, path=str(tmp_path / "absent")) == "path"
    assert refused(models, path=str(tmp_path)) == "path"
    trainer.register(registration("second"))
    assert refused(models, path=str(models.parent)) == "model"
    assert refused(models, path=str(models / "demo" / "checkpoints" / "000001"), step=2) == "step"
    assert not (models / "fork").exists()


def test_a_fork_cut_short_leaves_no_model(trainer, models, monkeypatch):
    def cut(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr("ludus_backend.training.fork.os.rename", cut)
        killed.setattr("ludus_backend.training.fork.shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            forked(trainer, models, model="demo")
    assert not (models / "fork").exists()
    remove_unfinished(models)
    assert [entry.name for entry in models.iterdir()] == ["demo"]
