"""An engine process without a model: speaks the engine's protocol, and fails on command.

Its "sampling" is a function of seed and prompt, so that tests can say what must come. Text in the prompt steers it:
``die`` (exits), ``slow`` (a token every 50 ms), ``say:...;`` (those words, then the end-of-turn token), ``colour``
(``red`` at step 0, ``blue`` at step 1).
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import threading
import time
from pathlib import Path

from tokenizers import Tokenizer

FOLDER = Path(os.environ["LUDUS_FAKE_TOKENIZER"])
CONTEXT = 512
END = 2
KEPT = (
    "id",
    "op",
    "target",
    "conversation",
    "policy",
    "seed",
    "stopIds",
    "maxTokens",
    "topP",
    "topK",
    "minP",
    "temperature",
)

tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
out = threading.Lock()
cancelled: set[int] = set()
models: dict[str, dict] = {}
log: list[dict] = []


def send(message: dict) -> None:
    with out:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def reply_ids(request: dict) -> list[int]:
    """What this engine "samples": by the last message, else ``maxTokens`` random ids by seed."""
    text = tokenizer.decode(request["promptIds"], skip_special_tokens=False).split("<|im_start|>")[-2]
    said = re.search(r"say:(.*);", text, re.DOTALL)
    words = said[1] if said else ["red", "blue"][int(request["policy"].split("@")[1])] if "colour" in text else None
    if words is not None:
        return [*tokenizer.encode(words).ids, END][: request["maxTokens"]]
    chosen = random.Random(request["seed"])
    return [chosen.randrange(17, 40_000) for _ in range(request["maxTokens"])]


def generate(request: dict) -> None:
    text = tokenizer.decode(request["promptIds"], skip_special_tokens=False)
    if "die" in text:
        os._exit(3)
    ids: list[int] = []
    for token_id in reply_ids(request):
        if "slow" in text:
            time.sleep(0.05)
        if request["id"] in cancelled:
            send({"id": request["id"], "error": {"code": "cancelled", "message": "cancelled"}})
            return
        ids.append(token_id)
        if request["stream"]:
            send({"id": request["id"], "event": "tokens", "ids": [token_id], "logprobs": [-0.5]})
        if any(stop in tokenizer.decode(ids) for stop in request["stop"]):
            break
        if token_id in request["stopIds"] and not request["ignoreEos"]:
            break
    stopped = len(ids) < request["maxTokens"] or ids[-1] in request["stopIds"]
    finish = "stop" if stopped else "length"
    send(
        {
            "id": request["id"],
            "result": {"ids": ids, "logprobs": [-0.5] * len(ids), "finish": finish, "cachedTokens": 0},
        }
    )


def register(request: dict) -> None:
    model = request["model"]
    info = models.setdefault(
        model["name"],
        {
            "name": model["name"],
            "step": 0,
            "steps": [0],
            "base": model["base"],
            "lora": model["lora"],
            "contextLength": CONTEXT,
            "parameters": 1,
            "resumed": False,
            "checkpoint": "none",
            "notices": [],
        },
    )
    send({"id": request["id"], "result": {"info": info, "tokenizer": str(FOLDER), "stop_ids": [END]}})


def train(request: dict) -> None:
    info, asked = models[request["name"]], request["request"]
    for done in range(3):
        time.sleep(0.05)
        send({"id": request["id"], "event": "progress", "done": done + 1, "total": 3, "phase": "update"})
    if asked["key"].startswith("die"):
        os._exit(3)
    if asked["expectedStep"] != info["step"]:
        error = {"code": "step_conflict", "message": "another step was expected", "field": "expectedStep"}
        send({"id": request["id"], "error": error})
        return
    info["step"] += 1
    info["steps"].append(info["step"])
    metrics = {"loss": float("nan"), "grad_norm": float("inf"), "tokens": 3.0}  # what a sloppy engine would send
    result = {"step": info["step"], "trained": True, "policy": f"{info['name']}@{info['step']}", "metrics": metrics}
    send({"id": request["id"], "result": result})


def handle(request: dict) -> None:
    if request["op"] == "generate":
        generate(request)
    elif request["op"] == "register":
        register(request)
    elif request["op"] == "train":
        train(request)
    elif request["op"] == "cancel":
        cancelled.add(request["target"])
        send({"id": request["id"], "result": {"cancelled": True}})
    elif request["op"] == "checkpoints":
        send({"id": request["id"], "result": {"checkpoints": []}})
    elif request["op"] == "ping":
        send({"id": request["id"], "result": {"pid": os.getpid(), "rssBytes": 1, "peakRssBytes": 1}})
    else:
        send({"id": request["id"], "result": {}})


if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "--dead" in sys.argv:
    sys.exit(4)
record = Path(os.environ["LUDUS_FAKE_RECORD"]) if "LUDUS_FAKE_RECORD" in os.environ else None
for line in sys.stdin:
    received = json.loads(line)
    if record is not None:
        with record.open("a") as file:
            file.write(json.dumps({key: received.get(key) for key in KEPT}) + "\n")
    threading.Thread(target=handle, args=(received,), daemon=True).start()
