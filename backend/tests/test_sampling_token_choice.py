"""Choosing a token: the distribution that is sampled is the one whose log-probability is reported."""

from __future__ import annotations

import math

import pytest
import torch

from ludus_backend.sampling.token_choice import Choosing, choose, processed_logprobs, uniform


def test_tok_10_the_logprob_is_of_the_distribution_at_the_sampling_temperature() -> None:
    logits = torch.tensor([[2.0, 0.0]])
    # log(1 / (1 + exp(-2 / 0.5))), worked out by hand: neither the raw -0.126928 nor raw / T = -0.253856.
    assert processed_logprobs(logits, [Choosing(seed=0, index=0, temperature=0.5)])[0, 0].item() == pytest.approx(
        -0.018150, abs=1e-6
    )
    ids, logprobs = choose(logits, [Choosing(seed=1, index=0, temperature=0.5)])
    assert ids == [0]
    assert logprobs[0] == pytest.approx(-0.018150, abs=1e-6)


def test_temperature_zero_takes_the_likeliest_with_its_logprob_at_temperature_one() -> None:
    ids, logprobs = choose(torch.tensor([[0.0, 2.0, 1.9]]), [Choosing(seed=5, index=3, temperature=0.0)])
    assert ids == [1]
    assert logprobs[0] == pytest.approx(2.0 - math.log(1 + math.exp(2.0) + math.exp(1.9)), abs=1e-6)


def test_frequencies_follow_the_probabilities() -> None:
    probabilities = [0.5, 0.3, 0.15, 0.05]
    # The likely ids stand in different blocks of the vocabulary; all others are impossible.
    places = [3, 200, 201, 999]
    logits = torch.full((1, 1000), float("-inf"))
    logits[0, places] = torch.tensor(probabilities).log()
    draws = 4000
    ids, _ = choose(logits.expand(draws, -1), [Choosing(seed=seed, index=0) for seed in range(draws)])
    for place, probability in zip(places, probabilities, strict=True):
        error = math.sqrt(probability * (1 - probability) / draws)
        assert abs(ids.count(place) / draws - probability) < 4 * error
    assert set(ids) == set(places)


def test_the_id_is_the_first_whose_cumulated_probability_passes_the_uniform_number() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 5000, generator=generator)
    rows = [Choosing(seed=row, index=7) for row in range(64)]
    ids, _ = choose(logits, rows)
    cumulated = torch.softmax(logits.double(), -1).cumsum(-1)
    for row, token in enumerate(ids):
        u = uniform(row, 7)
        before = cumulated[row, token - 1].item() if token else 0.0
        assert before - 1e-6 <= u < cumulated[row, token].item() + 1e-6


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(8, 300, generator=torch.Generator().manual_seed(1))
    rows = [Choosing(seed=row, index=row, temperature=0.7) for row in range(8)]
    together = choose(logits, rows)
    alone = [choose(logits[row : row + 1], [rows[row]]) for row in range(8)]
    assert together[0] == [ids[0] for ids, _ in alone]
    assert together[1] == [logprobs[0] for _, logprobs in alone]


def test_uniform_numbers_depend_on_seed_and_index_and_look_uniform() -> None:
    numbers = [uniform(seed, index) for seed in range(100) for index in range(50)]
    assert len(set(numbers)) == 5000
    assert min(numbers) >= 0 and max(numbers) < 1
    # The mean of 5000 uniform numbers has a standard error of 0.0041.
    assert abs(sum(numbers) / 5000 - 0.5) < 4 * 0.0041
    assert uniform(12, 1) != uniform(1, 21)
    assert uniform(-3, 0) != uniform(3, 0)


def test_impossible_ids_are_never_chosen_at_the_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.full((1, 400), float("-inf"))
    logits[0, 130] = 1.0
    for u in (0.0, 0.5, 1 - 2.0**-53):
        monkeypatch.setattr("ludus_backend.sampling.token_choice.uniform", lambda seed, index, u=u: u)
        assert choose(logits, [Choosing(seed=0, index=0)])[0] == [130]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 2}, [0, 1]),
        # 0.4 + 0.3 = 0.7 does not reach 0.75, so the third is needed as well.
        ({"top_p": 0.75}, [0, 1, 2]),
        ({"top_p": 0.39}, [0]),
        # 0.5 x 0.4 = 0.2: the third is exactly there, the fourth is not.
        ({"min_p": 0.49}, [0, 1, 2]),
        # Renormalised after top-k: 0.4 / 0.7 = 0.571 reaches 0.57 alone.
        ({"top_k": 2, "top_p": 0.57}, [0]),
    ],
)
def test_what_cuts_the_distribution_renormalises_it(options: dict[str, float], kept: list[int]) -> None:
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.1])
    logprobs = processed_logprobs(probabilities.log()[None], [Choosing(seed=0, index=0, **options)])[0]
    expected = torch.zeros(4)
    expected[kept] = probabilities[kept] / probabilities[kept].sum()
    torch.testing.assert_close(logprobs.exp(), expected)


def test_a_cut_applies_to_its_own_row_only() -> None:
    logits = torch.zeros(2, 4)
    logprobs = processed_logprobs(logits, [Choosing(seed=0, index=0, top_k=1), Choosing(seed=0, index=0)])
    assert logprobs[0].isinf().sum() == 3
    torch.testing.assert_close(logprobs[1], torch.full((4,), math.log(0.25)))


def test_a_row_without_a_distribution_leaves_the_others_alone() -> None:
    logits = torch.zeros(2, 300)
    logits[1] = float("nan")
    good = Choosing(seed=1, index=0, temperature=1.0, top_p=None, top_k=None, min_p=None)
    alone, _ = choose(logits[:1], [good])
    both, logprobs = choose(logits, [good, good])
    assert both[0] == alone[0]
    assert 0 <= both[1] < 300
    assert logprobs[1] != logprobs[1]
