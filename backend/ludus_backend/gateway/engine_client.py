"""The engine as the gateway knows it: always there, or on its way back with its models, or given up with a reason."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from ludus_backend.errors import LudusError
from ludus_backend.gateway.engine_process import EngineCommand, exited, start_engine, stop_engine
from ludus_backend.gateway.engine_wire import EngineWire, OnEvent, engine_failed

log = logging.getLogger("ludus.gateway")

_RESTART_DELAYS = (0.1, 0.5, 2.0)
"""Seconds before each start in a row that follows an early death; after the last one the engine counts as failed."""
_EARLY_SECONDS = 20.0
_LAST_LINES_SECONDS = 1.0
"""For answers that were already in the pipe when the engine ended."""
_READY_SECONDS = 120.0
"""How long a request waits for an engine that is being restarted."""


class EngineClient:
    """Supervises one engine process. ``recover`` is awaited after each restart, before other requests go through."""

    def __init__(self, command: EngineCommand) -> None:
        self.recover: Callable[[], Awaitable[None]] | None = None
        self.status: Literal["starting", "ok", "failed"] = "starting"
        self.detail: str | None = None
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._wire: EngineWire | None = None
        self._ready = asyncio.Event()
        self._allow_downloads = False
        self._stopping = False
        self._supervisor: asyncio.Task[None] | None = None

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
        if self._wire is not None:
            self._wire.fail("the backend is stopping")

    async def allow_downloads(self) -> None:
        """Restarts the engine, once, with the hub reachable: the setting is read when its libraries load."""
        if not self._allow_downloads:
            self._allow_downloads = True
            if self._process is not None:
                self._ready.clear()
                await stop_engine(self._process)

    async def request(self, op: str, fields: dict[str, Any], *, on_event: OnEvent | None = None) -> Any:
        """The ``result`` of one request, after a restart that may be going on.

        Errors: what the engine answered, or ``engine_failed`` (retriable) where it died or cannot be started.
        """
        try:
            # Not wait_for: Python 3.11's swallows a cancellation that comes while the event is already set.
            async with asyncio.timeout(_READY_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            raise engine_failed("it did not come back in time") from None
        if self.status == "failed":
            raise engine_failed(self.detail or "it could not be started")
        return await self.request_directly(op, fields, on_event)

    async def request_directly(self, op: str, fields: dict[str, Any], on_event: OnEvent | None = None) -> Any:
        """Like :meth:`request`, without waiting: for ``recover``, which is what others wait for."""
        if self._wire is None:
            raise engine_failed("it is not running")
        return await self._wire.request(op, fields, on_event)

    def notify(self, op: str, fields: dict[str, Any]) -> None:
        """Sends without waiting for an answer."""
        if self._wire is not None:
            self._wire.notify(op, fields)

    async def _supervise(self) -> None:
        early_deaths = 0
        first = True
        while not self._stopping:
            started = time.monotonic()
            try:
                self._process = await start_engine(self._command, allow_downloads=self._allow_downloads)
            except OSError as error:
                self._give_up(f"it could not be started: {error}")
                return
            ending = _ending(await self._live(self._process, recover=not first))
            if self._stopping:
                return
            self.status, first = "starting", False
            early_deaths = early_deaths + 1 if time.monotonic() - started < _EARLY_SECONDS else 0
            if early_deaths > len(_RESTART_DELAYS):
                self._give_up(f"it ended {early_deaths} times in a row soon after its start, last: {ending}")
                return
            log.warning("engine ended (%s); restarting", ending)
            await asyncio.sleep(_RESTART_DELAYS[max(early_deaths, 1) - 1])

    async def _live(self, process: asyncio.subprocess.Process, *, recover: bool) -> int:
        """One engine's life, from its greeting to the failure of what it left unanswered. Returns its exit code."""
        self._wire = wire = EngineWire(process)
        reader = asyncio.create_task(wire.read())
        greeting = asyncio.create_task(self._greet(recover=recover))
        try:
            code = await exited(process)
            await asyncio.wait({reader}, timeout=_LAST_LINES_SECONDS)
            return code
        finally:
            self._ready.clear()
            for task in (reader, greeting):
                task.cancel()
            await asyncio.gather(reader, greeting, return_exceptions=True)
            ended = f"its process ended ({_ending(process.returncode)})"
            wire.fail("the backend is stopping" if self._stopping else ended)

    async def _greet(self, *, recover: bool) -> None:
        """Gives a restarted engine its models again, opens the gate, and reports ``ok`` once it answers."""
        try:
            if recover and self.recover is not None:
                await self.recover()
            self._ready.set()
            await self.request_directly("ping", {})
            self.status, self.detail = "ok", None
        except LudusError as error:
            log.warning("engine did not come up: %s", error)

    def _give_up(self, reason: str) -> None:
        self.status, self.detail = "failed", reason
        log.error("engine failed: %s", reason)
        self._ready.set()


def _ending(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
