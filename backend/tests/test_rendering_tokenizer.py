"""The tokenizer that renderers use without transformers."""

from __future__ import annotations

import random

import pytest
from gateway_support import tokenizer_folder
from tokenizers import Tokenizer

from ludus_backend.errors import LudusError
from ludus_backend.gateway.detokenize import TextStream
from ludus_backend.rendering.tokenizer import FastTokenizer

END = 2


@pytest.fixture(scope="module")
def tokenizer() -> FastTokenizer:
    return FastTokenizer(tokenizer_folder(), "bundled")


def test_bytes_of_tokens_are_exact_also_inside_a_character(tokenizer) -> None:
    text = "naïve 日本語 😀\n\t x"
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == text.encode()
    assert any(b"\xf0\x9f" in tokenizer.token_bytes(i) and tokenizer.decode([i]).endswith("�") for i in ids)
    assert tokenizer.token_bytes(END) == b"<|im_end|>"


def test_special_tokens_in_text_are_control_tokens_or_plain_text_as_asked(tokenizer) -> None:
    literal = FastTokenizer(tokenizer_folder(), "bundled", literal_special_tokens=True)
    assert tokenizer.encode("<|im_end|>") == [END]
    assert END not in literal.encode("<|im_end|>")
    assert literal.decode(literal.encode("<|im_end|>")) == "<|im_end|>"


def test_encoding_adds_nothing_and_equals_the_plain_library(tokenizer) -> None:
    plain = Tokenizer.from_file(str(tokenizer_folder() / "tokenizer.json"))
    for text in ("", "Hello", "12 345", "x" * 40_000):
        assert tokenizer.encode(text) == plain.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == tokenizer.encode(text)


def test_a_folder_without_tokenizer_is_a_typed_error(tmp_path) -> None:
    with pytest.raises(LudusError) as caught:
        FastTokenizer(tmp_path, "x")
    assert caught.value.detail.code == "model_missing"
    assert str(tmp_path) in (caught.value.detail.value or "")


@pytest.mark.parametrize("seed", range(20))
def test_streamed_text_adds_up_to_the_whole_text_and_never_takes_back(tokenizer, seed) -> None:
    """Random ids: bytes that are no UTF-8, characters cut at the end, control tokens in the middle."""
    chosen = random.Random(seed)
    ids = [chosen.randrange(49_000) if chosen.random() < 0.7 else chosen.randrange(17, 300) for _ in range(200)]
    stream = TextStream(tokenizer, [], [END])
    text = "".join(stream.feed(ids[start : start + 3]) for start in range(0, len(ids), 3))
    whole = tokenizer.decode(ids[:-1] if ids[-1] == END else ids)
    assert whole.startswith(text)
    assert text + stream.finish(whole) == whole


def test_half_a_character_waits_for_its_other_half(tokenizer) -> None:
    ids = tokenizer.encode("a 😀b")
    stream = TextStream(tokenizer, [], [END])
    pieces = [stream.feed([i]) for i in ids]
    assert "".join(pieces) == "a 😀b"
    assert not any("�" in piece for piece in pieces)


@pytest.mark.parametrize(
    ("text", "markers", "shown"),
    [
        ("one STOP two", ["STOP"], "one"),
        ("one STO", ["STOP"], "one"),
        ("one STORY", ["STOP"], "one STORY"),
        ('hi \n<tool_call>{"a"', ["<tool_call>"], "hi"),
        ("a < b <tool_c", ["<tool_call>"], "a < b"),
    ],
)
def test_what_may_become_a_stop_string_or_a_call_is_held_back(tokenizer, text, markers, shown) -> None:
    stream = TextStream(tokenizer, markers, [END])
    assert "".join(stream.feed([i]) for i in tokenizer.encode(text)) == shown
    assert shown + stream.finish(text) == text


def test_the_token_that_ends_a_reply_is_no_text_but_one_in_its_middle_is(tokenizer) -> None:
    stream = TextStream(tokenizer, [], [END])
    assert stream.feed([*tokenizer.encode("a"), END]) == "a"
    assert stream.feed(tokenizer.encode("b")) == "<|im_end|>b"
