"""Whose ids a prompt extends: inside an episode, by text, never across."""

from __future__ import annotations

import pytest
from gateway_support import until

TOOL = {"type": "function", "function": {"name": "now", "parameters": {}}}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def reply_of(response) -> dict:
    return response.json()["choices"][0]["message"]


def test_the_next_turn_extends_prompt_and_sample_of_the_last(gateway, episode) -> None:
    first = gateway.chat("say:one;", episode=episode).json()
    assert (first["ludus"]["rendered"], first["ludus"]["parent"]) == ("first", None)
    second = gateway.chat("say:one;", first["choices"][0]["message"], "say:two;", episode=episode).json()
    assert (second["ludus"]["rendered"], second["ludus"]["parent"]) == ("bridged", first["ludus"]["exchange"])
    stem = first["prompt_token_ids"] + first["choices"][0]["token_ids"]
    assert second["prompt_token_ids"][: len(stem)] == stem
    third = gateway.chat(
        "say:one;",
        first["choices"][0]["message"],
        "say:two;",
        second["choices"][0]["message"],
        "say:3;",
        episode=episode,
    ).json()
    assert third["ludus"]["parent"] == second["ludus"]["exchange"]


def test_tok_02_sampled_ids_survive_also_where_no_tokenizer_would_produce_them(gateway, episode) -> None:
    """Random ids: their text encodes to other ids, and it was cut by the limit, so the bridge closes the turn."""
    first = gateway.chat("go", max_tokens=12, seed=3, episode=episode).json()
    sampled = first["choices"][0]["token_ids"]
    second = gateway.chat("go", first["choices"][0]["message"], "say:x;", episode=episode).json()
    stem = first["prompt_token_ids"] + sampled
    assert second["prompt_token_ids"][: len(stem) + 1] == [*stem, 2]
    unscoped = gateway.chat("go", first["choices"][0]["message"], "say:x;").json()
    assert unscoped["ludus"]["rendered"] == "unscoped"
    assert unscoped["prompt_token_ids"] != second["prompt_token_ids"]


@pytest.mark.parametrize("content", [None, "", "missing"])
def test_loop_07_null_empty_and_missing_content_are_one_history(gateway, episode, content) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    first = gateway.chat(f"say:{call};", tools=[TOOL], episode=episode).json()
    message = first["choices"][0]["message"]
    assert message["content"] is None
    echoed = {k: v for k, v in message.items() if k != "content"} | (
        {} if content == "missing" else {"content": content}
    )
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "noon"}
    second = gateway.chat(f"say:{call};", echoed, result, tools=[TOOL], episode=episode).json()
    assert second["ludus"]["parent"] == first["ludus"]["exchange"]


def test_a_changed_history_is_a_fork(gateway, episode) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    first = gateway.chat(f"say:{call};", tools=[TOOL], episode=episode)
    message = reply_of(first)
    spaced = {**message["tool_calls"][0], "function": {"name": "now", "arguments": "{ }"}}
    tool = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "noon"}
    changes = {
        "reply": ([user(f"say:{call};"), {**message, "content": "x"}, tool], [TOOL]),
        "arguments": ([user(f"say:{call};"), {**message, "tool_calls": [spaced]}, tool], [TOOL]),
        "system": ([{"role": "system", "content": "s"}, user(f"say:{call};"), message, tool], [TOOL]),
        "tools": ([user(f"say:{call};"), message, tool], [TOOL, {**TOOL, "function": {"name": "b"}}]),
        "no tools": ([user(f"say:{call};"), message, tool], None),
    }
    for messages, tools in changes.values():
        forked = gateway.chat(*messages, tools=tools, episode=episode, max_tokens=1).json()["ludus"]
        assert (forked["rendered"], forked["parent"]) == ("forked", None)


def test_an_assistant_turn_that_was_never_sampled_forks_too(gateway, episode) -> None:
    first = reply_of(gateway.chat("say:one;", episode=episode))
    made_up = {"role": "assistant", "content": "I never said this"}
    ludus = gateway.chat("say:one;", first, "more", made_up, "say:x;", episode=episode).json()["ludus"]
    assert (ludus["rendered"], ludus["parent"]) == ("forked", None)


def test_several_new_messages_are_one_extension_and_the_longest_history_wins(gateway, episode) -> None:
    first = gateway.chat("say:one;", episode=episode).json()
    second = gateway.chat("say:one;", first["choices"][0]["message"], "say:two;", episode=episode).json()
    history = ["say:one;", first["choices"][0]["message"], "say:two;", second["choices"][0]["message"]]
    third = gateway.chat(*history, "a", {"role": "system", "content": "b"}, "say:c;", episode=episode).json()
    assert third["ludus"]["parent"] == second["ludus"]["exchange"]


def test_histories_never_cross_episodes(gateway, episode) -> None:
    first = gateway.chat("say:one;", episode=episode).json()
    message = first["choices"][0]["message"]
    elsewhere = gateway.chat("say:one;", message, "say:two;", episode="another").json()["ludus"]
    assert (elsewhere["rendered"], elsewhere["parent"]) == ("forked", None)
    named = gateway.chat(
        "say:one;", message, "say:2;", episode="third", ludus={"parent": first["ludus"]["exchange"]}
    ).json()["ludus"]
    assert (named["rendered"], named["parent"]) == ("forked", None)


def test_equal_texts_are_told_apart_by_parent(gateway, episode) -> None:
    both = gateway.chat("say:same;", n=2, episode=episode).json()
    left, right = (choice["ludus"]["exchange"] for choice in both["choices"])
    again = gateway.chat("say:same;", episode=episode).json()["ludus"]["exchange"]
    message = both["choices"][0]["message"]
    for parent in (left, right, again):
        reply = gateway.chat("say:same;", message, "say:x;", episode=episode, ludus={"parent": parent}).json()
        assert reply["ludus"]["parent"] == parent
    assert gateway.chat("say:same;", message, "say:x;", episode=episode).json()["ludus"]["parent"] == again
    unknown = gateway.chat("say:same;", message, "say:x;", episode=episode, ludus={"parent": "no such"}).json()
    assert (unknown["ludus"]["rendered"], unknown["ludus"]["parent"]) == ("forked", None)


def test_streamed_replies_are_histories_too(gateway, episode) -> None:
    first = gateway.stream("say:one two;", episode=episode)
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in first if e != "[DONE]" and e["choices"])
    reply = gateway.chat("say:one two;", {"role": "assistant", "content": text}, "say:x;", episode=episode).json()
    assert reply["ludus"]["parent"] == first[0]["ludus"]["exchange"]


def test_a_closed_episode_is_forgotten_here_and_in_the_engine(gateway) -> None:
    gateway.chat("say:one;", episode="to close")
    key = gateway.diary("generate")[-1]["conversation"]
    assert gateway.client.delete("/v1/ludus/episodes/to%20close").status_code == 204
    until(lambda: key in [entry["conversation"] for entry in gateway.diary("forget")])
    after = gateway.chat("say:one;", {"role": "assistant", "content": "one"}, "say:x;", episode="to close").json()
    assert after["ludus"]["rendered"] == "forked"
    assert gateway.diary("generate")[-1]["conversation"] != key
    assert gateway.client.delete("/v1/ludus/episodes/never%20opened").status_code == 204
