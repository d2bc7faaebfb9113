"""Running the gateway: it listens, says where, and is gone without a trace when its parent or a signal says so."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from ludus_backend.errors import LudusError
from ludus_backend.gateway.app import create_app
from ludus_backend.gateway.auth import is_loopback
from ludus_backend.gateway.engine_process import STOP_SECONDS, EngineCommand
from ludus_backend.gateway.http_errors import error_detail
from ludus_backend.gateway.services import Services, Settings

_HARD_STOP_SECONDS = STOP_SECONDS + 2.0
"""After this long a stop that hangs becomes a SIGKILL for engine and gateway."""
_DRAIN_SECONDS = 1
_KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections: who closes first must be the one who would use it next."""
_CANNOT_START = 2
_HIGHEST_PORT = 65_535
_MOST_THREADS = 1024


@dataclass(frozen=True)
class ServeOptions:
    """``token_env`` names the variable with the bearer token, so that the token never stands in a process list."""

    host: str
    port: int
    state: Path
    instance: str
    token_env: str | None
    threads: int | None
    parent_stdin: bool


def serve_forever(options: ServeOptions) -> int:
    """Serves until stopped. Prints ``{"port", "pid"}`` on stdout when it listens, or ``{"error"}`` and returns 2."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        settings = _settings(options)
        listener = _listen(options.host, options.port)
    except LudusError as error:
        print(f"ludus-backend cannot start: {error}", file=sys.stderr)
        print(json.dumps({"error": error_detail(error)}), flush=True)
        return _CANNOT_START
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )
    asyncio.run(_Server(config, app.state.services, options.parent_stdin).run(listener))
    return 0


class _Server(uvicorn.Server):
    """uvicorn's server with our ending: the engine goes first, so that no connection has anything to wait for."""

    def __init__(self, config: uvicorn.Config, services: Services, parent_stdin: bool) -> None:
        super().__init__(config)
        self._services = services
        self._parent_stdin = parent_stdin

    async def run(self, listener: socket.socket) -> None:  # type: ignore[override]
        loop = asyncio.get_running_loop()
        for ending in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(ending, self.stop)
        if self._parent_stdin:
            _when_stdin_ends(lambda: loop.call_soon_threadsafe(self.stop), self._services)
        await self._serve([listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            print(json.dumps({"port": sockets[0].getsockname()[1], "pid": os.getpid()}), flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._services.engine.stop()
        await super().shutdown(sockets)

    def stop(self) -> None:
        """Ends the server; whatever hangs after that is killed."""
        if not self.should_exit:
            self.should_exit = True
            _kill_later(self._services)


def _settings(options: ServeOptions) -> Settings:
    token = os.environ.get(options.token_env, "") if options.token_env else ""
    if options.token_env and not token:
        raise LudusError(
            "unauthorized",
            f"The environment variable {options.token_env} holds no token",
            field="--token-env",
            value=options.token_env,
            expected="the name of a variable with a bearer token",
        )
    if not token and not is_loopback(options.host):
        raise LudusError(
            "unauthorized",
            "A backend that other machines can reach needs a bearer token",
            field="--host",
            value=options.host,
            expected="127.0.0.1, ::1 or localhost, or --token-env",
            advice="put a long random token into an environment variable and name it with --token-env",
        )
    if options.threads is not None and not 0 <= options.threads <= _MOST_THREADS:
        raise LudusError(
            "invalid_request",
            "The engine cannot use that many threads",
            field="--threads",
            value=options.threads,
            expected=f"1 to {_MOST_THREADS}, or 0 for the engine's own choice",
            advice="leave --threads out: the engine then chooses by the cores of this machine",
        )
    options.state.mkdir(parents=True, exist_ok=True)
    engine = EngineCommand.embedded(options.state.resolve(), options.threads, options.token_env)
    return Settings(options.state, options.instance, token or None, engine)


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port <= _HIGHEST_PORT:
            raise OverflowError("there is no such port")  # the resolver would take it modulo 65536
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        raise LudusError(
            "invalid_request",
            f"Cannot listen on {host}:{port}: {error}",
            field="--port",
            value=port,
            expected="a free port of this machine",
            advice="use --port 0: the system then chooses a free one, and the first line of output names it",
        ) from None
    return listener


def _when_stdin_ends(stop: Callable[[], object], services: Services) -> None:
    """Watches standard input, whose other end the parent holds: it also ends when the parent is killed."""

    def watch() -> None:
        while os.read(0, 65_536):
            pass
        _kill_later(services)
        stop()

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _kill_later(services: Services) -> None:
    def kill() -> None:
        if (engine := services.engine.pid) is not None:
            os.kill(engine, signal.SIGKILL)
        os._exit(1)

    timer = threading.Timer(_HARD_STOP_SECONDS, kill)
    timer.daemon = True
    timer.start()
