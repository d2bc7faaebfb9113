"""What the gateway refuses, and how it says so."""

from __future__ import annotations

import pytest

USER = {"role": "user", "content": "go"}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 40}, "top_k"),
        ({"min_p": 0.05}, "min_p"),
        ({"temperature": 0}, "temperature"),
        ({"presence_penalty": 0.1}, "presence_penalty"),
        ({"frequency_penalty": -0.1}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
    ],
)
def test_a_trained_exchange_refuses_whatever_bends_its_distribution(gateway, options, field) -> None:
    response = gateway.chat("go", max_tokens=1, ludus={"train": True}, **options)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["field"]) == (400, "invalid_request", field)
    assert "trained" in error["message"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
    ],
)
def test_what_is_not_supported_yet_is_refused_by_name(gateway, options, field) -> None:
    error = gateway.chat("go", **options).json()["error"]
    assert (error["code"], error["field"]) == ("invalid_request", field)
    assert "not supported yet" in error["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": [USER], "temprature": 1}, "temprature"),
        ({"messages": [USER], "ludus": {"trian": True}}, "ludus.trian"),
        ({"messages": [{**USER, "mood": "good"}]}, "messages[0].mood"),
        ({"messages": []}, "messages"),
        ({}, "messages"),
        ({"messages": [USER, {"role": "robot", "content": "x"}]}, "messages[1].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [USER], "temperature": -1}, "temperature"),
        ({"messages": [USER], "temperature": 1e-40}, "temperature"),
        ({"messages": [USER], "n": 0}, "n"),
        ({"messages": [USER], "top_p": 0}, "top_p"),
        ({"messages": [USER], "seed": "x"}, "seed"),
        ({"messages": [USER], "seed": 10**30}, "seed"),
        ({"messages": [USER], "stop": [""]}, "stop"),
        ({"messages": [USER], "stop": ["x"] * 17}, "stop"),
        ({"messages": [USER], "ludus": {"request": "r1"}}, "ludus.request"),
        ({"messages": [USER], "ludus": {"parent": "p1"}}, "ludus.parent"),
    ],
)
def test_bad_fields_are_named(gateway, body, field) -> None:
    response = gateway.post("/v1/chat/completions", {"model": "demo", **body})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["field"]) == (400, "invalid_request", field)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"nonsense", b'"x"', b"[" * 100_000, b"\xff\xfe", b'"\xed\xa0\x80"']
)
def test_a_body_that_is_no_json_object_is_a_bad_request(gateway, body) -> None:
    response = gateway.client.post("/v1/chat/completions", content=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("model", ["other", "demo@7", "demo@", "demo@-1", "../../etc/passwd", "", "a/b", "demo@0@0"])
def test_unknown_models_are_404_with_the_known_ones(gateway, model) -> None:
    response = gateway.post("/v1/chat/completions", {"model": model, "messages": [USER]})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "unknown_model")
    assert "demo@0" in error["expected"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "../evil"}, "name"),
        ({"name": "/absolute"}, "name"),
        ({"name": ".hidden"}, "name"),
        ({"name": "a@1"}, "name"),
        ({"name": "a" * 129}, "name"),
        ({"name": "ok", "base": {"source": "random", "renderer": "qwen4"}}, "base.renderer"),
        ({"name": "ok", "lora": {"rank": 0}}, "lora.rank"),
        ({"name": "ok", "colour": 1}, "colour"),
    ],
)
def test_names_that_could_become_paths_and_bad_options_never_reach_the_engine(gateway, body, field) -> None:
    before = len(gateway.diary("register"))
    response = gateway.post("/v1/ludus/models", body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["field"]) == (400, "invalid_request", field)
    assert len(gateway.diary("register")) == before


@pytest.mark.parametrize("name", ["%2e%2e", "%2e%2e%2f%2e%2e%2fetc", "a%00b", "demo%2f..%2fdemo", "..%5c.."])
@pytest.mark.parametrize("path", ["", "/checkpoints"])
def test_traversal_in_a_path_finds_nothing(gateway, name, path) -> None:
    response = gateway.client.get(f"/v1/ludus/models/{name}{path}")
    assert response.status_code in (400, 404)
    assert response.json()["error"]["code"] in ("invalid_request", "not_found")


def test_unknown_paths_methods_and_jobs_answer_in_the_same_shape(gateway) -> None:
    assert gateway.client.get("/v2/nothing").json()["error"]["code"] == "not_found"
    assert gateway.client.get("/v1/chat/completions").status_code == 405
    assert gateway.client.get("/v1/ludus/jobs/none/events").json()["error"]["code"] == "not_found"
    missing = gateway.client.get("/v1/ludus/models/none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_model")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"expectedStep": 0, "groups": []}, "key"),
        ({"key": "a/b", "expectedStep": 0, "groups": []}, "key"),
        ({"key": "k", "expectedStep": -1, "groups": []}, "expectedStep"),
        ({"key": "k", "expectedStep": 0, "groups": [], "config": {"learningrate": 1}}, "config.learningrate"),
        (
            {
                "key": "k",
                "expectedStep": 0,
                "groups": [{"id": "g", "trajectories": [{"id": "t", "reward": None, "exchanges": []}]}],
            },
            "groups[0].trajectories[0].reward",
        ),
    ],
)
def test_json_01_a_train_request_with_a_hole_in_it_is_refused_before_the_engine(gateway, body, field) -> None:
    response = gateway.post("/v1/ludus/models/demo/train", body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["field"]) == (400, "invalid_request", field)
    assert gateway.diary("train") == []


def test_json_01_literals_that_are_not_json_numbers_are_refused(gateway) -> None:
    trajectory = '{"id": "t", "reward": NaN, "exchanges": []}'
    body = f'{{"key": "k", "expectedStep": 0, "groups": [{{"id": "g", "trajectories": [{trajectory}]}}]}}'
    response = gateway.client.post("/v1/ludus/models/demo/train", content=body)
    assert response.json()["error"]["field"] == "groups[0].trajectories[0].reward"
    chat = '{"model": "demo", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}'
    error = gateway.client.post("/v1/chat/completions", content=chat).json()["error"]
    assert (error["code"], error["message"]) == ("invalid_request", "The body is not JSON: NaN is not JSON")
