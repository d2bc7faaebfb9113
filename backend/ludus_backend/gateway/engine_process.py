"""Starting and stopping the engine process: what it may see of our environment, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""

_POLL_SECONDS = 0.05

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""

_LONGEST_LINE = 1 << 30
"""Bytes: a train request with all its ids travels as one line."""

_PASSED = {"PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"}
_PASSED_PREFIXES = ("XDG_", "LUDUS_", "HF_", "LC_", "OMP_", "MKL_", "SSL_CERT_")
_PROXIES = {"http_proxy", "https_proxy", "no_proxy", "all_proxy"}

_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "1000000000"}
"""glibc keeps freed pages: first-touch page faults cost seconds of every update (11.8 s became 8.9 s when measured)."""

_OPENMP = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait sleep instead of spinning: on a busy machine a spinning update took three times as long."""


@dataclass(frozen=True)
class EngineCommand:
    """How an engine is started. ``secret``: name of the environment variable that must not reach it."""

    arguments: tuple[str, ...]
    secret: str | None = None

    @classmethod
    def embedded(cls, state: Path, threads: int | None, secret: str | None) -> EngineCommand:
        arguments = [sys.executable, "-m", "ludus_backend.engine", "--state", str(state)]
        return cls((*arguments, *(["--threads", str(threads)] if threads is not None else [])), secret)


def engine_environment(ours: Mapping[str, str], *, secret: str | None, allow_downloads: bool) -> dict[str, str]:
    """The engine's whole environment: what it needs by name, never the bearer token or unrelated keys.

    Downloads from the Hugging Face hub are off unless a base model was asked for from there.
    """
    passed = {
        name: value
        for name, value in ours.items()
        if name != secret and (name in _PASSED or name.lower() in _PROXIES or name.startswith(_PASSED_PREFIXES))
    }
    if not allow_downloads:
        passed["HF_HUB_OFFLINE"] = "1"
    package_root = str(Path(__file__).resolve().parents[2])
    passed["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, passed.get("PYTHONPATH")]))
    return {**_OPENMP, **passed, **_MALLOC, "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


async def start_engine(command: EngineCommand, *, allow_downloads: bool) -> asyncio.subprocess.Process:
    """Starts it in our own process group, so that a signal to the group reaches both; its log is our stderr."""
    return await asyncio.create_subprocess_exec(
        *command.arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
        env=engine_environment(os.environ, secret=command.secret, allow_downloads=allow_downloads),
        preexec_fn=_tie_to(os.getpid()) if sys.platform == "linux" else None,
    )


def _tie_to(gateway: int) -> Callable[[], None]:
    """Runs in the child before its program: the kernel kills it when we end, also while Python is still starting."""
    library = ctypes.CDLL(None)

    def tie() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != gateway:
            os._exit(1)

    return tie


async def stop_engine(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, two seconds, SIGKILL; returns when the process is gone."""
    if process.returncode is None:
        _signal(process, kill=False)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await exited(process)
        except TimeoutError:
            _signal(process, kill=True)
    await exited(process)


async def exited(process: asyncio.subprocess.Process) -> int:
    """Waits for the process itself. ``Process.wait`` (Python 3.11) also waits for whoever inherited its pipes."""
    while process.returncode is None:
        await asyncio.sleep(_POLL_SECONDS)
    return process.returncode


def _signal(process: asyncio.subprocess.Process, *, kill: bool) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended in this moment, which is what we want
        process.kill() if kill else process.terminate()
