"""Known ways in which training data goes wrong, each with the value that is right here."""

import json

import pytest
import torch
from pydantic import ValidationError
from training_samples import VOCABULARY, Talk, random_groups, registration, tiny_base

from ludus_backend.errors import LudusError
from ludus_backend.protocol import Exchange, TrainGroup, TrainRequest, TrajectoryRows
from ludus_backend.rendering import hermes
from ludus_backend.training.advantages import compute_advantages
from ludus_backend.training.axes import PRESETS
from ludus_backend.training.losses import LossInputs, token_losses
from ludus_backend.training.rows import build_rows, prefix_hash
from ludus_backend.training.targets import select_targets
from ludus_backend.training.trainer import Trainer


def pair(first: Talk, second: Talk):
    return [TrainGroup(id="g", trajectories=[first.trajectory("a", 1.0), second.trajectory("b", 0.0)])]


def targets_of(groups):
    rows = build_rows(groups, VOCABULARY, 100)
    return select_targets(rows, compute_advantages(groups, "none"), PRESETS["cispo"], "trained")


def test_tok_03_arguments_stay_the_text_that_the_model_wrote():
    """A mapping is written as JSON; text goes in byte for byte, so what was sampled is what is rendered again."""
    arguments = '{"q":"tide","n":2}'
    expected = '<tool_call>\n{"name": "lookup", "arguments": {"q":"tide","n":2}}\n</tool_call>'
    assert hermes.call_text("lookup", arguments) == expected
    spaced = '<tool_call>\n{"name": "lookup", "arguments": {"q": "tide", "n": 2}}\n</tool_call>'
    assert hermes.call_text("lookup", json.loads(arguments)) == spaced


def test_tok_08_missing_log_probabilities_are_named_and_never_called_equal_rewards():
    first, second = Talk(), Talk()
    first.say([1], [2, 3], [])
    second.say([1], [4], [-1.0])
    with pytest.raises(LudusError) as caught:
        build_rows(pair(first, second), VOCABULARY, 100)
    detail = caught.value.detail
    assert (detail.code, detail.field) == ("invalid_request", "groups[0].trajectories[0].exchanges[0].logprobs")
    assert detail.value == "0 values" and "2 values" in (detail.expected or "")


@pytest.mark.parametrize("value", [None, float("-inf"), "-Infinity", float("nan")])
def test_tok_09_what_is_no_number_is_refused_on_the_wire(value):
    exchange = {"id": "e", "prefixHash": "", "promptIds": [1], "sampledIds": [2], "policy": "demo@0"}
    with pytest.raises(ValidationError) as caught:
        Exchange.model_validate(exchange | {"logprobs": [value]})
    assert caught.value.errors()[0]["loc"] == ("logprobs", 0)


def test_tok_09_an_impossible_record_is_left_out_by_selection_and_counted():
    first, second = Talk(), Talk()
    first.say([1], [2, 3, 4], [-0.2, -9999.0, -9999.0])
    second.say([1], [5], [-0.3])
    targets = targets_of(pair(first, second))
    assert targets.label.tolist() == [2, 5] and targets.impossible == 2
    logprobs = torch.tensor([-0.25, -0.3])
    inputs = LossInputs(targets.recorded, targets.advantage, targets.trajectory)
    losses = token_losses(PRESETS["cispo"], 0.0, logprobs, inputs)
    # Ratio exp(-0.05) = 0.951229, advantage 0.5.
    assert losses.tolist() == pytest.approx([-0.951229 * 0.5 * -0.25, -1.0 * -0.5 * -0.3], abs=1e-6)


def test_tok_12_only_items_without_a_sampled_token_make_no_step(tmp_path):
    trainer = Trainer(tiny_base(tmp_path), tmp_path / "state")
    trainer.register(registration())
    talks = [Talk(), Talk()]
    for talk in talks:
        talk.say([1, 2], [])
    result = trainer.train("demo", TrainRequest(key="k", expected_step=0, groups=pair(*talks)), lambda *_: None)
    assert (result.step, result.trained) == (0, False)
    assert result.reasons == {"group_too_small": 1, "no_sampled_tokens": 2}
    trainer.close()


def test_tok_16_the_training_prompt_has_the_tokens_that_the_server_counted(gateway, episode):
    tool = {"type": "function", "function": {"name": "ping", "description": "d", "parameters": {"type": "object"}}}
    asked = {"episode": episode, "logprobs": True, "ludus": {"train": True}}
    without = gateway.chat("say:a;", logprobs=True).json()["usage"]["prompt_tokens"]
    first = gateway.chat("say:b;", tools=[tool], **asked).json()
    second = gateway.chat("say:b;", first["choices"][0]["message"], "say:c;", tools=[tool], **asked).json()
    assert second["ludus"]["rendered"] == "bridged"
    exchanges, known = [], 0
    for body in (first, second):
        choice = body["choices"][0]
        exchanges.append(
            Exchange(
                id=body["ludus"]["exchange"],
                parent=body["ludus"]["parent"],
                prefix_hash=body["ludus"]["prefixHash"],
                prompt_ids=body["prompt_token_ids"][known:],
                sampled_ids=choice["token_ids"],
                logprobs=[entry["logprob"] for entry in choice["logprobs"]["content"]],
                policy=body["ludus"]["policy"],
            )
        )
        known = len(body["prompt_token_ids"]) + len(choice["token_ids"])
    group = TrainGroup(id="g", trajectories=[TrajectoryRows(id="t", reward=1.0, exchanges=exchanges)])
    (row,) = build_rows([group], 100_000, 8192)
    assert row.mask.index(True) == first["usage"]["prompt_tokens"] > without + 20
    assert len(row.ids) - len(exchanges[1].sampled_ids) == second["usage"]["prompt_tokens"]
    assert prefix_hash(row.ids[: second["usage"]["prompt_tokens"]]) == second["ludus"]["prefixHash"]


def test_train_01_of_two_calls_for_one_step_the_second_is_refused(tmp_path):
    trainer = Trainer(tiny_base(tmp_path), tmp_path / "state")
    trainer.register(registration())
    requests = [TrainRequest(key=key, expected_step=0, groups=random_groups(seed)) for seed, key in enumerate("ab")]
    assert trainer.train("demo", requests[0], lambda *_: None).step == 1
    with pytest.raises(LudusError) as caught:
        trainer.train("demo", requests[1], lambda *_: None)
    assert caught.value.detail.code == "step_conflict"
    assert trainer.register(registration()).steps == [0, 1]
    trainer.close()
