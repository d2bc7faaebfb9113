"""The trainer: steps, idempotence, resume, and nothing moved by what must not move it."""

import errno

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from training_samples import Talk, random_groups, registration, tiny_base

from ludus_backend import checkpoints
from ludus_backend.errors import LudusError
from ludus_backend.protocol import BaseModelSpec, LoraSpec, RegisterModel, TrainConfig, TrainGroup, TrainRequest
from ludus_backend.training import registered
from ludus_backend.training.trainer import Trainer

CONFIG = TrainConfig(learning_rate=1e-2, grad_clip=1.0)


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def trainer(state, tmp_path):
    made = Trainer(tiny_base(tmp_path), state)
    yield made
    made.close()


def restarted(trainer, state, tmp_path):
    trainer.close()
    return Trainer(tiny_base(tmp_path), state)


def request(step, seed=0, config=CONFIG, key=None, groups=None):
    groups = random_groups(seed, step=step) if groups is None else groups
    return TrainRequest(key=key or f"key-{step}", expected_step=step, groups=groups, config=config)


def train(trainer, *arguments, **options):
    return trainer.train("demo", request(*arguments, **options), lambda done, total, phase: None)


def weights(trainer, step):
    return (trainer.adapter_folder("demo", step) / "adapter_model.safetensors").read_bytes()


def in_memory(trainer):
    return trainer._model("demo").learner.adapter_files()["adapter_model.safetensors"]


def test_registering_makes_step_0_and_is_idempotent(trainer):
    info = trainer.register(registration())
    assert (info.step, info.steps, info.resumed, info.notices) == (0, [0], False, [])
    assert trainer.register(registration()).steps == [0]
    assert all(
        not tensor.any()
        for name, tensor in load_file(trainer.adapter_folder("demo", 0) / "adapter_model.safetensors").items()
        if "lora_B" in name
    )


def test_the_same_seed_makes_the_same_adapter(trainer):
    trainer.register(registration("demo", seed=3))
    trainer.register(registration("twin", seed=3))
    trainer.register(registration("other", seed=4))
    first, twin, other = (
        (trainer.adapter_folder(name, 0) / "adapter_model.safetensors").read_bytes()
        for name in ("demo", "twin", "other")
    )
    assert first == twin and first != other


def test_a_step_changes_the_adapter_and_reports_its_figures(trainer):
    trainer.register(registration())
    heard = []
    result = trainer.train("demo", request(0), lambda *progress: heard.append(progress))
    assert (result.step, result.trained, result.policy, result.reasons) == (1, True, "demo@1", {})
    assert weights(trainer, 1) != weights(trainer, 0)
    assert result.metrics["groups_trained"] == 3 and result.metrics["rows"] == 15 and result.metrics["split_rows"] == 3
    assert result.metrics["trained_tokens"] == result.metrics["sampled_tokens"] > 0
    assert result.metrics["grad_norm"] > 0 and result.metrics["computed_tokens"] < result.metrics["plain_tokens"]
    assert heard[0][2] == "rows" and heard[-1][2] == "checkpoint"
    done, total, phase = heard[-2]
    assert done == total and phase == "update"


def test_training_raises_what_was_rewarded(trainer):
    trainer.register(registration())

    def groups(step):
        talks = [Talk(step), Talk(step)]
        talks[0].say([1, 2, 3], [4])
        talks[1].say([1, 2, 3], [5])
        return [TrainGroup(id="g", trajectories=[talks[0].trajectory("good", 1.0), talks[1].trajectory("bad", 0.0)])]

    def margin():
        learner = trainer._model("demo").learner
        learner.body.set_attn_implementation("sdpa")
        hidden = learner.body(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False).last_hidden_state[0, -1]
        learner.body.set_attn_implementation("ludus_tree")
        logits = learner.head(hidden)
        return (logits[4] - logits[5]).item()

    before = margin()
    for step in range(5):
        train(trainer, step, groups=groups(step))
    assert margin() > before + 0.1


def test_the_adapter_in_a_fresh_peft_model_gives_the_same_logits(trainer, tmp_path):
    trainer.register(registration())
    train(trainer, 0)
    fresh = PeftModel.from_pretrained(tiny_base(tmp_path).model, trainer.adapter_folder("demo", 1))
    ids = torch.arange(12)[None]
    learner = trainer._model("demo").learner
    learner.body.set_attn_implementation("sdpa")
    with torch.no_grad():
        found = learner.head(learner.body(input_ids=ids, use_cache=False).last_hidden_state)
        torch.testing.assert_close(found, fresh(input_ids=ids).logits, atol=1e-5, rtol=1e-5)


def test_the_base_stays_pristine(trainer):
    base = trainer._base
    before = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    trainer.register(registration())
    train(trainer, 0)
    assert base.model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.model.state_dict().items())


def test_a_learning_rate_of_0_is_a_step_that_leaves_the_bytes(trainer):
    trainer.register(registration())
    result = train(trainer, 0, config=TrainConfig(learning_rate=0, weight_decay=0.1))
    assert result.trained and result.step == 1
    assert weights(trainer, 1) == weights(trainer, 0)


def test_adv_01_equal_rewards_make_no_step(trainer):
    trainer.register(registration())
    groups = random_groups(0)
    for group in groups:
        for trajectory in group.trajectories:
            trajectory.reward = 0.7
    result = train(trainer, 0, groups=groups)
    assert (result.step, result.trained, result.policy) == (0, False, "demo@0")
    assert result.reasons == {"zero_variance": 3} and result.metrics["zero_variance_share"] == 1.0
    assert trainer.register(registration()).steps == [0]
    assert in_memory(trainer) == weights(trainer, 0)


def test_tok_14_nothing_to_train_makes_no_step(trainer):
    trainer.register(registration())
    assert train(trainer, 0, groups=[]).reasons == {"no_groups": 1}
    groups = random_groups(0, groups=1, members=2)
    for trajectory in groups[0].trajectories:
        for exchange in trajectory.exchanges:
            exchange.trained = False
    result = train(trainer, 0, groups=groups)
    assert not result.trained and result.reasons == {"no_trained_tokens": 2}


def test_train_02_a_non_finite_gradient_makes_no_step(trainer):
    trainer.register(registration())
    parameter = trainer._model("demo").learner.parameters[0]
    handle = parameter.register_hook(lambda gradient: gradient * float("nan"))
    result = train(trainer, 0)
    handle.remove()
    assert (result.step, result.trained, result.reasons) == (0, False, {"non_finite_gradient": 1})
    assert result.non_finite == ["grad_norm"] and "grad_norm" not in result.metrics
    assert in_memory(trainer) == weights(trainer, 0)
    assert train(trainer, 0).step == 1


def test_another_expected_step_is_a_conflict_that_names_both(trainer):
    trainer.register(registration())
    with pytest.raises(LudusError) as caught:
        train(trainer, 3)
    detail = caught.value.detail
    assert (detail.code, detail.value, detail.expected) == ("step_conflict", "3", "0")


def test_train_07_a_repeated_key_returns_the_stored_result_also_after_a_restart(trainer, state, tmp_path):
    trainer.register(registration())
    first = train(trainer, 0)
    train(trainer, 1)
    again = train(trainer, 0)
    assert again.repeated and again.model_copy(update={"repeated": False}) == first
    second = restarted(trainer, state, tmp_path)
    info = second.register(registration())
    assert (info.step, info.resumed) == (2, True)
    assert train(second, 0).model_copy(update={"repeated": False}) == first
    second.close()


def test_ckpt_05_resume_gives_the_next_step_bit_for_bit(trainer, state, tmp_path):
    trainer.register(registration())
    trainer.register(registration("straight"))
    for step in range(4):
        trainer.train("straight", request(step, seed=step), lambda *_: None)
    expected = (trainer.adapter_folder("straight", 4) / "adapter_model.safetensors").read_bytes()
    for step in range(4):
        trainer = restarted(trainer, state, tmp_path)
        trainer.register(registration())
        train(trainer, step, seed=step)
    assert weights(trainer, 4) == expected
    trainer.close()


def test_ckpt_02_a_full_disk_leaves_the_committed_step_in_memory_and_a_retry_succeeds(trainer, monkeypatch):
    trainer.register(registration())
    train(trainer, 0)

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(checkpoints, "write_flushed", full)
        with pytest.raises(LudusError) as caught:
            train(trainer, 1)
    assert caught.value.detail.code == "disk_full"
    assert in_memory(trainer) == weights(trainer, 1)
    assert trainer.register(registration()).step == 1
    assert train(trainer, 1).step == 2


def test_rolling_back_keeps_the_moments(trainer, monkeypatch):
    trainer.register(registration())
    trainer.register(registration("straight"))
    for step in range(2):
        trainer.train("straight", request(step), lambda *_: None)
    train(trainer, 0)
    with monkeypatch.context() as broken:
        broken.setattr(checkpoints, "flush_folder", lambda folder: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            train(trainer, 1)
    train(trainer, 1)
    straight = (trainer.adapter_folder("straight", 2) / "adapter_model.safetensors").read_bytes()
    assert weights(trainer, 2) == straight


def test_free_space_is_checked_before_the_update(trainer, monkeypatch):
    trainer.register(registration())
    monkeypatch.setattr(registered.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000})())
    heard = []
    with pytest.raises(LudusError) as caught:
        trainer.train("demo", request(0), lambda *progress: heard.append(progress))
    assert caught.value.detail.code == "disk_full"
    assert [phase for _, _, phase in heard] == ["rows"]


def test_ckpt_01_a_broken_newest_checkpoint_is_skipped_with_a_notice(trainer, state, tmp_path):
    trainer.register(registration())
    train(trainer, 0)
    train(trainer, 1)
    (trainer.adapter_folder("demo", 2) / "adapter_model.safetensors").write_bytes(b"half")
    second = restarted(trainer, state, tmp_path)
    info = second.register(registration())
    assert (info.step, info.steps) == (1, [0, 1])
    assert "checkpoint 2 is broken" in info.notices[0]
    result = train(second, 1)
    assert result.step == 2 and not result.repeated
    second.close()


def test_checkpoints_are_listed_with_key_and_metrics(trainer):
    trainer.register(registration())
    result = train(trainer, 0)
    listed = trainer.checkpoints("demo").checkpoints
    assert [(c.step, c.key) for c in listed] == [(0, None), (1, "key-0")]
    assert listed[1].metrics == result.metrics


def test_only_the_last_two_optimizer_states_stay(trainer):
    trainer.register(registration())
    for step in range(3):
        train(trainer, step)
    present = [(trainer.adapter_folder("demo", step) / "optimizer.pt").exists() for step in range(4)]
    assert present == [False, False, True, True]


def refused(trainer, declaration):
    with pytest.raises(LudusError) as caught:
        trainer.register(declaration)
    return caught.value.detail


def test_a_name_keeps_its_lora_and_its_base(trainer, state, tmp_path):
    trainer.register(registration())
    changed = registration().model_copy(update={"lora": LoraSpec(rank=4)})
    assert refused(trainer, changed).field == "lora"
    second = restarted(trainer, state, tmp_path)
    assert refused(second, changed).field == "lora"
    assert refused(second, RegisterModel(name="demo", base=BaseModelSpec(source="bundled"))).field == "base"
    assert "seed 0" in second.register(registration(seed=9)).notices[0]
    second.close()


def test_a_lora_that_cannot_be_made_is_refused(trainer):
    assert (
        refused(trainer, RegisterModel(name="a", base=BaseModelSpec(source="random"), lora=LoraSpec(dropout=0.1))).field
        == "lora.dropout"
    )
    assert (
        refused(
            trainer,
            RegisterModel(
                name="b", base=BaseModelSpec(source="random"), lora=LoraSpec(target_modules=["no_such_layer"])
            ),
        ).field
        == "lora.targetModules"
    )


def test_train_01_two_trainers_cannot_hold_one_model(trainer, state, tmp_path):
    trainer.register(registration())
    other = Trainer(tiny_base(tmp_path), state)
    assert refused(other, registration()).code == "busy"


def test_unknown_names_and_steps_are_typed_errors(trainer):
    with pytest.raises(LudusError) as caught:
        train(trainer, 0)
    assert caught.value.detail.code == "unknown_model"
    trainer.register(registration())
    with pytest.raises(LudusError) as caught:
        trainer.adapter_folder("demo", 5)
    assert caught.value.detail.value == "demo@5"


def test_bad_rows_are_refused_before_any_weight_changes(trainer):
    trainer.register(registration())
    groups = random_groups(0)
    groups[2].trajectories[1].exchanges[0].logprobs = []
    with pytest.raises(LudusError) as caught:
        train(trainer, 0, groups=groups)
    assert caught.value.detail.field == "groups[2].trajectories[1].exchanges[0].logprobs"
    assert in_memory(trainer) == weights(trainer, 0)
