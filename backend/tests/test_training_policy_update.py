"""One train call on a real model: several steps as one, the KL term, staleness, and what the manifest remembers."""

import json
import math

import pytest
import torch
from training_samples import Talk, random_groups, registration, tiny_base

from ludus_backend import checkpoints
from ludus_backend.errors import LudusError
from ludus_backend.protocol import TrainConfig, TrainGroup, TrainRequest
from ludus_backend.training.trainer import Trainer

FAST = {"learning_rate": 1e-2, "grad_clip": 1.0, "weight_decay": 0.0}


@pytest.fixture
def trainer(tmp_path):
    made = Trainer(tiny_base(tmp_path), tmp_path / "state")
    made.register(registration())
    yield made
    made.close()


def train(trainer, step=0, groups=None, key=None, name="demo", **options):
    groups = random_groups(0, step=step) if groups is None else groups
    config = TrainConfig(**{**FAST, **options})
    request = TrainRequest(key=key or f"key-{step}", expected_step=step, groups=groups, config=config)
    return trainer.train(name, request, lambda *progress: None)


def weights(trainer, step, name="demo"):
    return (trainer.adapter_folder(name, step) / "adapter_model.safetensors").read_bytes()


def in_memory(trainer):
    return trainer._model("demo").learner.adapter_files()["adapter_model.safetensors"]


def manifest(trainer, step):
    return json.loads((trainer.adapter_folder("demo", step) / "manifest.json").read_text())


def test_steps_per_call_advance_the_step_and_keep_only_the_last(trainer):
    result = train(trainer, steps_per_call=3)
    assert (result.step, result.policy, result.trained) == (3, "demo@3", True)
    assert trainer.register(registration()).steps == [0, 3]
    assert result.metrics["optimizer_steps"] == 3
    assert result.metrics["last_step/ratio_mean"] != result.metrics["ratio_mean"]
    assert train(trainer, steps_per_call=3).repeated
    assert train(trainer, step=3).step == 4


def test_two_steps_in_one_call_are_two_calls_on_the_same_groups(trainer):
    """The old probabilities are the sampler's in both, so one call of two steps is two calls of one."""
    trainer.register(registration("twin"))
    groups = random_groups(0)
    together = train(trainer, groups=groups, steps_per_call=2)
    first = train(trainer, 0, groups, name="twin")
    second = train(trainer, 1, groups, name="twin", max_staleness=1)
    assert weights(trainer, 2) == weights(trainer, 2, "twin")
    assert together.metrics["loss"] == first.metrics["loss"]
    assert together.metrics["last_step/loss"] == second.metrics["loss"]


def test_recomputed_probabilities_stay_those_before_the_first_step(trainer):
    result = train(trainer, steps_per_call=4, old_logprobs="recomputed", loss="ppo", truncated_importance=2.0)
    assert result.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert abs(result.metrics["last_step/ratio_mean"] - 1) > 1e-4
    assert 0 < result.metrics["importance_weight_max"] <= 2.0


def test_train_02_a_non_finite_later_step_takes_the_earlier_ones_back(trainer):
    parameter = trainer._model("demo").learner.parameters[0]
    seen = []

    def spoil(gradient):
        seen.append(1)
        return gradient * float("nan") if torch.count_nonzero(parameter - start) else gradient

    start = parameter.detach().clone()
    handle = parameter.register_hook(spoil)
    result = train(trainer, steps_per_call=3)
    handle.remove()
    assert seen and (result.step, result.trained, result.reasons) == (0, False, {"non_finite_gradient": 1})
    assert in_memory(trainer) == weights(trainer, 0)
    assert trainer.register(registration()).steps == [0]
    trainer.register(registration("twin"))
    assert train(trainer).step == train(trainer, name="twin").step == 1
    assert weights(trainer, 1) == weights(trainer, 1, "twin")


def test_ckpt_02_a_failed_save_of_several_steps_leaves_the_committed_one(trainer, monkeypatch):
    def broken(path, content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(checkpoints, "write_flushed", broken)
        with pytest.raises(LudusError) as caught:
            train(trainer, steps_per_call=2)
    assert caught.value.detail.code == "disk_full"
    assert in_memory(trainer) == weights(trainer, 0) and trainer.register(registration()).step == 0
    assert train(trainer, steps_per_call=2).step == 2


@pytest.mark.parametrize("kl", [0.0, 0.5])
def test_adv_01_a_batch_of_equal_rewards_moves_nothing_whatever_the_kl(trainer, kl):
    train(trainer)
    groups = random_groups(1, step=1)
    for group in groups:
        for trajectory in group.trajectories:
            trajectory.reward = 0.7
    result = train(trainer, 1, groups, kl=kl, entropy_bonus=0.1)
    assert (result.step, result.trained, result.policy) == (1, False, "demo@1")
    assert result.reasons == {"zero_variance": 3} and result.metrics["zero_variance_share"] == 1.0
    assert in_memory(trainer) == weights(trainer, 1)


def test_kl_and_entropy_leave_dropped_groups_alone(trainer):
    """With a denominator over the trained tokens, a dropped group beside a live one changes nothing at all."""
    trainer.register(registration("twin"))
    live, silent = random_groups(0, groups=2)
    silent.dropped = "all_failed"
    train(trainer, groups=[live, silent], kl=0.3, entropy_bonus=0.05)
    train(trainer, groups=[live], kl=0.3, entropy_bonus=0.05, name="twin")
    assert weights(trainer, 1) == weights(trainer, 1, "twin")


def test_a_kl_term_holds_the_policy_near_the_base(trainer):
    trainer.register(registration("free"))
    talks = [Talk(), Talk()]
    talks[0].say([1, 2, 3], [4, 5], [-4.0, -4.0])
    talks[1].say([1, 2, 3], [5, 4], [-4.0, -4.0])
    groups = [TrainGroup(id="g", trajectories=[talks[0].trajectory("a", 1.0), talks[1].trajectory("b", 0.0)])]
    held = train(trainer, groups=groups, steps_per_call=12, kl=5.0).metrics
    free = train(trainer, groups=groups, steps_per_call=12, kl=1e-9, name="free").metrics
    assert held["kl"] == pytest.approx(0.0, abs=1e-6)
    assert 0 <= held["last_step/kl"] < 0.5 * free["last_step/kl"]


def test_ckpt_05_resume_is_bit_equal_with_every_pass_and_several_steps(trainer, tmp_path):
    options = {"loss": "gspo", "kl": 0.1, "old_logprobs": "recomputed", "truncated_importance": 1.5}
    options |= {"entropy_bonus": 0.02, "steps_per_call": 2, "deterministic": True, "max_tokens_per_micro_batch": 40}
    trainer.register(registration("straight"))
    for step in (0, 2):
        train(trainer, step, random_groups(step, step=step), name="straight", **options)
    expected = weights(trainer, 4, "straight")
    train(trainer, 0, random_groups(0, step=0), **options)
    trainer.close()
    resumed = Trainer(tiny_base(tmp_path), tmp_path / "state")
    resumed.register(registration())
    train(resumed, 2, random_groups(2, step=2), **options)
    assert weights(resumed, 4) == expected
    resumed.close()


def test_train_04_staleness_counts_from_the_models_own_step_also_after_a_restart(trainer, tmp_path):
    groups = random_groups(0, groups=1, members=3)
    train(trainer, groups=random_groups(0), steps_per_call=10)
    trainer.close()
    resumed = Trainer(tiny_base(tmp_path), tmp_path / "state")
    assert resumed.register(registration()).step == 10
    for trajectory, step in zip(groups[0].trajectories, [7, 9, 10], strict=True):
        for exchange in trajectory.exchanges:
            exchange.policy = f"demo@{step}"
    result = train(resumed, 10, groups, max_staleness=1)
    assert result.trained and result.metrics["dropped/stale"] == 1
    assert result.metrics["staleness_max"] == 1 and 0 < result.metrics["staleness_mean"] < 1
    resumed.close()


def test_by_default_nothing_older_than_the_model_is_trained(trainer):
    train(trainer)
    result = train(trainer, 1, random_groups(1, step=0))
    assert not result.trained and result.reasons == {"group_too_small": 3, "stale": 12}


def test_the_manifest_holds_the_resolved_axes_and_the_plan(trainer):
    result = train(trainer, loss="gspo", clip_high=0.01, deterministic=True, max_tokens_per_micro_batch=16)
    stored = manifest(trainer, 1)
    assert stored["config"]["importanceLevel"] == "sequence" and stored["config"]["aggregation"] == "trajectory"
    assert (stored["config"]["clipLow"], stored["config"]["clipHigh"]) == (3e-4, 0.01)
    assert stored["config"]["deterministic"] is True and stored["config"]["ratioCap"] is None
    assert stored["metrics"]["threads"] == torch.get_num_threads()
    assert stored["metrics"]["micro_batch_tokens"] == 16
    assert stored["metrics"]["micro_batches"] == result.metrics["micro_batches"] > 1


def test_metrics_by_hand(trainer):
    talks = [Talk(), Talk()]
    first = talks[0].say([1, 2], [3], [-4.0])
    talks[0].say([4], [5], [-6.0], parent=first)
    talks[0].say([9], [5], [-5.0])
    talks[1].say([1, 2], [3], [-4.0])
    groups = [TrainGroup(id="g", trajectories=[talks[0].trajectory("a", 1.0), talks[1].trajectory("b", 0.5)])]
    metrics = train(trainer, groups=groups).metrics
    assert metrics["reward_mean"] == 0.75 and metrics["reward_std"] == 0.25
    assert (metrics["rows"], metrics["split_rows"], metrics["retokenized_rows"]) == (3, 1, 0)
    assert (metrics["trained_tokens"], metrics["sampled_tokens"]) == (4, 4)
    model = tiny_base(trainer._folder).model

    def logprob(ids):
        with torch.no_grad():
            return torch.log_softmax(model(input_ids=torch.tensor([ids[:-1]])).logits[0, -1], -1)[ids[-1]].item()

    now = [logprob(ids) for ids in ([1, 2, 3], [1, 2, 3, 4, 5], [9, 5], [1, 2, 3])]
    recorded = [-4.0, -6.0, -5.0, -4.0]
    gaps = [abs(a - b) for a, b in zip(now, recorded, strict=True)]
    ratios = [math.exp(a - b) for a, b in zip(now, recorded, strict=True)]
    assert metrics["logprob_gap_mean"] == pytest.approx(sum(gaps) / 4, rel=1e-4)
    assert metrics["logprob_gap_max"] == pytest.approx(max(gaps), rel=1e-4)
    assert metrics["ratio_mean"] == pytest.approx(sum(ratios) / 4, rel=1e-4)
    assert metrics["ratio_p95"] == metrics["ratio_p99"] == pytest.approx(max(ratios), rel=1e-4)
    assert metrics["capped_share"] == sum(ratio > 5 for ratio in ratios) / 4
    correlation = torch.corrcoef(torch.tensor([now, recorded], dtype=torch.float64).exp())[0, 1].item()
    assert metrics["probability_correlation"] == pytest.approx(correlation, abs=1e-4)
    assert (metrics["staleness_mean"], metrics["staleness_max"]) == (0, 0)
    for name in ("loss", "grad_norm", "entropy", "tokens_per_second", "zero_variance_share", "seconds"):
        assert math.isfinite(metrics[name])


def test_tok_09_a_batch_of_impossible_records_makes_no_step_and_says_why(trainer):
    talks = [Talk(), Talk()]
    for talk in talks:
        talk.say([1], [2, 3], [-9999.0, -9999.0])
    groups = [TrainGroup(id="g", trajectories=[talks[0].trajectory("a", 1.0), talks[1].trajectory("b", 0.0)])]
    result = train(trainer, groups=groups)
    assert (result.trained, result.reasons) == (False, {"impossible_logprobs": 4})


def test_a_conflicting_axis_is_refused_before_any_weight_changes(trainer):
    with pytest.raises(LudusError) as caught:
        train(trainer, loss="grpo", std_scaling="none")
    assert caught.value.detail.field == "config.stdScaling"
    assert in_memory(trainer) == weights(trainer, 0)
