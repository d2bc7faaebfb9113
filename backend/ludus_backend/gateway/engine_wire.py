"""One engine process's end of the conversation: requests and answers as JSON lines, matched by id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ludus_backend.errors import LudusError
from ludus_backend.protocol import ErrorDetail

log = logging.getLogger("ludus.gateway")

OnEvent = Callable[[dict[str, Any]], None]


@dataclass
class _Pending:
    answer: asyncio.Future[dict[str, Any]]
    on_event: OnEvent | None


class EngineWire:
    """Speaks ``engine_messages`` with one process. Ids are never used twice in its life."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._input, self._output = process, process.stdin, process.stdout
        self._pending: dict[int, _Pending] = {}
        self._last_id = 0

    async def request(self, op: str, fields: dict[str, Any], on_event: OnEvent | None = None) -> Any:
        """Sends one request and returns its ``result``.

        Cancelling the awaiting task cancels a ``generate`` in the engine. Errors: what the engine answered, or what
        :meth:`fail` was given.
        """
        if self._process.returncode is not None:
            raise engine_failed("it is not running")
        pending = _Pending(asyncio.get_running_loop().create_future(), on_event)
        request_id = self._send(op, fields, pending)
        try:
            await self._drain()
            answer = await pending.answer
        except asyncio.CancelledError:
            if op == "generate":
                self.notify("cancel", {"target": request_id})
            raise
        finally:
            self._pending.pop(request_id, None)
        if "error" in answer:
            raise _error_of(answer["error"])
        return answer["result"]

    def notify(self, op: str, fields: dict[str, Any]) -> None:
        """Sends without waiting. Lost together with a lost engine, which then has nothing to forget or to cancel."""
        if self._process.returncode is None:
            self._send(op, fields, None)

    async def read(self) -> None:
        """Hands out answers and events until the engine closes its end."""
        while line := await self._output.readline():
            try:
                self._dispatch(json.loads(line))
            except (ValueError, KeyError, TypeError):
                log.exception("unreadable line from the engine: %.200r", line)

    def fail(self, reason: str) -> None:
        """Ends everything that still waits as ``engine_failed``."""
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(engine_failed(reason))

    def _send(self, op: str, fields: dict[str, Any], pending: _Pending | None) -> int:
        self._last_id += 1
        message = {"id": self._last_id, "op": op, **fields}
        line = json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if pending is not None:
            self._pending[self._last_id] = pending
        self._input.write(line)
        return self._last_id

    async def _drain(self) -> None:
        with contextlib.suppress(ConnectionError):  # it is dying: its supervisor fails this request with the reason
            await self._input.drain()

    def _dispatch(self, message: dict[str, Any]) -> None:
        pending = self._pending.get(message["id"])
        if pending is None:
            return  # an answer to something cancelled
        if "event" in message:
            if pending.on_event is not None:
                pending.on_event(message)
        elif not pending.answer.done():
            pending.answer.set_result(message)


def engine_failed(reason: str) -> LudusError:
    """The retriable error of a lost engine."""
    return LudusError(
        "engine_failed",
        f"The engine failed: {reason}",
        advice="try again: it is restarted with its models; if it keeps failing, read the backend's log",
    )


def _error_of(detail: dict[str, Any]) -> LudusError:
    """The engine's error as an exception; a kind outside the protocol counts as ``internal``."""
    try:
        return LudusError.from_detail(ErrorDetail.model_validate(detail))
    except ValueError:
        return LudusError("internal", str(detail.get("message", detail)))
