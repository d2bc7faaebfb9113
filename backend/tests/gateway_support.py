"""Gateway processes for tests, with the fake engine or the real one, spoken to over real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from ludus_backend.models.bundled import bundled_folder

TOKEN = "sesame"
HERE = Path(__file__).parent


def cache_folder() -> Path:
    """Where the bundled model is, as the engine says it; written out here because that module imports torch."""
    named = os.environ.get("LUDUS_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ludus"


def tokenizer_folder() -> Path:
    """The bundled model's tokenizer."""
    return bundled_folder(cache_folder())


@dataclass
class Gateway:
    """``process`` listens on ``port``; ``record`` is the fake engine's diary."""

    process: subprocess.Popen[bytes]
    port: int
    record: Path
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.connect(TOKEN)

    def connect(self, key: str | None) -> httpx.Client:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=20, trust_env=False)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.client.post(path, json=body, headers=headers)

    def chat(self, *messages: dict[str, Any] | str, episode: str | None = None, **options: Any) -> httpx.Response:
        """One chat completion; a string is a user message."""
        written = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
        headers = {} if episode is None else {"x-ludus-episode": episode}
        return self.post("/v1/chat/completions", {"model": "demo", "messages": written, **options}, **headers)

    def stream(self, *messages: dict[str, Any] | str, episode: str | None = None, **options: Any) -> list[Any]:
        """The parsed ``data`` of every event of a streamed completion; ``[DONE]`` as that text."""
        response = self.chat(*messages, episode=episode, stream=True, **options)
        assert response.status_code == 200, response.text
        return events_of(response.text)

    def diary(self, op: str) -> list[dict[str, Any]]:
        """Everything of kind ``op`` that the engine was asked for."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["op"] == op]

    def health(self) -> dict[str, Any]:
        return self.client.get("/health").json()

    def until_healthy(self, other_than: int | None = None) -> dict[str, Any]:
        return until(lambda: (h := self.health())["status"] == "ok" and h["enginePid"] != other_than and h)


def until(condition: Any, seconds: float = 60.0) -> Any:
    """Waits for a condition that something else makes true; fails the test where it never does."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("the awaited condition did not come true")


def is_there(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def events_of(text: str) -> list[Any]:
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


FAKE_ENGINE = (str(HERE / "gateway_with_fake_engine.py"),)
REAL_ENGINE = ("-m", "ludus_backend")


def command(state: Path, *arguments: str, program: tuple[str, ...] = FAKE_ENGINE) -> list[str]:
    return [sys.executable, *program, "serve", "--state", str(state), "--instance", "nonce", *arguments]


def environment(record: Path, options: str = "", **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
        "LUDUS_TOKEN": TOKEN,
        "LUDUS_FAKE_TOKENIZER": str(tokenizer_folder()),
        "LUDUS_FAKE_RECORD": str(record),
        "LUDUS_FAKE_OPTIONS": options,
        **more,
    }


@contextlib.contextmanager
def running_gateway(
    folder: Path, options: str = "", program: tuple[str, ...] = FAKE_ENGINE, **more: str
) -> Iterator[Gateway]:
    """A gateway that is up, with its engine answering; nothing of it is left afterwards."""
    record = folder / "diary.jsonl"
    process = subprocess.Popen(
        command(folder / "state", "--token-env", "LUDUS_TOKEN", "--parent-stdin", "--threads", "1", program=program),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(record, options, **more),
    )
    try:
        assert process.stdout is not None
        gateway = Gateway(process, json.loads(process.stdout.readline())["port"], record)
        gateway.until_healthy()
        yield gateway
        gateway.client.close()
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=10)


def register(gateway: Gateway, name: str = "demo") -> None:
    response = gateway.post("/v1/ludus/models", {"name": name, "base": {"source": "random"}})
    assert response.status_code == 200, response.text
