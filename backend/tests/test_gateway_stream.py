"""Streaming: the same ids in pieces, whole characters, and the client's disappearance."""

from __future__ import annotations

import json
import socket

import pytest
from gateway_support import TOKEN, until

TOOL = {"type": "function", "function": {"name": "now", "parameters": {}}}


def pieces(events: list, index: int = 0) -> list[dict]:
    return [c for e in events if e != "[DONE]" for c in e["choices"] if c["index"] == index]


def content(events: list, index: int = 0) -> str:
    return "".join(piece["delta"].get("content") or "" for piece in pieces(events, index))


@pytest.mark.parametrize("options", [{}, {"n": 3}, {"stop": ["e"]}, {"logprobs": True}])
def test_a_stream_adds_up_to_the_plain_reply_of_the_same_seed(gateway, options) -> None:
    asked = {"seed": 11, "max_tokens": 30, **options}
    whole = gateway.chat("go", **asked).json()
    events = gateway.stream("go", **asked, stream_options={"include_usage": True})
    for choice in whole["choices"]:
        mine = pieces(events, choice["index"])
        assert [i for piece in mine for i in piece["token_ids"]] == choice["token_ids"]
        assert content(events, choice["index"]) == choice["message"]["content"]
        assert [piece["finish_reason"] for piece in mine if piece["finish_reason"]] == [choice["finish_reason"]]
        assert mine[-1]["stop_reason"] == choice["stop_reason"]
        logprobs = [entry for piece in mine if piece["logprobs"] for entry in piece["logprobs"]["content"]]
        assert logprobs == (choice["logprobs"]["content"] if choice["logprobs"] else [])
    assert events[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[0]["ludus"]["prefixHash"] == whole["ludus"]["prefixHash"]
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert {**events[-2]["usage"]} == whole["usage"]
    assert len({event["id"] for event in events[:-1]}) == 1


def test_usage_comes_only_when_asked_for(gateway) -> None:
    assert not [e for e in gateway.stream("go", max_tokens=2) if e != "[DONE]" and "usage" in e]


def test_no_piece_ever_holds_half_a_character(gateway) -> None:
    events = gateway.stream("say:日本 😀 naïve;")
    assert content(events) == "日本 😀 naïve"
    assert not any("�" in (piece["delta"].get("content") or "") for piece in pieces(events))


def test_a_tool_call_is_streamed_as_a_call_and_never_as_text(gateway) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'
    events = gateway.stream(f"say:Wait.\n{call};", tools=[TOOL])
    assert content(events) == "Wait."
    (delta,) = [piece["delta"] for piece in pieces(events) if "tool_calls" in piece["delta"]]
    (made,) = delta["tool_calls"]
    assert (made["index"], made["type"], made["function"]) == (0, "function", {"name": "now", "arguments": '{"a": 1}'})
    assert pieces(events)[-1]["finish_reason"] == "tool_calls"


def test_errors_before_the_first_token_are_plain_http(gateway) -> None:
    response = gateway.chat("go", stream=True, max_tokens=9999)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")


def ask_and_leave(port: int, body: dict, read: bytes | None) -> None:
    """Sends a request and closes the connection: at once, or when ``read`` has arrived."""
    payload = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        connection.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        received = b""
        while read is not None and read not in received:
            received += connection.recv(65_536)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_ends_its_sampling(gateway, stream) -> None:
    limit = 300 + stream
    body = {"model": "demo", "messages": [{"role": "user", "content": "slow"}], "max_tokens": limit, "stream": stream}
    if stream:
        ask_and_leave(gateway.port, body, b"token_ids")
    else:
        with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
            payload = json.dumps(body).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            connection.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
            until(lambda: [e for e in gateway.diary("generate") if e["maxTokens"] == limit])
    (asked,) = [entry for entry in gateway.diary("generate") if entry["maxTokens"] == limit]
    until(lambda: asked["id"] in [entry["target"] for entry in gateway.diary("cancel")], seconds=5)


def test_a_client_that_goes_before_the_first_token_ends_its_sampling_too(gateway) -> None:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "slow"}],
        "max_tokens": 302,
        "n": 2,
        "stream": True,
    }
    ask_and_leave(gateway.port, body, None)
    asked = until(lambda: [e["id"] for e in gateway.diary("generate") if e["maxTokens"] == 302])
    until(lambda: set(asked) <= {entry["target"] for entry in gateway.diary("cancel")}, seconds=5)


def test_one_of_two_who_share_a_request_may_go(gateway, episode) -> None:
    """The generation lives as long as anybody waits for it."""
    body = {"episode": episode, "max_tokens": 12, "ludus": {"request": "shared"}}
    sent = {
        "model": "demo",
        "messages": [{"role": "user", "content": "slow"}],
        "max_tokens": 12,
        "ludus": body["ludus"],
    }
    payload = json.dumps(sent, separators=(",", ":"), ensure_ascii=False).encode()
    connection = socket.create_connection(("127.0.0.1", gateway.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    about = f"x-ludus-episode: {episode}\r\nContent-Length: {len(payload)}\r\n"
    connection.sendall(f"{head}{about}\r\n".encode() + payload)
    known = until(lambda: [e for e in gateway.diary("generate") if e["maxTokens"] == 12])[-1]["id"]
    second = gateway.client.build_request(
        "POST", "/v1/chat/completions", content=payload, headers={"x-ludus-episode": episode}
    )
    connection.close()
    reply = gateway.client.send(second)
    assert reply.status_code == 200
    assert len(reply.json()["choices"][0]["token_ids"]) == 12
    assert known
