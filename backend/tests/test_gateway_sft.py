"""Supervised fine-tuning, forks, deletions and exports over HTTP, with the real engine and a tiny random model."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_support import REAL_ENGINE, Gateway, events_of, register, running_gateway


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("real"), program=REAL_ENGINE) as running:
        yield running


def example(asked: str, answer: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}], **more}


def message(role: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": "x", **more}]}


EXAMPLES = [example(f"Say {word}.", f"I say {word}.") for word in ("one", "two", "three", "four", "five")]
CONFIG = {"learningRate": 0.02, "tokensPerStep": 60, "epochs": 2, "schedule": "constant", "warmupRatio": 0}


def start(real: Gateway, name: str, step: int, key: str, examples: Any = EXAMPLES, **config: Any) -> Any:
    body = {"key": key, "expectedStep": step, "examples": examples, "config": {**CONFIG, **config}}
    return real.post(f"/v1/ludus/models/{name}/sft", body)


def events(real: Gateway, *arguments: Any, **options: Any) -> list[Any]:
    response = start(real, *arguments, **options)
    assert response.status_code == 200, response.text
    return events_of(real.client.get(f"/v1/ludus/jobs/{response.json()['job']}/events").text)


def sft(real: Gateway, *arguments: Any, **options: Any) -> dict[str, Any]:
    last = events(real, *arguments, **options)[-1]
    assert last["type"] == "completed", last
    return last["result"]


def steps(real: Gateway, name: str) -> list[int]:
    listed = [c["step"] for c in real.client.get(f"/v1/ludus/models/{name}/checkpoints").json()["checkpoints"]]
    assert listed == real.client.get(f"/v1/ludus/models/{name}").json()["steps"]
    return listed


def test_every_update_is_a_step_with_its_own_key_and_a_repeat_makes_none(real) -> None:
    register(real, "taught")
    heard = events(real, "taught", 0, "lesson")
    result = heard[-1]["result"]
    count = int(result["metrics"]["sft/updates"])
    assert count >= 4 and result["step"] == count and result["policy"] == f"taught@{count}"
    assert [(e["done"], e["total"], e["phase"]) for e in heard[:-1]] == [(i, count, "sft") for i in range(count)]
    assert result["metrics"]["sft/loss"] < result["metrics"]["sft/first_loss"]
    keys = [c["key"] for c in real.client.get("/v1/ludus/models/taught/checkpoints").json()["checkpoints"]]
    assert keys == [None, *(f"lesson:{i}" for i in range(count))]
    again = sft(real, "taught", 0, "lesson")
    assert (again["step"], again["repeated"]) == (count, True)
    assert steps(real, "taught") == list(range(count + 1))
    reply = real.chat("Say one.", model="taught", max_tokens=4).json()
    assert reply["ludus"]["policy"] == f"taught@{count}"


def adapter(real: Gateway, name: str, step: int) -> bytes:
    found = real.client.get(f"/v1/ludus/models/{name}/checkpoints").json()["checkpoints"]
    [path] = [checkpoint["path"] for checkpoint in found if checkpoint["step"] == step]
    return (Path(path) / "adapter_model.safetensors").read_bytes()


def test_ckpt_05_a_lesson_whose_engine_was_killed_goes_on_and_ends_with_the_same_bytes(real) -> None:
    register(real, "whole")
    register(real, "cut")
    total = sft(real, "whole", 0, "lesson", epochs=4)["step"]
    job = start(real, "cut", 0, "lesson", epochs=4).json()["job"]
    engine = real.until_healthy()["enginePid"]
    with real.client.stream("GET", f"/v1/ludus/jobs/{job}/events") as stream:
        for line in stream.iter_lines():
            if line.startswith("data: ") and json.loads(line.removeprefix("data: ")).get("done") == 2:
                break
    os.kill(engine, signal.SIGKILL)
    ending = events_of(real.client.get(f"/v1/ludus/jobs/{job}/events").text)[-1]
    assert (ending["type"], ending["error"]["code"]) == ("failed", "engine_failed")
    real.until_healthy(other_than=engine)
    result = sft(real, "cut", 0, "lesson", epochs=4)
    assert (result["step"], result["repeated"]) == (total, False)
    assert steps(real, "cut") == list(range(total + 1))
    assert adapter(real, "cut", total) == adapter(real, "whole", total)
    conflict = events(real, "cut", 1, "another")[-1]
    assert (conflict["type"], conflict["error"]["code"]) == ("failed", "step_conflict")


def test_examples_that_cannot_be_trained_are_refused_by_name_or_counted(real) -> None:
    register(real, "picky")
    long = example("word " * 9000, "yes")
    silent = {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a", "weight": 0}]}
    failed = events(real, "picky", 0, "a", [EXAMPLES[0], long])[-1]
    assert (failed["type"], failed["error"]["field"]) == ("failed", "examples[1]")
    assert events(real, "picky", 0, "b", [silent])[-1]["error"]["field"] == "examples"
    assert steps(real, "picky") == [0]
    result = sft(real, "picky", 0, "c", [EXAMPLES[0], long, silent], tooLong="skip", epochs=1)
    figures = result["metrics"]
    counted = [figures[f"sft/{name}"] for name in ("examples", "examples_too_long", "examples_without_target")]
    assert counted == [1, 1, 1]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"examples": []}, "examples"),
        (
            {"examples": [example("a", "b"), {"messages": [{"role": "robot", "content": "x"}]}]},
            "examples[1].messages[0].role",
        ),
        (
            {"examples": [{"messages": [{"role": "assistant", "content": "x", "weight": 2}]}]},
            "examples[0].messages[0].weight",
        ),
        ({"config": {"epochs": 0}}, "config.epochs"),
        ({"config": {"learningrate": 1}}, "config.learningrate"),
        ({"key": "a b"}, "key"),
    ],
)
def test_a_request_that_is_not_one_names_its_field(real, change, field) -> None:
    register(real, "refuses")
    body = {"key": "k", "expectedStep": 0, "examples": [example("a", "b")], **change}
    response = real.post("/v1/ludus/models/refuses/sft", body)
    assert (response.status_code, response.json()["error"]["field"]) == (400, field)


def test_a_fork_is_served_trained_and_known_again_and_its_source_is_not_touched(real) -> None:
    register(real, "root")
    sft(real, "root", 0, "lesson", epochs=1)
    newest = steps(real, "root")[-1]
    made = real.post("/v1/ludus/forks", {"name": "branch", "model": "root", "step": newest, "optimizer": True})
    assert made.status_code == 200, made.text
    assert (made.json()["step"], made.json()["steps"], made.json()["notices"]) == (0, [0], [])
    asked = {"max_tokens": 8, "temperature": 0, "logprobs": True}
    root, branch = (real.chat("Say two.", model=model, **asked).json() for model in (f"root@{newest}", "branch@0"))
    assert root["choices"][0]["logprobs"] == branch["choices"][0]["logprobs"]
    assert sft(real, "branch", 0, "more", epochs=1)["trained"]
    assert steps(real, "root")[-1] == newest
    again = real.post("/v1/ludus/forks", {"name": "branch", "model": "root", "step": newest, "optimizer": True})
    assert again.json()["step"] == steps(real, "branch")[-1] > 0
    for body, field in (({"name": "../x", "model": "root"}, "name"), ({"name": "x", "model": "a/b"}, "model")):
        refused = real.post("/v1/ludus/forks", body)
        assert (refused.status_code, refused.json()["error"]["field"]) == (400, field)


def test_lora_07_a_leased_step_survives_a_deletion_and_still_answers(real) -> None:
    register(real, "kept")
    sft(real, "kept", 0, "a", epochs=1)
    leased = real.chat("Hello", model="kept", episode="holding", max_tokens=2).json()["ludus"]["policy"]
    held = int(leased.split("@")[1])
    sft(real, "kept", held, "b", epochs=1)
    before = steps(real, "kept")
    path = "/v1/ludus/models/kept/checkpoints/delete"
    planned = real.post(path, {"keepLast": 1, "dryRun": True}).json()
    assert steps(real, "kept") == before
    done = real.post(path, {"keepLast": 1}).json()
    assert done == planned
    assert done["kept"] == [{"step": held, "reason": "in_use"}, {"step": before[-1], "reason": "newest"}]
    assert steps(real, "kept") == [held, before[-1]]
    still = real.chat("Hello", model="kept", episode="holding", max_tokens=2).json()
    assert still["ludus"]["policy"] == leased
    gone = real.chat("Hello", model="kept@0", max_tokens=2)
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "unknown_model")
    assert real.client.delete("/v1/ludus/episodes/holding").status_code == 204
    assert real.post(path, {"steps": [held]}).json()["deleted"] == [held]


def test_an_export_lands_where_the_owner_says_and_nowhere_else(real, tmp_path: Path) -> None:
    register(real, "shipped")
    sft(real, "shipped", 0, "a", epochs=1)
    path = "/v1/ludus/models/shipped/export"
    made = real.post(path, {"destination": str(tmp_path / "model"), "dtype": "bf16"})
    assert made.status_code == 200, made.text
    assert {entry.name for entry in (tmp_path / "model").iterdir()} == set(made.json()["files"])
    assert {"model.safetensors", "tokenizer.json", "chat_template.jinja"} <= set(made.json()["files"])
    adapter = real.post(path, {"destination": str(tmp_path / "adapter"), "format": "adapter", "step": 0}).json()
    assert adapter["files"] == ["adapter_config.json", "adapter_model.safetensors"]
    for body in ({"destination": "relative"}, {"destination": str(tmp_path / "model")}):
        refused = real.post(path, body)
        assert (refused.status_code, refused.json()["error"]["field"]) == (400, "destination")
    key = real.post("/v1/ludus/episodes", {"id": "guest"}).json()["key"]
    with real.connect(key) as guest:
        assert guest.post(path, json={"destination": str(tmp_path / "guest")}).status_code == 401
        assert guest.post("/v1/ludus/forks", json={"name": "x", "path": str(tmp_path)}).status_code == 401
    assert not (tmp_path / "guest").exists()
