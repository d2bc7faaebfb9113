"""The engine as the gateway sees it: a child that answers lines, lives through errors and never stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_support import Engine, engine_environment, save_tiny_model
from sampling_support import CONTEXT, END

from ludus_backend.models.base_model import load_base
from ludus_backend.protocol import BaseModelSpec, RegisterModel
from ludus_backend.training.rows import prefix_hash
from ludus_backend.training.trainer import Trainer

PATIENCE_SECONDS = 30
"""For a process to end; it takes milliseconds."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = save_tiny_model(tmp_path_factory.mktemp("model"))
    base = {"source": "path", "id": str(folder), "contextLength": CONTEXT}
    return {"name": "demo", "base": base, "lora": {"rank": 4}}


@pytest.fixture(scope="module")
def engine(model: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(tmp_path_factory.mktemp("state"))
    registered = engine.call("register", model=model)
    assert registered["info"]["step"] == 0
    assert registered["stop_ids"] == [END]
    assert (Path(registered["tokenizer"]) / "tokenizer.json").is_file()
    yield engine
    assert engine.call("shutdown") == {}
    assert engine.process.wait(PATIENCE_SECONDS) == 0
    engine.close()


def generate(engine: Engine, prompt: list[int], policy: str = "demo@0", **options: Any) -> Any:
    return engine.call("generate", policy=policy, promptIds=prompt, maxTokens=4, **options)


def test_a_reply_has_ids_logprobs_and_a_reason(engine: Engine) -> None:
    reply = generate(engine, [1, 2, 3], seed=5)
    assert len(reply["ids"]) == len(reply["logprobs"]) == 4
    assert reply["finish"] == "length"
    assert reply["cachedTokens"] == 0
    assert all(logprob <= 0 for logprob in reply["logprobs"])
    assert generate(engine, [1, 2, 3], seed=5)["ids"] == reply["ids"]


def test_the_next_turn_of_a_conversation_is_cached_until_it_is_forgotten(engine: Engine) -> None:
    prompt = list(range(50, 90))
    first = generate(engine, prompt, conversation="talk")
    again = [*prompt, *first["ids"], 7]
    assert generate(engine, again, conversation="talk")["cachedTokens"] == len(again) - 2
    assert engine.call("forget", conversation="talk") == {}


def test_streams_send_every_token_before_the_result(engine: Engine) -> None:
    id = engine.send("generate", policy="demo@0", promptIds=[9, 8], maxTokens=3, stream=True)
    *events, last = engine.answers(id)
    assert [event["event"] for event in events] == ["tokens"] * 3
    assert [token for event in events for token in event["ids"]] == last["result"]["ids"]
    assert [logprob for event in events for logprob in event["logprobs"]] == last["result"]["logprobs"]


def test_ignore_eos_samples_the_full_length(engine: Engine) -> None:
    every_id = list(range(257))
    assert len(generate(engine, [5], stopIds=every_id)["ids"]) == 1
    assert len(generate(engine, [5], stopIds=every_id, ignoreEos=True)["ids"]) == 4


def test_concurrent_requests_are_answered_each_with_its_own_id(engine: Engine) -> None:
    prompts = [[index] * (index + 1) for index in range(20)]
    alone = [generate(engine, prompt, seed=index)["ids"] for index, prompt in enumerate(prompts)]
    ids = [
        engine.send("generate", policy="demo@0", promptIds=prompt, maxTokens=4, seed=index)
        for index, prompt in enumerate(prompts)
    ]
    assert [engine.answers(id)[-1]["result"]["ids"] for id in ids] == alone


def test_a_cancelled_request_is_answered_as_cancelled(engine: Engine) -> None:
    long = engine.send("generate", policy="demo@0", promptIds=[1], maxTokens=250, ignoreEos=True, stream=True)
    assert engine.read()["event"] == "tokens"
    assert engine.call("cancel", target=long) == {"cancelled": True}
    assert engine.answers(long)[-1]["error"]["code"] == "cancelled"
    assert engine.call("cancel", target=long) == {"cancelled": False}


def test_errors_answer_their_request_and_the_engine_lives_on(engine: Engine) -> None:
    assert generate(engine, [1], policy="demo@7")["error"]["code"] == "unknown_model"
    assert generate(engine, [1], policy="demo")["error"]["code"] == "unknown_model"
    assert generate(engine, [1], policy="nobody@0")["error"]["code"] == "unknown_model"
    too_long = generate(engine, [1] * 300)["error"]
    assert too_long["code"] == "context_length_exceeded"
    assert "300" in too_long["message"] and str(CONTEXT) in too_long["message"]
    engine.send_line('{"id": 9001, "op": "generate", "policy": "demo@0", "promptIds": [], "maxTokens": 1}')
    refused = engine.answers(9001)[-1]["error"]
    assert refused["code"] == "invalid_request" and refused["field"] == "generate.promptIds"
    engine.send_line("not JSON")
    engine.send_line('{"id": 9002, "op": "dance"}')
    assert engine.answers(9002)[-1]["error"]["code"] == "invalid_request"
    assert len(generate(engine, [1])["ids"]) == 4


def test_another_base_model_is_refused(engine: Engine, model: dict[str, Any]) -> None:
    other = {**model, "name": "other", "base": {"source": "random"}}
    error = engine.call("register", model=other)["error"]
    assert error["code"] == "invalid_request" and error["field"] == "base"


def test_ping_tells_memory(engine: Engine) -> None:
    ping = engine.call("ping")
    assert ping["pid"] == engine.process.pid
    assert 0 < ping["rssBytes"] <= ping["peakRssBytes"] * 1.01


def exchange(name: str, prompt: list[int], reply: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": name,
        "prefixHash": prefix_hash(prompt),
        "promptIds": prompt,
        "sampledIds": reply["ids"],
        "logprobs": reply["logprobs"],
        "policy": "demo@0",
    }


def test_lora_01_a_step_can_be_sampled_when_train_answers(engine: Engine) -> None:
    prompt = [4, 5, 6]
    replies = [generate(engine, prompt, seed=seed) for seed in range(2)]
    trajectories = [
        {"id": f"t{index}", "reward": float(index), "exchanges": [exchange(f"e{index}", prompt, reply)]}
        for index, reply in enumerate(replies)
    ]
    request = {
        "key": "first",
        "expectedStep": 0,
        "groups": [{"id": "g", "trajectories": trajectories}],
        "config": {"learningRate": 0.05},
    }
    *events, last = engine.answers(engine.send("train", name="demo", request=request))
    result = last["result"]
    assert (result["step"], result["policy"], result["trained"]) == (1, "demo@1", True)
    assert {event["event"] for event in events} == {"progress"}
    # The rewarded reply became likelier, and step 0 still answers as before.
    again = [generate(engine, prompt, seed=1, policy=f"demo@{step}") for step in (0, 1)]
    assert again[0]["logprobs"] == pytest.approx(replies[1]["logprobs"], abs=1e-5)
    assert again[1]["ids"][0] != replies[1]["ids"][0] or again[1]["logprobs"][0] > replies[1]["logprobs"][0]
    assert [each["step"] for each in engine.call("checkpoints", name="demo")["checkpoints"]] == [0, 1]
    assert engine.call("train", name="demo", request=request)["repeated"] is True


def test_a_new_engine_serves_what_is_on_disk_and_ends_with_its_input(model: dict[str, Any], tmp_path: Path) -> None:
    trainer = Trainer(load_base(BaseModelSpec.model_validate(model["base"]), tmp_path), tmp_path)
    trainer.register(RegisterModel.model_validate(model))
    trainer.close()
    engine = Engine(tmp_path)
    assert generate(engine, [1])["error"]["code"] == "unknown_model"
    assert engine.call("register", model=model)["info"]["resumed"] is True
    assert len(generate(engine, [1, 2, 3])["ids"]) == 4
    assert engine.process.stdin is not None
    engine.process.stdin.close()
    assert engine.process.wait(PATIENCE_SECONDS) == 0
    engine.close()


def test_an_engine_whose_answer_nobody_can_read_ends(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    assert engine.call("ping")["pid"] == engine.process.pid
    # As when the gateway dies between a ping and its answer. This process lives on and keeps the engine's stdin open:
    # neither the end of the input nor the death of a parent tells the engine, only the broken pipe does.
    assert engine.process.stdout is not None
    engine.process.stdout.close()
    engine.send("ping")
    assert engine.process.wait(PATIENCE_SECONDS) == 0
    engine.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_killed_parent_takes_its_child_along() -> None:
    # What the engine does first of all, in a child without torch; its stdin stays open in this process.
    child_program = (
        "import os, time\n"
        "from ludus_backend.engine.parent import die_with_parent\n"
        "die_with_parent()\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(600)\n"
    )
    parent_program = (
        "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', sys.argv[1]])\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_program, child_program], stdout=subprocess.PIPE, env=engine_environment()
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    psutil.wait_procs([child], timeout=PATIENCE_SECONDS)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    parent.stdout.close()


def test_an_idle_engine_uses_no_processor(engine: Engine) -> None:
    engine.call("ping")
    process = psutil.Process(engine.process.pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(0.5)
    assert sum(process.cpu_times()[:2]) - before <= 0.02
