"""The gateway with the real engine and a tiny random model: what a client gets is what was sampled and trained."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from gateway_support import (
    REAL_ENGINE,
    Gateway,
    command,
    environment,
    events_of,
    is_there,
    register,
    running_gateway,
    until,
)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("real"), program=REAL_ENGINE) as running:
        register(running)
        yield running


def exchange(body: dict[str, Any], parent: dict[str, Any] | None = None) -> dict[str, Any]:
    """A reply as the exchange of a train request: only the ids after its parent."""
    known = 0 if parent is None else len(parent["prompt_token_ids"]) + len(parent["choices"][0]["token_ids"])
    choice = body["choices"][0]
    return {
        "id": body["ludus"]["exchange"],
        "parent": body["ludus"]["parent"],
        "prefixHash": body["ludus"]["prefixHash"],
        "promptIds": body["prompt_token_ids"][known:],
        "sampledIds": choice["token_ids"],
        "logprobs": [entry["logprob"] for entry in choice["logprobs"]["content"]],
        "policy": body["ludus"]["policy"],
    }


def two_turns(real: Gateway, episode: str, seed: int) -> list[dict[str, Any]]:
    """The exchanges of a two-turn episode."""
    asked = {"episode": episode, "max_tokens": 12, "ludus": {"train": True}}
    first = real.chat("Hello", seed=seed, **asked).json()
    second = real.chat("Hello", first["choices"][0]["message"], "Go on", seed=seed + 1, **asked).json()
    assert second["ludus"]["parent"] == first["ludus"]["exchange"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(first["prompt_token_ids"])
    return [exchange(first), exchange(second, first)]


def train(real: Gateway, key: str, step: int) -> dict[str, Any]:
    trajectories = [
        {"id": name, "reward": reward, "exchanges": two_turns(real, f"{key}-{name}", 10 * int(reward) + 3)}
        for name, reward in (("good", 1.0), ("bad", 0.0))
    ]
    request = {
        "key": key,
        "expectedStep": step,
        "groups": [{"id": "g", "trajectories": trajectories}],
        "config": {"learningRate": 0.02},
    }
    job = real.post("/v1/ludus/models/demo/train", request).json()["job"]
    events = events_of(real.client.get(f"/v1/ludus/jobs/{job}/events").text)
    assert events[-1]["type"] == "completed", events
    return events[-1]["result"]


def test_same_seed_same_ids_streamed_or_not_alone_or_among_others(real) -> None:
    asked = {"max_tokens": 16, "seed": 5, "logprobs": True}
    alone = real.chat("Hello", **asked).json()["choices"][0]
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(real.chat, f"Noise {i}", max_tokens=10 + i) for i in range(6)]
        among = pool.submit(real.chat, "Hello", **asked).result().json()["choices"][0]
        assert all(other.result().status_code == 200 for other in others)
    events = real.stream("Hello", **asked)
    streamed = [i for e in events if e != "[DONE]" for c in e["choices"] for i in c["token_ids"]]
    assert alone["token_ids"] == among["token_ids"] == streamed
    text = "".join(c["delta"].get("content") or "" for e in events if e != "[DONE]" for c in e["choices"])
    assert text == alone["message"]["content"]
    logprobs = [entry["logprob"] for entry in alone["logprobs"]["content"]]
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in logprobs)


def test_tok_02_trainer_and_sampler_agree_on_bridged_samples_that_no_tokenizer_would_produce(real) -> None:
    """Random weights sample random ids; the trainer checks every prefix hash and recomputes every log-probability."""
    step = real.client.get("/v1/ludus/models/demo").json()["step"]
    result = train(real, f"agree-{step}", step)
    assert result["trained"] is True
    assert result["metrics"]["logprob_gap_max"] < 1e-3
    assert result["nonFinite"] == []


def test_lora_01_after_training_the_plain_name_samples_from_the_new_weights(real) -> None:
    asked = {"max_tokens": 8, "temperature": 0, "logprobs": True}
    step = real.client.get("/v1/ludus/models/demo").json()["step"]
    old = real.chat("Hello", episode="leased", **asked).json()
    result = train(real, f"lora-{step}", step)
    new = real.chat("Hello", episode="fresh", **asked).json()
    assert new["ludus"]["policy"] == result["policy"] == f"demo@{step + 1}"
    assert new["choices"][0]["logprobs"] != old["choices"][0]["logprobs"]
    for reply in (real.chat("Hello", episode="leased", **asked), real.chat("Hello", model=f"demo@{step}", **asked)):
        body = reply.json()
        assert body["ludus"]["policy"] == f"demo@{step}"
        assert body["choices"][0]["token_ids"] == old["choices"][0]["token_ids"]
    assert f"demo@{step + 1}" in [entry["id"] for entry in real.client.get("/v1/models").json()["data"]]


def test_a_repeated_train_key_gives_the_same_step(real) -> None:
    step = real.client.get("/v1/ludus/models/demo").json()["step"]
    assert train(real, "twice", step)["step"] == step + 1
    again = train(real, "twice", step)
    assert (again["step"], again["repeated"]) == (step + 1, True)
    checkpoints = real.client.get("/v1/ludus/models/demo/checkpoints").json()["checkpoints"]
    assert [c["key"] for c in checkpoints if c["step"] == step + 1] == ["twice"]


def test_another_base_model_is_refused(real) -> None:
    response = real.post("/v1/ludus/models", {"name": "other", "base": {"source": "random", "contextLength": 64}})
    assert (response.status_code, response.json()["error"]["field"]) == (400, "base")


def test_proc_02_a_killed_engine_comes_back_with_its_weights_and_a_killed_gateway_takes_it_along(tmp_path) -> None:
    process = subprocess.Popen(
        command(tmp_path / "state", program=REAL_ENGINE), stdout=subprocess.PIPE, env=environment(tmp_path / "diary")
    )
    assert process.stdout is not None
    gateway = Gateway(process, json.loads(process.stdout.readline())["port"], tmp_path / "diary")
    register(gateway)
    train(gateway, "one", 0)
    asked = {"max_tokens": 8, "temperature": 0}
    before = gateway.chat("Hello", **asked).json()
    first = gateway.until_healthy()["enginePid"]
    os.kill(first, signal.SIGKILL)
    until(lambda: gateway.health()["enginePid"] != first)
    after = gateway.chat("Hello", **asked).json()
    assert after["choices"][0]["token_ids"] == before["choices"][0]["token_ids"]
    assert after["ludus"]["policy"] == before["ludus"]["policy"] == "demo@1"

    second = gateway.until_healthy()["enginePid"]
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port)) as sampling:
        sampling.sendall(head.encode() + body)
        assert b"200 OK" in sampling.recv(1000)
        process.kill()
        process.wait()
        until(lambda: not is_there(second), seconds=5)


def test_proc_02_a_gateway_killed_while_its_engine_is_starting_leaves_none(tmp_path) -> None:
    process = subprocess.Popen(
        command(tmp_path / "state", program=REAL_ENGINE), stdout=subprocess.PIPE, env=environment(tmp_path / "diary")
    )
    assert process.stdout is not None
    gateway = Gateway(process, json.loads(process.stdout.readline())["port"], tmp_path / "diary")
    engine = until(lambda: gateway.health()["enginePid"])
    process.kill()
    process.wait()
    until(lambda: not is_there(engine), seconds=5)
