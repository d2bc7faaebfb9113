"""A real engine process over a tiny model in a folder, spoken to in lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sampling_support import tiny_base

from ludus_backend.engine_messages import REQUEST

BACKEND = Path(__file__).resolve().parents[1]


def save_tiny_model(folder: Path) -> Path:
    """Weights, config and tokenizer of the tiny Llama, as ``base: {source: path}`` reads them."""
    base = tiny_base()
    base.model.save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)
    return folder


def engine_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(BACKEND), "OMP_NUM_THREADS": "1"}


class Engine:
    """The gateway's end of the pipe."""

    def __init__(self, state: Path) -> None:
        command = [sys.executable, "-m", "ludus_backend.engine", "--state", str(state), "--threads", "1"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=engine_environment()
        )
        self._id = 0
        self._early: dict[int, list[dict[str, Any]]] = {}

    def send(self, op: str, **fields: Any) -> int:
        """Sends a request, checked against the protocol; returns its id."""
        self._id += 1
        message = {"id": self._id, "op": op, **fields}
        REQUEST.validate_python(message)
        self.send_line(json.dumps(message))
        return self._id

    def send_line(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        """The next line, whoever it answers."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the engine ended"
        return json.loads(line)

    def answers(self, id: int) -> list[dict[str, Any]]:
        """Everything for ``id``, its result or error last; lines for other requests are kept for them."""
        lines = self._early.pop(id, [])
        while not lines or "event" in lines[-1]:
            line = self.read()
            (lines if line["id"] == id else self._early.setdefault(line["id"], [])).append(line)
        return lines

    def call(self, op: str, **fields: Any) -> Any:
        """Sends and returns the result; an error is returned as ``{"error": ...}``."""
        last = self.answers(self.send(op, **fields))[-1]
        return last["result"] if "result" in last else {"error": last["error"]}

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
