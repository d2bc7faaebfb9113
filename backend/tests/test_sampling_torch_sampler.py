"""The sampler against plain full forward passes of base and adapter, whatever is reused, batched or evicted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from sampling_support import (
    CONTEXT,
    END,
    VOCABULARY,
    byte_tokenizer,
    drain,
    plain_logits,
    plain_logprobs,
    plain_model,
    run,
    save_adapter,
    tiny_base,
)

from ludus_backend.errors import LudusError
from ludus_backend.sampling.sampler import Sample, SampleRequest
from ludus_backend.sampling.torch_sampler import TorchSampler

BASE = tiny_base()
POLICY = "demo@1"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(BASE, tmp_path_factory.mktemp("adapter"), seed=1)


@pytest.fixture
def sampler(adapter: Path) -> TorchSampler:
    return make_sampler(adapter)


def make_sampler(adapter: Path, **options: int) -> TorchSampler:
    sampler = TorchSampler(BASE, **options)
    sampler.publish(POLICY, adapter)
    return sampler


def request(id: int, prompt: list[int], max_tokens: int = 6, **options: object) -> SampleRequest:
    return SampleRequest(id=id, policy=POLICY, prompt_ids=prompt, max_tokens=max_tokens, **{"seed": id, **options})


def ids_of(seed: int, count: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(256) for _ in range(count)]


def assert_exact(adapter: Path, prompt: list[int], sample: Sample, temperature: float = 1.0) -> None:
    plain = plain_logprobs(plain_model(BASE, adapter), prompt, sample.ids, temperature)
    assert sample.logprobs == pytest.approx(plain, abs=1e-4)


def test_32_concurrent_requests_of_mixed_lengths_agree_with_a_plain_forward_pass(
    sampler: TorchSampler, adapter: Path
) -> None:
    prompts = {id: ids_of(id, 1 + 7 * id % 90) for id in range(32)}
    temperatures = {id: (1.0, 0.6, 1.4)[id % 3] for id in prompts}
    samples = run(
        sampler,
        [request(id, prompt, 1 + id % 9, temperature=temperatures[id]) for id, prompt in prompts.items()],
    )
    for id, prompt in prompts.items():
        assert len(samples[id].ids) == 1 + id % 9
        assert samples[id].finish == "length"
        assert_exact(adapter, prompt, samples[id], temperatures[id])


def test_the_same_seed_samples_the_same_whatever_else_is_in_the_batch(sampler: TorchSampler, adapter: Path) -> None:
    prompt = ids_of(1, 20)
    alone = run(sampler, [request(0, prompt, 12, seed=77)])[0]
    crowd = [request(id, ids_of(id, 3 * id), 5 + id) for id in range(1, 20)]
    among = run(make_sampler(adapter), [*crowd, request(0, prompt, 12, seed=77)])[0]
    assert among.ids == alone.ids
    assert among.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    other = run(make_sampler(adapter), [request(0, prompt, 12, seed=78)])[0]
    assert other.ids != alone.ids


def test_second_turns_compute_only_what_is_new(sampler: TorchSampler, adapter: Path) -> None:
    conversations = {id: ids_of(id, 20 + id) for id in range(8)}
    for turn in range(4):
        samples = run(
            sampler,
            [request(id, prompt, 4, conversation=f"c{id}", seed=9 * turn + id) for id, prompt in conversations.items()],
        )
        for id, prompt in conversations.items():
            assert_exact(adapter, prompt, samples[id])
            if turn:
                # Everything but the new message and the last sampled id, whose keys were never needed.
                assert samples[id].cached_tokens == len(prompt) - 6
            prompt += [*samples[id].ids, *ids_of(100 * turn + id, 5)]


def test_a_group_computes_its_prompt_once_and_groups_share_a_system_prompt(
    sampler: TorchSampler, adapter: Path
) -> None:
    system = ids_of(5, 64)
    prompts = [[*system, *ids_of(60 + group, 20)] for group in range(3)]
    samples = run(sampler, [request(id, prompts[id // 8], 3) for id in range(24)])
    computed = sum(len(prompts[0]) - sample.cached_tokens for sample in samples.values())
    # The first prompt whole, the end of the two others, and the last id of the 21 members who find all the rest.
    assert computed == 84 + 2 * 20 + 21
    for id, sample in samples.items():
        assert_exact(adapter, prompts[id // 8], sample)


def test_equal_prompts_beyond_a_known_prefix_do_not_wait_for_each_other(sampler: TorchSampler, adapter: Path) -> None:
    prompt = ids_of(3, 100)
    run(sampler, [request(0, prompt[:50])])
    samples = run(sampler, [request(id, list(prompt), 2) for id in range(1, 4)])
    assert sorted(len(prompt) - sample.cached_tokens for sample in samples.values()) == [1, 1, 50]
    for sample in samples.values():
        assert_exact(adapter, prompt, sample)


def test_members_who_made_the_same_moves_share_their_next_turn_too(sampler: TorchSampler, adapter: Path) -> None:
    history = [*ids_of(3, 40)]
    run(sampler, [request(id, list(history), 1, conversation=f"c{id}") for id in range(4)])
    prompt = [*history, 17, *ids_of(4, 30)]
    samples = run(sampler, [request(10 + id, list(prompt), 2, conversation=f"c{id}") for id in range(4)])
    assert sorted(len(prompt) - sample.cached_tokens for sample in samples.values()) == [1, 1, 1, 31]
    for sample in samples.values():
        assert_exact(adapter, prompt, sample)


def test_ids_that_no_tokenizer_would_make_are_continued_as_they_are(sampler: TorchSampler, adapter: Path) -> None:
    prompt = [*byte_tokenizer().encode("undo"), END, END, 0, 255, END]
    first = run(sampler, [request(1, prompt, 4, conversation="c")])[1]
    again = [*prompt, *first.ids, END, 3]
    second = run(sampler, [request(2, again, 4, conversation="c")])[2]
    assert second.cached_tokens == len(again) - 3
    assert_exact(adapter, again, second)


def test_a_history_that_was_cut_back_is_computed_again_from_there(sampler: TorchSampler, adapter: Path) -> None:
    history = ids_of(1, 60)
    run(sampler, [request(1, history, 4, conversation="c")])
    forked = [*history[:30], *ids_of(2, 40)]
    sample = run(sampler, [request(2, forked, 4, conversation="c")])[2]
    assert sample.cached_tokens == 30
    assert_exact(adapter, forked, sample)


def test_lora_02_no_key_or_value_survives_a_change_of_policy(sampler: TorchSampler, tmp_path: Path) -> None:
    prompt = ids_of(1, 70)
    run(sampler, [request(1, prompt, conversation="c"), request(2, prompt)])
    other = save_adapter(BASE, tmp_path, seed=2)
    sampler.publish("demo@2", other)
    sample = run(sampler, [SampleRequest(id=3, policy="demo@2", prompt_ids=prompt, max_tokens=4, conversation="c")])[3]
    assert sample.cached_tokens == 0
    assert_exact(other, prompt, sample)
    fresh = TorchSampler(BASE)
    fresh.publish("demo@2", other)
    again = run(fresh, [SampleRequest(id=3, policy="demo@2", prompt_ids=prompt, max_tokens=4)])[3]
    assert (again.ids, again.logprobs) == (sample.ids, sample.logprobs)


def test_requests_of_two_policies_alternate_and_each_uses_its_own_weights(
    sampler: TorchSampler, adapter: Path, tmp_path: Path
) -> None:
    other = save_adapter(BASE, tmp_path, seed=2)
    sampler.publish("demo@2", other)
    prompts = {id: ids_of(id, 25) for id in range(6)}
    policies = {id: POLICY if id % 2 else "demo@2" for id in prompts}
    samples = run(
        sampler,
        [
            SampleRequest(id=id, policy=policies[id], prompt_ids=prompt, max_tokens=3, seed=id)
            for id, prompt in prompts.items()
        ],
    )
    for id, prompt in prompts.items():
        assert_exact(adapter if id % 2 else other, prompt, samples[id])


def test_a_prompt_longer_than_a_chunk_is_computed_in_pieces(adapter: Path) -> None:
    sampler = make_sampler(adapter, chunk_tokens=16)
    prompts = {id: ids_of(id, 20 + 30 * id) for id in range(5)}
    samples = run(sampler, [request(id, prompt) for id, prompt in prompts.items()])
    for id, prompt in prompts.items():
        assert_exact(adapter, prompt, samples[id])


def test_requests_over_the_budget_wait_and_evicted_ones_are_computed_again(adapter: Path) -> None:
    token_bytes = make_sampler(adapter)._runner.pool.token_bytes
    sampler = make_sampler(adapter, kv_bytes=2 * 192 * token_bytes)
    prompts = {id: ids_of(id, 100) for id in range(6)}
    # Each starts in a slot of 192 tokens and has to move to one of 256, for which there is no room beside another.
    samples = run(sampler, [request(id, prompt, 120, conversation=f"c{id}") for id, prompt in prompts.items()])
    for id, prompt in prompts.items():
        assert len(samples[id].ids) == 120
        assert_exact(adapter, prompt, samples[id])
    assert sampler._store.used_bytes <= 2 * 192 * token_bytes


def test_a_prompt_that_can_never_fit_the_memory_is_refused_and_a_reply_is_cut(adapter: Path) -> None:
    token_bytes = make_sampler(adapter)._runner.pool.token_bytes
    sampler = make_sampler(adapter, kv_bytes=130 * token_bytes)
    with pytest.raises(LudusError) as caught:
        sampler.submit(request(1, ids_of(1, 128)))
    assert caught.value.detail.code == "too_large"
    assert "128 tokens" in caught.value.detail.message
    sample = run(sampler, [request(2, ids_of(1, 100), 60)])[2]
    assert (len(sample.ids), sample.finish) == (28, "length")


def test_a_prompt_that_does_not_fit_the_context_names_both_numbers(sampler: TorchSampler) -> None:
    with pytest.raises(LudusError) as caught:
        sampler.submit(request(1, ids_of(1, CONTEXT)))
    assert caught.value.detail.code == "context_length_exceeded"
    assert str(CONTEXT) in caught.value.detail.message
    sample = run(sampler, [request(2, ids_of(1, CONTEXT - 3), 50)])[2]
    assert len(sample.ids) == 3
    assert sample.finish == "length"


def test_unknown_policies_and_ids_are_refused_before_anything_runs(sampler: TorchSampler) -> None:
    with pytest.raises(LudusError, match="no adapter"):
        sampler.submit(SampleRequest(id=1, policy="demo@7", prompt_ids=[1], max_tokens=1))
    with pytest.raises(LudusError, match="vocabulary") as caught:
        sampler.submit(request(1, [3, VOCABULARY]))
    assert caught.value.detail.value == str(VOCABULARY)
    assert (sampler.waiting, sampler.running) == (0, 0)


def test_a_stop_id_ends_the_reply_and_is_part_of_it(sampler: TorchSampler) -> None:
    free = run(sampler, [request(1, ids_of(1, 20), 30)])[1]
    stop = free.ids[4]
    stopped = run(sampler, [request(2, ids_of(1, 20), 30, seed=1, stop_ids=frozenset([stop]))])[2]
    assert stopped.finish == "stop"
    assert stopped.ids == free.ids[: free.ids.index(stop) + 1]
    assert len(stopped.logprobs) == len(stopped.ids)


def test_a_stop_string_keeps_the_ids_up_to_the_one_that_completes_it(sampler: TorchSampler) -> None:
    free = run(sampler, [request(1, ids_of(1, 20), 60)])[1]
    text = [BASE.tokenizer.decode([token]) for token in free.ids]
    place = next(i for i in range(1, 60) if text[i - 1].isascii() and text[i].isascii())
    stop = text[place - 1] + text[place]
    stopped = run(sampler, [request(2, ids_of(1, 20), 60, seed=1, stop=[stop])])[2]
    assert stopped.finish == "stop"
    assert stopped.ids == free.ids[: len(stopped.ids)]
    assert stop in BASE.tokenizer.decode(stopped.ids)
    assert stop not in BASE.tokenizer.decode(stopped.ids[:-1])


def test_greedy_takes_the_likeliest_id_of_a_plain_forward_pass(sampler: TorchSampler, adapter: Path) -> None:
    prompt = ids_of(1, 20)
    sample = run(sampler, [request(1, prompt, 5, temperature=0.0)])[1]
    assert_exact(adapter, prompt, sample)
    logits = plain_logits(plain_model(BASE, adapter), [*prompt, *sample.ids])
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == sample.ids


def test_cancel_ends_one_request_and_leaves_the_others(sampler: TorchSampler, adapter: Path) -> None:
    prompts = {id: ids_of(id, 40) for id in range(3)}
    for id, prompt in prompts.items():
        sampler.submit(request(id, prompt, 8))
    sampler.step()
    sampler.submit(request(3, ids_of(3, 10)))
    assert sampler.cancel(1) and sampler.cancel(3)
    assert not sampler.cancel(1)
    samples = drain(sampler)
    assert set(samples) == {0, 2}
    for id, sample in samples.items():
        assert_exact(adapter, prompts[id], sample)


def test_followers_go_on_when_the_one_they_wait_for_is_cancelled(adapter: Path) -> None:
    sampler = make_sampler(adapter, chunk_tokens=16)
    prompt = ids_of(1, 60)
    for id in range(3):
        sampler.submit(request(id, list(prompt), 3))
    sampler.step()
    assert sampler.cancel(0)
    samples = drain(sampler)
    assert set(samples) == {1, 2}
    for sample in samples.values():
        assert_exact(adapter, prompt, sample)


def test_forget_frees_the_memory_of_a_conversation(sampler: TorchSampler) -> None:
    run(sampler, [request(1, ids_of(1, 20), conversation="c")])
    assert sampler._store.used_bytes > 0
    sampler.forget("c")
    assert sampler._store.used_bytes == 0


@pytest.mark.parametrize(
    ("family", "options"),
    [("qwen2", {}), ("qwen3", {}), ("mistral", {"sliding_window": 9}), ("gemma", {})],
)
def test_other_decoders_work_through_their_own_code(family: str, options: dict[str, int], tmp_path: Path) -> None:
    base = tiny_base(family, **options)
    folder = save_adapter(base, tmp_path, seed=1)
    sampler = TorchSampler(base)
    sampler.publish(POLICY, folder)
    prompts = {id: ids_of(id, 12 + 9 * id) for id in range(3)}
    model = plain_model(base, folder)
    for turn in range(2):
        samples = run(sampler, [request(id, prompt, 5, conversation=f"c{id}") for id, prompt in prompts.items()])
        for id, prompt in prompts.items():
            assert samples[id].logprobs == pytest.approx(plain_logprobs(model, prompt, samples[id].ids), abs=1e-4)
            prompt += [*samples[id].ids, turn, turn]


def test_a_model_with_another_kind_of_attention_is_refused() -> None:
    with pytest.raises(LudusError) as caught:
        TorchSampler(tiny_base("gemma2", attn_logit_softcapping=0.5, query_pre_attn_scalar=1))
    assert caught.value.detail.code == "invalid_request"
    assert "attention" in caught.value.detail.message
