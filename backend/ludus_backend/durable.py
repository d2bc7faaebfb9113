"""Writing to the disk so that a crash or a full disk harms nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ludus_backend.errors import LudusError


def write_flushed(path: Path, content: bytes) -> None:
    """Writes a file and waits until the disk has it."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a small file so that it is there whole or not at all. Raises ``LudusError(disk_full)``."""
    with typed_disk_errors(path.parent, len(content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        work = path.with_name(f".{path.name}.tmp")
        write_flushed(work, content)
        work.rename(path)
        flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Waits until the disk has the names in a folder (its renames too)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def typed_disk_errors(folder: Path, needed: int) -> Iterator[None]:
    """Turns a full disk or quota into ``LudusError(disk_full)``; ``needed`` in bytes."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise disk_full(folder, needed) from error


def disk_full(folder: Path, needed: int) -> LudusError:
    """The error that says how many bytes were to be written below ``folder``."""
    return LudusError(
        "disk_full",
        "the disk is full; what was committed before is untouched",
        field="state",
        value=folder,
        expected=f"{needed} free bytes",
        advice="free some room and send the same request again",
    )
