"""Deleting checkpoints: what is newest, in use, best or in doubt stays."""

from __future__ import annotations

import pytest

from ludus_backend.checkpoints import CheckpointStore
from ludus_backend.errors import LudusError
from ludus_backend.protocol import DeleteCheckpoints, KeepBest
from ludus_backend.retention import plan_deletion

FILES = {"adapter_model.safetensors": b"w" * 64}


def filled(folder, metrics):
    """A store with one checkpoint for each entry; step 0 was made by no update."""
    store = CheckpointStore(folder)
    for step, figures in enumerate(metrics):
        store.write(step, FILES, key=f"key-{step}" if step else None, metrics=figures)
    return store


def planned(store, in_use=(), **options):
    return plan_deletion(store.steps(), store.all(), DeleteCheckpoints(**options), lambda step: step in in_use)


def reasons(plan):
    return {kept.step: kept.reason for kept in plan.kept}


def test_lora_07_without_the_metric_history_nothing_is_deleted_and_the_notice_says_why(tmp_path):
    store = filled(tmp_path, [{}, {}, {}, {}])
    plan = planned(store, in_use={2}, keep_last=1, keep_best=KeepBest(metric="reward_mean"))
    assert plan.deleted == []
    assert reasons(plan) == {0: "unknown_metric", 1: "unknown_metric", 2: "in_use", 3: "newest"}
    assert plan.notices == ["all checkpoints were kept: the metric reward_mean of checkpoints 1, 2, 3 is not known"]


def test_lora_07_with_the_history_the_best_the_leased_and_the_latest_stay(tmp_path):
    store = filled(tmp_path, [{}, {"reward_mean": 0.9}, {"reward_mean": 0.2}, {"reward_mean": 0.5}])
    plan = planned(store, in_use={2}, keep_last=1, keep_best=KeepBest(metric="reward_mean"))
    assert plan.deleted == [0]
    assert reasons(plan) == {1: "best", 2: "in_use", 3: "newest"}


def test_keep_last_counts_from_the_newest_and_the_caller_can_ask_for_more(tmp_path):
    store = filled(tmp_path, [{}] * 6)
    plan = planned(store, keep_last=2, keep=[1])
    assert plan.deleted == [0, 2, 3]
    assert reasons(plan) == {1: "asked", 4: "last", 5: "newest"}


def test_the_lowest_can_be_the_best_and_the_newer_one_wins_a_tie(tmp_path):
    store = filled(tmp_path, [{}, {"loss": 0.3}, {"loss": 0.1}, {"loss": 0.1}, {"loss": 0.4}])
    best = KeepBest(metric="loss", mode="min")
    assert planned(store, keep_best=best).deleted == [0, 1, 2]
    assert planned(store, keep_best=KeepBest(metric="loss", mode="min", count=3)).deleted == [0]


def test_a_checkpoint_whose_manifest_cannot_be_read_is_never_let_go_by_a_rule(tmp_path):
    store = filled(tmp_path, [{}] * 4)
    (store.folder(1) / "manifest.json").write_text("{")
    assert planned(store, keep_last=1).deleted == [0, 2]


def test_named_steps_are_deleted_unless_they_are_needed(tmp_path):
    store = filled(tmp_path, [{}] * 4)
    plan = planned(store, in_use={1}, steps=[1, 2, 3])
    assert (plan.deleted, reasons(plan), plan.notices) == ([2], {1: "in_use", 3: "newest"}, [])
    store.delete(2)
    again = planned(store, in_use={1}, steps=[1, 2, 3])
    assert (again.deleted, again.notices) == ([], ["checkpoint 2 is not there any more"])


@pytest.mark.parametrize(
    ("options", "field"),
    [({}, "steps"), ({"steps": [1], "keep_last": 1}, "steps"), ({"steps": [1, 9]}, "steps[1]")],
)
def test_a_deletion_that_does_not_say_what_is_refused(tmp_path, options, field):
    store = filled(tmp_path, [{}] * 3)
    with pytest.raises(LudusError) as caught:
        planned(store, **options)
    assert (caught.value.detail.code, caught.value.detail.field) == ("invalid_request", field)


def test_a_deletion_cut_short_leaves_nothing_that_looks_broken(tmp_path, monkeypatch):
    store = filled(tmp_path, [{}] * 3)

    def cut(path, *_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr("ludus_backend.checkpoints.shutil.rmtree", cut)
        with pytest.raises(KeyboardInterrupt):
            store.delete(1)
    assert store.steps() == [0, 2]
    store.clean()
    assert store.newest_whole() == (store.read(2), [])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["000000", "000002"]


def test_the_keys_of_deleted_steps_are_remembered(tmp_path):
    store = CheckpointStore(tmp_path)
    for step in range(4):
        store.write(step, FILES, key=f"key-{step}" if step else None, result={"step": step} if step else None)
    for step in (0, 1, 2):
        store.delete(step)
    expected = {f"key-{step}": {"step": step} for step in (1, 2, 3)}
    assert CheckpointStore(tmp_path).results() == store.results() == expected
    assert store.steps() == [3]
