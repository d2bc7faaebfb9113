"""Talking to the engine process: requests and answers as JSON lines, and a supervisor that brings a lost engine back."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ludus_backend.errors import LudusError
from ludus_backend.gateway.engine_process import EngineCommand, exited, start_engine, stop_engine
from ludus_backend.protocol import ErrorDetail

log = logging.getLogger("ludus.gateway")

OnEvent = Callable[[dict[str, Any]], None]

_RESTART_DELAYS = (0.1, 0.5, 2.0)
"""Seconds before each start in a row that follows an early death; after the last one the engine counts as failed."""
_EARLY_SECONDS = 20.0
_LAST_LINES_SECONDS = 1.0
"""For answers that were already in the pipe when the engine ended."""
_READY_SECONDS = 120.0
"""How long a request waits for an engine that is being restarted."""


@dataclass
class _Pending:
    answer: asyncio.Future[dict[str, Any]]
    on_event: OnEvent | None


@dataclass
class EngineClient:
    """One engine process. ``recover`` is awaited after each restart, before other requests go through."""

    command: EngineCommand
    recover: Callable[[], Awaitable[None]] | None = None
    status: Literal["starting", "ok", "failed"] = "starting"
    detail: str | None = None
    _process: asyncio.subprocess.Process | None = None
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _next_id: int = 1
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _allow_downloads: bool = False
    _stopping: bool = False
    _supervisor: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        """Starts the engine and its supervisor; loading goes on while the gateway already listens."""
        self._supervisor = asyncio.create_task(self._supervise(), name="engine supervisor")

    async def stop(self) -> None:
        """Ends the engine for good and fails what waits for it. Safe to call twice."""
        self._stopping = True
        if self._process is not None:
            await stop_engine(self._process)
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        self._fail_pending("the backend is stopping")

    async def allow_downloads(self) -> None:
        """Restarts the engine, once, with the hub reachable: the setting is read when its libraries load."""
        if not self._allow_downloads:
            self._allow_downloads = True
            if self._process is not None:
                self._ready.clear()
                await stop_engine(self._process)

    async def request(self, op: str, fields: dict[str, Any] | None = None, *, on_event: OnEvent | None = None) -> Any:
        """Sends one request and returns its ``result``.

        Cancelling the awaiting task cancels a ``generate`` in the engine. Errors: what the engine answered, or
        ``engine_failed`` (retriable) where it died or cannot be started.
        """
        await self._until_ready()
        return await self._exchange(op, fields or {}, on_event)

    async def request_directly(self, op: str, fields: dict[str, Any]) -> Any:
        """Like :meth:`request`, for ``recover`` only: it does not wait for its own end."""
        return await self._exchange(op, fields, None)

    def notify(self, op: str, fields: dict[str, Any]) -> None:
        """Sends without waiting; lost together with a lost engine, which then has nothing to forget."""
        if self._process is not None and self._process.returncode is None:
            self._write({"id": self._take_id(), "op": op, **fields})

    async def _exchange(self, op: str, fields: dict[str, Any], on_event: OnEvent | None) -> Any:
        if self._process is None or self._process.returncode is not None:
            raise _engine_failed("it is not running")
        request_id = self._take_id()
        pending = _Pending(asyncio.get_running_loop().create_future(), on_event)
        self._pending[request_id] = pending
        try:
            self._write({"id": request_id, "op": op, **fields})
            await self._drain()
            answer = await pending.answer
        except asyncio.CancelledError:
            if op == "generate":
                self.notify("cancel", {"target": request_id})
            raise
        finally:
            self._pending.pop(request_id, None)
        if "error" in answer:
            raise error_of(answer["error"])
        return answer["result"]

    async def _until_ready(self) -> None:
        if self.status == "failed":
            raise _engine_failed(self.detail or "it could not be started")
        try:
            # Not wait_for: Python 3.11's swallows a cancellation that comes while the event is already set.
            async with asyncio.timeout(_READY_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            raise _engine_failed("it did not come back in time") from None
        if self.status == "failed":
            raise _engine_failed(self.detail or "it could not be started")

    async def _supervise(self) -> None:
        early_deaths = 0
        first = True
        while not self._stopping:
            started = time.monotonic()
            try:
                self._process = await start_engine(self.command, allow_downloads=self._allow_downloads)
            except OSError as error:
                self._give_up(f"it could not be started: {error}")
                return
            reader = asyncio.create_task(self._read(self._process))
            greeting = asyncio.create_task(self._greet(recover=not first))
            code = await exited(self._process)
            await asyncio.wait({reader}, timeout=_LAST_LINES_SECONDS)
            reader.cancel()
            greeting.cancel()
            await asyncio.gather(reader, greeting, return_exceptions=True)
            self._ready.clear()
            self._fail_pending(f"its process ended ({_ending(code)})")
            if self._stopping:
                return
            self.status, first = "starting", False
            early_deaths = early_deaths + 1 if time.monotonic() - started < _EARLY_SECONDS else 0
            if early_deaths > len(_RESTART_DELAYS):
                self._give_up(f"it ended {early_deaths} times in a row soon after its start, last: {_ending(code)}")
                return
            log.warning("engine ended (%s); restarting", _ending(code))
            await asyncio.sleep(_RESTART_DELAYS[max(early_deaths, 1) - 1])

    async def _greet(self, *, recover: bool) -> None:
        """Gives a restarted engine its models again, opens the gate, and reports ``ok`` once it answers."""
        try:
            if recover and self.recover is not None:
                await self.recover()
            self._ready.set()
            await self._exchange("ping", {}, None)
            self.status, self.detail = "ok", None
        except LudusError as error:
            log.warning("engine did not come up: %s", error)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            try:
                self._dispatch(json.loads(line))
            except (ValueError, KeyError, TypeError):
                log.exception("unreadable line from the engine: %.200r", line)

    def _dispatch(self, message: dict[str, Any]) -> None:
        pending = self._pending.get(message["id"])
        if pending is None:
            return  # an answer to something cancelled
        if "event" in message:
            if pending.on_event is not None:
                pending.on_event(message)
        elif not pending.answer.done():
            pending.answer.set_result(message)

    def _fail_pending(self, reason: str) -> None:
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(_engine_failed(reason))

    def _give_up(self, reason: str) -> None:
        self.status, self.detail = "failed", reason
        log.error("engine failed: %s", reason)
        self._ready.set()

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n")

    async def _drain(self) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            await self._process.stdin.drain()
        except ConnectionError:
            pass  # it is dying: the supervisor fails this request with the reason


def error_of(detail: dict[str, Any]) -> LudusError:
    """The engine's error as an exception; a kind outside the protocol counts as ``internal``."""
    try:
        return LudusError.from_detail(ErrorDetail.model_validate(detail))
    except ValueError:
        return LudusError("internal", str(detail.get("message", detail)))


def _engine_failed(reason: str) -> LudusError:
    return LudusError(
        "engine_failed",
        f"The engine failed: {reason}",
        advice="try again: it is restarted with its models; if it keeps failing, read the backend's log",
    )


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
