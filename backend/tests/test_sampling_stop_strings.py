"""Stop strings are found in the decoded text, across tokens and inside split characters."""

from __future__ import annotations

import pytest
from sampling_support import byte_tokenizer

from ludus_backend.sampling.stop_strings import StopStrings

TOKENIZER = byte_tokenizer()


def first_stop(text: str, stops: list[str]) -> int | None:
    """Tokens until a stop string is complete."""
    watch = StopStrings(stops, TOKENIZER.decode)
    ids = TOKENIZER.encode(text)
    return next((count for count in range(1, len(ids) + 1) if watch.completed(ids[:count])), None)


@pytest.mark.parametrize(
    ("text", "stops", "tokens"),
    [
        ("abc</guess>def", ["</guess>"], 11),
        ("abc", ["</guess>"], None),
        ("abc", [], None),
        ("one two", ["two", "ne"], 3),
        # One byte a token: the euro sign is three.
        ("5 €!", ["€"], 5),
        ("x" * 300 + "end", ["end"], 303),
    ],
)
def test_first_token_that_completes_a_stop_string(text: str, stops: list[str], tokens: int | None) -> None:
    assert first_stop(text, stops) == tokens


def test_special_tokens_have_text_too() -> None:
    watch = StopStrings(["<end>"], TOKENIZER.decode)
    assert watch.completed([*TOKENIZER.encode("a"), 256])
