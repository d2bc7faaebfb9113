"""Chat completions of the gateway: request, reply, ids, seeds, limits, tools. The engine is a fake one."""

from __future__ import annotations

import hashlib
import json
import struct

import pytest
from gateway_support import tokenizer_folder
from tokenizers import Tokenizer

from ludus_backend.protocol import ChatCompletion

TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def text_of(ids: list[int]) -> str:
    plain = Tokenizer.from_file(str(tokenizer_folder() / "tokenizer.json"))
    return plain.decode(ids, skip_special_tokens=False)


def test_a_reply_has_openais_shape_with_exact_ids_and_counts(gateway) -> None:
    response = gateway.chat("say:hello you;", logprobs=True, max_tokens=20)
    body = response.json()
    ChatCompletion.model_validate(body)
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hello you"}
    assert text_of(choice["token_ids"]) == "hello you<|im_end|>"
    assert text_of(body["prompt_token_ids"]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nsay:hello you;<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 2)
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-0.5] * len(choice["token_ids"])
    assert b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]) == b"hello you<|im_end|>"
    assert body["usage"]["prompt_tokens"] == len(body["prompt_token_ids"])
    assert body["usage"]["completion_tokens"] == len(choice["token_ids"])
    packed = struct.pack(f"<{len(body['prompt_token_ids'])}I", *body["prompt_token_ids"])
    assert body["ludus"]["prefixHash"] == hashlib.sha256(packed).hexdigest()
    assert body["ludus"] == choice["ludus"]
    assert (body["model"], body["ludus"]["policy"], body["ludus"]["rendered"]) == ("demo@0", "demo@0", "unscoped")


def test_ids_come_without_asking_logprobs_only_when_asked_or_trained(gateway) -> None:
    plain = gateway.chat("say:a;").json()["choices"][0]
    assert plain["logprobs"] is None and plain["token_ids"]
    assert gateway.chat("say:a;", ludus={"train": True}).json()["choices"][0]["logprobs"]["content"]


def test_every_generation_has_its_own_ids(gateway) -> None:
    first, second = (gateway.chat("say:a;").json() for _ in range(2))
    assert first["id"] != second["id"]
    assert first["ludus"]["exchange"] != second["ludus"]["exchange"]


def test_adv_09_members_of_one_request_get_consecutive_seeds(gateway) -> None:
    before = len(gateway.diary("generate"))
    reply = gateway.chat("go", n=4, seed=7, temperature=0.8, max_tokens=6).json()
    assert [entry["seed"] for entry in gateway.diary("generate")[before:]] == [7, 8, 9, 10]
    assert len({tuple(choice["token_ids"]) for choice in reply["choices"]}) == 4
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    again = gateway.chat("go", n=4, seed=7, temperature=0.8, max_tokens=6).json()
    assert [c["token_ids"] for c in again["choices"]] == [c["token_ids"] for c in reply["choices"]]


def test_adv_09_without_a_seed_every_member_gets_a_fresh_one(gateway) -> None:
    before = len(gateway.diary("generate"))
    gateway.chat("go", n=3, max_tokens=2)
    gateway.chat("go", n=3, max_tokens=2)
    assert len({entry["seed"] for entry in gateway.diary("generate")[before:]}) == 6


def test_a_reply_cut_by_its_limit_says_so_and_a_stop_string_is_left_out_of_the_text_only(gateway) -> None:
    cut = gateway.chat("say:one two three four;", max_completion_tokens=2).json()["choices"][0]
    assert (cut["finish_reason"], cut["stop_reason"], cut["message"]["content"]) == ("length", None, "one two")
    stopped = gateway.chat("say:one STOP two;", stop=["nothing", " STOP"]).json()["choices"][0]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", " STOP")
    assert stopped["message"]["content"] == "one"
    assert text_of(stopped["token_ids"]) == "one STOP"


def test_without_a_limit_the_context_is_the_limit(gateway) -> None:
    body = gateway.chat("go").json()
    assert body["usage"]["total_tokens"] == 512
    assert body["choices"][0]["finish_reason"] == "length"


def test_loop_10_what_does_not_fit_the_context_names_both_numbers(gateway) -> None:
    response = gateway.chat("go", max_tokens=500)
    error = response.json()["error"]
    prompt = gateway.chat("go", max_tokens=1).json()["usage"]["prompt_tokens"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert f"maximum context length is 512 tokens, but {prompt + 500} were requested" in error["message"]
    assert response.headers["x-should-retry"] == "false"
    assert gateway.chat("long " * 600).json()["error"]["code"] == "context_length_exceeded"


def test_loop_10_a_text_that_cannot_fit_is_refused_without_being_encoded(gateway) -> None:
    """The longest token of this vocabulary has 81 characters."""
    error = gateway.chat("x" * 1_000_000).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert (
        f"maximum context length is 512 tokens, but at least {1_000_000 // 81 + 1} were requested" in error["message"]
    )


def test_loop_10_the_other_wording_for_a_limit_below_one(gateway) -> None:
    response = gateway.chat("go", max_tokens=-17)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "max_tokens must be at least 1, got -17"


def test_tool_calls_become_openais_and_their_text_form_stays_in_the_ids(gateway) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {"tz": "é"}}\n</tool_call>'
    reply = gateway.chat(f"say:One moment.\n{call};", tools=[TOOL], tool_choice="auto").json()["choices"][0]
    assert reply["finish_reason"] == "tool_calls"
    assert reply["message"]["content"] == "One moment."
    (made,) = reply["message"]["tool_calls"]
    assert made["function"] == {"name": "now", "arguments": '{"tz": "é"}'}
    assert text_of(reply["token_ids"]) == f"One moment.\n{call}<|im_end|>"
    silent = gateway.chat(f"say:{call};", tools=[TOOL]).json()["choices"][0]["message"]
    assert silent["content"] is None and len(silent["tool_calls"]) == 1


@pytest.mark.parametrize("options", [{}, {"tools": [TOOL], "tool_choice": "none"}])
def test_what_looks_like_a_call_is_text_where_nobody_asked_for_calls(gateway, options) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    reply = gateway.chat(f"say:{call};", **options).json()["choices"][0]
    assert (reply["message"], reply["finish_reason"]) == ({"role": "assistant", "content": call}, "stop")


def test_a_call_cut_by_the_limit_is_no_call(gateway) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    reply = gateway.chat(f"say:{call};", tools=[TOOL], max_tokens=8).json()["choices"][0]
    assert reply["finish_reason"] == "length"
    assert reply["message"]["content"].startswith("<tool_call>") and "tool_calls" not in reply["message"]


def test_content_parts_developer_turns_and_echoed_replies_are_understood(gateway) -> None:
    parts = [{"type": "text", "text": "say:"}, {"type": "text", "text": "hi;"}]
    reply = gateway.chat(
        {"role": "developer", "content": "Be brief."},
        {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": None},
        {"role": "user", "content": parts},
    ).json()
    assert reply["choices"][0]["message"]["content"] == "hi"
    assert text_of(reply["prompt_token_ids"]).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\nsay:hi;"
    )


def test_ep_06_half_an_emoji_becomes_a_replacement_character(gateway) -> None:
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "abc\ud83d"}], "max_tokens": 1})
    response = gateway.client.post("/v1/chat/completions", content=body)
    assert response.status_code == 200
    assert "user\nabc\ufffd<|im_end|>" in text_of(response.json()["prompt_token_ids"])


def test_options_reach_the_engine_and_neutral_ones_do_not(gateway) -> None:
    gateway.chat("go", max_tokens=1, temperature=0.5, top_p=0.9, top_k=5, min_p=0.1)
    sent = gateway.diary("generate")[-1]
    assert (sent["temperature"], sent["topP"], sent["topK"], sent["minP"]) == (0.5, 0.9, 5, 0.1)
    neutral = {"top_p": 1, "top_k": -1, "min_p": 0, "presence_penalty": 0, "logit_bias": {}, "user": "me"}
    assert gateway.chat("go", max_tokens=1, ludus={"train": True}, **neutral).status_code == 200
    sent = gateway.diary("generate")[-1]
    assert (sent["temperature"], sent["topP"], sent["topK"], sent["minP"]) == (1, None, None, None)
    assert sent["stopIds"] == [2]


def test_ignore_eos_samples_on_to_the_limit(gateway) -> None:
    reply = gateway.chat("say:a;", max_tokens=2, ignore_eos=True).json()["choices"][0]
    assert len(reply["token_ids"]) == 2
