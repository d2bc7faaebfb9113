"""The engine dies: its requests fail as retriable, it comes back with its models, and a hopeless one is given up."""

from __future__ import annotations

import os
import signal
import threading

from gateway_support import HERE, Gateway, events_of, register, running_gateway, until

from ludus_backend.gateway.engine_process import engine_environment


def test_an_engine_that_is_killed_comes_back_with_its_models(own_gateway) -> None:
    gateway = own_gateway
    old = gateway.until_healthy()["enginePid"]
    answers = []
    thread = threading.Thread(target=lambda: answers.append(gateway.chat("slow", max_tokens=400, episode="lost")))
    thread.start()
    until(lambda: [e for e in gateway.diary("generate") if e["maxTokens"] == 400])
    os.kill(old, signal.SIGKILL)
    thread.join()
    error = answers[0].json()["error"]
    assert (answers[0].status_code, error["code"]) == (503, "engine_failed")
    assert answers[0].headers["x-should-retry"] == "true"
    assert "signal 9" in error["message"]
    assert gateway.until_healthy(other_than=old)["enginePid"] != old
    assert gateway.chat("say:here again;", episode="lost").json()["choices"][0]["message"]["content"] == "here again"
    assert [entry["op"] for entry in gateway.diary("register")] == ["register"] * 2


def test_a_request_that_comes_while_the_engine_is_away_waits_for_it(own_gateway) -> None:
    gateway = own_gateway
    old = gateway.until_healthy()["enginePid"]
    os.kill(old, signal.SIGKILL)
    until(lambda: gateway.health()["enginePid"] is None or gateway.health()["enginePid"] != old)
    assert gateway.chat("say:back;").json()["choices"][0]["message"]["content"] == "back"
    gateway.until_healthy()


def test_a_request_that_kills_its_engine_fails_alone_and_a_stored_failure_is_tried_again(own_gateway) -> None:
    gateway = own_gateway
    old = gateway.until_healthy()["enginePid"]
    asked = {"episode": "poison", "ludus": {"request": "r"}, "max_tokens": 3}
    assert gateway.chat("die", **asked).json()["error"]["code"] == "engine_failed"
    gateway.until_healthy(other_than=old)
    before = len(gateway.diary("generate"))
    assert gateway.chat("die", **asked).json()["error"]["code"] == "engine_failed"
    assert len(gateway.diary("generate")) == before + 1


def test_a_training_that_loses_its_engine_is_a_failed_job(tmp_path) -> None:
    with running_gateway(tmp_path) as fresh:
        register(fresh)
        accepted = fresh.post("/v1/ludus/models/demo/train", {"key": "die-1", "expectedStep": 0, "groups": []})
        events = events_of(fresh.client.get(f"/v1/ludus/jobs/{accepted.json()['job']}/events").text)
        assert (events[-1]["type"], events[-1]["error"]["code"]) == ("failed", "engine_failed")
        assert fresh.client.get("/v1/ludus/models/demo").json()["step"] == 0


def test_the_engine_sees_what_it_needs_and_no_secrets() -> None:
    ours = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "XDG_CACHE_HOME": "/c",
        "LUDUS_CACHE": "/d",
        "LUDUS_TOKEN": "sesame",
        "HF_HOME": "/h",
        "HTTPS_PROXY": "p",
        "no_proxy": "q",
        "AWS_SECRET_ACCESS_KEY": "s",
        "OPENAI_API_KEY": "k",
        "PYTHONPATH": "/mine",
    }
    seen = engine_environment(ours, secret="LUDUS_TOKEN", allow_downloads=False)
    assert not {"LUDUS_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY"} & set(seen)
    assert {"PATH", "HOME", "XDG_CACHE_HOME", "LUDUS_CACHE", "HF_HOME", "HTTPS_PROXY", "no_proxy"} <= set(seen)
    assert (seen["HF_HUB_OFFLINE"], seen["TOKENIZERS_PARALLELISM"], seen["MALLOC_MMAP_MAX_"]) == ("1", "false", "0")
    assert seen["PYTHONPATH"].split(os.pathsep) == [str(HERE.parent), "/mine"]
    assert "HF_HUB_OFFLINE" not in engine_environment(ours, secret=None, allow_downloads=True)


def test_an_engine_that_cannot_start_is_reported_not_retried_for_ever(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Gateway, "until_healthy", lambda self: until(lambda: self.health()["status"] == "failed"))
    with running_gateway(tmp_path, options="--dead") as dead:
        health = dead.health()
        assert "exit code 4" in health["detail"]
        response = dead.post("/v1/ludus/models", {"name": "demo"})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_failed")
        assert "exit code 4" in response.json()["error"]["message"]
