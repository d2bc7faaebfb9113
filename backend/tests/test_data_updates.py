"""From conversations to updates: which tokens are trained, which examples share an update, at what rate."""

from __future__ import annotations

import pytest
from gateway_support import tokenizer_folder

from ludus_backend.data.batches import batches
from ludus_backend.data.examples import chosen_turns, example_row, trained_by_difference
from ludus_backend.data.schedule import learning_rate
from ludus_backend.errors import LudusError
from ludus_backend.protocol import BaseModelSpec, SftConfig
from ludus_backend.rendering.renderer import load_renderer

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
TALK = [
    {"role": "system", "content": "d"},
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": "skip", "weight": 0},
    {"role": "user", "content": "u2"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "r"},
    {"role": "assistant", "content": "end"},
]


@pytest.fixture(scope="module")
def speaking():
    return load_renderer(BaseModelSpec(source="bundled"), tokenizer_folder())


def trained_texts(speaking, messages, train, tools=None):
    """The stretches of text that carry loss."""
    renderer, tokenizer = speaking
    row = example_row(renderer, messages, tools, chosen_turns(messages, train), renderer.get_stop_token_ids())
    assert row.ids == renderer.render_ids(messages, tools=tools)
    stretches: list[list[int]] = []
    for before, place in zip([-1, *row.trained], row.trained, strict=False):
        if place != before + 1 or not stretches:
            stretches.append([])
        stretches[-1].append(row.ids[place])
    return [tokenizer.decode(ids) for ids in stretches]


def test_data_02_a_turn_of_weight_0_has_mask_0_and_the_others_are_trained_to_their_end_token(speaking):
    call = '<tool_call>\n{"name": "f", "arguments": {"a":1}}\n</tool_call><|im_end|>'
    assert trained_texts(speaking, TALK, "all", TOOLS) == [call, "end<|im_end|>"]
    assert trained_texts(speaking, TALK, "last", TOOLS) == ["end<|im_end|>"]
    assert trained_texts(speaking, TALK[:3], "last") == []
    assert trained_texts(speaking, [{**TALK[1]}, {"role": "assistant", "content": "yes"}], "all") == ["yes<|im_end|>"]


def test_the_mask_of_the_renderer_is_the_difference_of_two_renderings(speaking):
    renderer, _ = speaking
    for tools in (None, TOOLS):
        for train in ("all", "last"):
            chosen = chosen_turns(TALK, train)
            row = example_row(renderer, TALK, tools, chosen, renderer.get_stop_token_ids())
            stops = renderer.get_stop_token_ids()
            assert trained_by_difference(renderer, TALK, tools, chosen, stops, row.ids) == row.trained != []


def test_a_template_that_rewrites_history_is_refused_where_the_difference_must_tell(speaking):
    renderer, _ = speaking

    class Forgetful:
        def render_ids(self, messages, **options):
            return renderer.render_ids(messages[-2:], **options)

    with pytest.raises(LudusError) as caught:
        trained_by_difference(Forgetful(), TALK, None, [6], renderer.get_stop_token_ids(), [1, 2, 3])
    assert caught.value.detail.field == "messages[6]"


def test_every_example_is_seen_once_an_epoch_within_the_token_budget():
    lengths = [50, 20, 70, 10, 30, 40, 200, 60]
    plan = batches(lengths, SftConfig(epochs=3, tokens_per_step=100, seed=4))
    assert all(sum(lengths[i] for i in batch) <= 100 or len(batch) == 1 for batch in plan)
    seen = [index for batch in plan for index in batch]
    epochs = [seen[start : start + 8] for start in (0, 8, 16)]
    assert all(sorted(epoch) == list(range(8)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert batches(lengths, SftConfig(epochs=3, tokens_per_step=100, seed=4)) == plan
    assert batches(lengths, SftConfig(epochs=3, tokens_per_step=100, seed=5)) != plan


def test_in_order_updates_are_filled_greedily():
    config = SftConfig(shuffle=False, tokens_per_step=100)
    assert batches([50, 20, 40, 10, 300, 100, 1], config) == [[0, 1], [2, 3], [4], [5], [6]]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [1 / 3, 2 / 3, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        ("cosine", [1 / 3, 2 / 3, 1, 0.961940, 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.038060]),
    ],
)
def test_learning_rates_rise_over_the_warm_up_and_then_follow_the_schedule(schedule, expected):
    config = SftConfig(schedule=schedule, warmup_ratio=0.25, learning_rate=0.01)
    found = [learning_rate(update, 10, config) / 0.01 for update in range(10)]
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_single_update_takes_the_full_rate():
    for schedule in ("constant", "linear", "cosine"):
        assert learning_rate(0, 1, SftConfig(schedule=schedule)) == pytest.approx(2e-4)
