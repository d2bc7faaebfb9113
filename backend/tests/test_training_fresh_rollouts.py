"""The first update on fresh rollouts sees a ratio of 1: sampler and trainer agree on every sampled token.

Both are the real ones, over one tiny Llama whose adapter was trained first, so that merged weights (the sampler's) and
base plus adapter (the trainer's) really differ in how they compute. 32 conversations of mixed lengths at the same time
share prompts four by four, take a second turn that continues the ids of the first, and begin with ids that no tokenizer
would produce.
"""

import random

import pytest
from sampling_support import END, run, tiny_base

from ludus_backend.protocol import Exchange, LoraSpec, RegisterModel, TrainConfig, TrainGroup, TrainRequest
from ludus_backend.protocol import TrajectoryRows as Trajectory
from ludus_backend.sampling.sampler import SampleRequest
from ludus_backend.sampling.torch_sampler import TorchSampler
from ludus_backend.training.rows import prefix_hash
from ludus_backend.training.trainer import Trainer

GROUPS, MEMBERS = 8, 4
NAME = "demo"


def conversations(sampler, policy, temperature, seed):
    """Two turns of every conversation, as groups with rewards that differ."""
    draw = random.Random(seed)
    # Byte ids in an order that no text has, ends of turn in the middle included.
    prompts = [[END, *(draw.randrange(257) for _ in range(draw.randint(5, 90))), END] for _ in range(GROUPS)]
    full = [list(prompts[index // MEMBERS]) for index in range(GROUPS * MEMBERS)]
    exchanges = [[] for _ in full]
    cached = 0
    for turn in range(2):
        between = [[] if turn == 0 else [END, *(draw.randrange(257) for _ in range(draw.randint(1, 9)))] for _ in full]
        asked = []
        for index, ids in enumerate(full):
            ids += between[index]
            asked.append(
                SampleRequest(
                    id=index,
                    policy=policy,
                    prompt_ids=list(ids),
                    max_tokens=draw.randint(1, 24),
                    conversation=f"c{index}",
                    seed=seed * 1000 + turn * 100 + index,
                    temperature=temperature,
                )
            )
        samples = run(sampler, asked)
        for index, ids in enumerate(full):
            sample = samples[index]
            cached += sample.cached_tokens
            exchanges[index].append(
                Exchange(
                    id=f"e{turn}",
                    parent=f"e{turn - 1}" if turn else None,
                    prefix_hash=prefix_hash(ids),
                    prompt_ids=between[index] if turn else list(ids),
                    sampled_ids=sample.ids,
                    logprobs=sample.logprobs,
                    temperature=temperature,
                    policy=policy,
                )
            )
            ids += sample.ids
    assert cached > sum(map(len, prompts)) * MEMBERS // 2
    trajectories = [
        Trajectory(id=str(index), reward=draw.random(), exchanges=made) for index, made in enumerate(exchanges)
    ]
    return [
        TrainGroup(id=f"g{index}", trajectories=trajectories[index * MEMBERS : (index + 1) * MEMBERS])
        for index in range(GROUPS)
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_first_ratio_is_1(tmp_path, temperature):
    base = tiny_base(folder=tmp_path)
    trainer, sampler = Trainer(base, tmp_path / "state"), TorchSampler(base)
    info = trainer.register(RegisterModel(name=NAME, base=base.spec, lora=LoraSpec(rank=4, alpha=8)))
    config = TrainConfig(learning_rate=3e-2, grad_clip=1.0, loss="ppo")
    for step in (info.step, info.step + 1):
        policy = f"{NAME}@{step}"
        sampler.publish(policy, trainer.adapter_folder(NAME, step))
        groups = conversations(sampler, policy, temperature, seed=step)
        request = TrainRequest(key=str(step), expected_step=step, groups=groups, config=config)
        metrics = trainer.train(NAME, request, lambda *progress: None).metrics
        assert metrics["trajectories"] == 32 and metrics["rows"] == 32
        assert metrics["trained_tokens"] == metrics["sampled_tokens"] > 400
        # |ratio - 1| is at most e^gap - 1.
        assert metrics["logprob_gap_max"] < 1e-3
        assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
        assert metrics["capped_share"] == 0 and metrics["staleness_max"] == 0
        assert metrics["probability_correlation"] > 0.999999
    trainer.close()
