"""Checkpoints on disk: whole or not there.

``<model folder>/checkpoints/000012/`` holds a PEFT adapter, the optimiser's state and ``manifest.json`` with the
SHA-256 of every file, the key of the train request and its result. It is written under another name, flushed to the
disk, and renamed: after a crash at any moment every folder with a step's name is whole.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ludus_backend.durable import flush_folder, typed_disk_errors, write_atomically, write_flushed

MANIFEST = "manifest.json"
OPTIMIZER = "optimizer.pt"
DELETED = "deleted.json"
"""Keys and results of the steps that were deleted."""
FORMAT = 1
_STEP = re.compile(r"\d{6,}")
_TEMPORARY = ".tmp-"


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint whose manifest was read; ``metrics`` and ``result`` are those of the update that made it."""

    step: int
    folder: Path
    key: str | None
    metrics: dict[str, float]
    result: dict[str, Any] | None
    config: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(repr=False, default_factory=dict)


class CheckpointStore:
    """All checkpoints of one model. For one process: the caller holds the model's lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def folder(self, step: int) -> Path:
        return self._folder / f"{step:06d}"

    def write(
        self,
        step: int,
        files: Mapping[str, bytes],
        *,
        key: str | None = None,
        metrics: Mapping[str, float] | None = None,
        result: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> StoredCheckpoint:
        """Makes the checkpoint of ``step`` durable, then visible. Raises ``LudusError(disk_full)``; nothing is harmed.

        ``files``: name -> content, without the manifest.
        """
        stored = StoredCheckpoint(
            step=step,
            folder=self.folder(step),
            key=key,
            metrics=dict(metrics or {}),
            result=None if result is None else dict(result),
            config=dict(config or {}),
            files={
                name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                for name, content in sorted(files.items())
            },
        )
        with typed_disk_errors(self._folder, sum(map(len, files.values()))):
            self._folder.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{step:06d}-", dir=self._folder))
            try:
                for name, content in files.items():
                    write_flushed(work / name, content)
                write_flushed(work / MANIFEST, _manifest(stored))
                work.chmod(0o755)
                flush_folder(work)
                work.rename(stored.folder)
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
            flush_folder(self._folder)
        return stored

    def clean(self) -> None:
        """Removes what an interrupted write left behind."""
        for entry in self._entries():
            if entry.name.startswith(_TEMPORARY) or entry.name.endswith(".tmp"):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def steps(self) -> list[int]:
        """Steps that have a folder, ascending; whole or not."""
        named = (entry for entry in self._entries() if _STEP.fullmatch(entry.name) and entry.is_dir())
        return sorted(int(entry.name) for entry in named)

    def read(self, step: int) -> StoredCheckpoint:
        """The checkpoint of ``step`` after checking every hash. Raises ``ValueError`` saying what is broken.

        The optimiser's state may be missing (older ones are dropped to save room); everything else must be there.
        """
        stored = self._manifest_of(step)
        for name, expected in stored.files.items():
            path = stored.folder / name
            if not path.is_file():
                if name == OPTIMIZER:
                    continue
                raise ValueError(f"{name} is missing")
            content = path.read_bytes()
            if len(content) != expected["bytes"]:
                raise ValueError(f"{name} has {len(content)} bytes instead of {expected['bytes']}")
            if hashlib.sha256(content).hexdigest() != expected["sha256"]:
                raise ValueError(f"{name} does not have the hash of the manifest")
        return stored

    def newest_whole(self) -> tuple[StoredCheckpoint | None, list[str]]:
        """The newest checkpoint that is whole, and a notice about each newer one that is not.

        A broken folder is renamed to ``<step>.broken``, so that the step can be made again and a person can look.
        """
        notices: list[str] = []
        for step in reversed(self.steps()):
            try:
                return self.read(step), notices
            except ValueError as error:
                notices.append(f"checkpoint {step} is broken and was skipped: {error}")
                self._set_aside(step)
        return None, notices

    def all(self) -> list[StoredCheckpoint]:
        """Every checkpoint whose manifest can be read, ascending, without checking hashes."""
        found = []
        for step in self.steps():
            try:
                found.append(self._manifest_of(step))
            except ValueError:
                continue
        return found

    def delete(self, step: int) -> None:
        """Removes a checkpoint, its name first: a crash in between leaves nothing that looks like a broken one.

        Before that, key and result are written down: a repeated request must not make its step a second time.
        """
        try:
            stored = self._manifest_of(step)
        except ValueError:
            stored = None
        if stored is not None and stored.key is not None and stored.result is not None:
            known = {**self._deleted(), stored.key: stored.result}
            write_atomically(self._folder / DELETED, json.dumps(known, allow_nan=False).encode())
        doomed = self._folder / f"{_TEMPORARY}deleted-{step:06d}"
        self.folder(step).rename(doomed)
        flush_folder(self._folder)
        shutil.rmtree(doomed)

    def results(self) -> dict[str, dict[str, Any]]:
        """The result of every request that made a step, by its key; those of deleted steps too."""
        there = {stored.key: stored.result for stored in self.all() if stored.key and stored.result is not None}
        return {**self._deleted(), **there}

    def drop_old_optimizers(self, keep: int) -> None:
        """Removes the optimiser's state of all but the newest ``keep`` steps: it is twice the size of the adapter."""
        for step in self.steps()[:-keep]:
            (self.folder(step) / OPTIMIZER).unlink(missing_ok=True)

    def _deleted(self) -> dict[str, dict[str, Any]]:
        try:
            return json.loads((self._folder / DELETED).read_text())
        except FileNotFoundError:
            return {}

    def _entries(self) -> list[Path]:
        return sorted(self._folder.iterdir()) if self._folder.is_dir() else []

    def _set_aside(self, step: int) -> None:
        number = 0
        while (target := self._folder / f"{step:06d}.broken{number or ''}").exists():
            number += 1
        self.folder(step).rename(target)

    def _manifest_of(self, step: int) -> StoredCheckpoint:
        folder = self.folder(step)
        try:
            content = json.loads((folder / MANIFEST).read_text())
            if content["step"] != step or content["v"] != FORMAT:
                raise ValueError(f"{MANIFEST} is of step {content['step']}, version {content['v']}")
            return StoredCheckpoint(
                step=step,
                folder=folder,
                key=content["key"],
                metrics=content["metrics"],
                result=content["result"],
                config=content["config"],
                files=content["files"],
            )
        except FileNotFoundError as error:
            raise ValueError(f"{MANIFEST} is missing") from error
        except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{MANIFEST} cannot be read") from error


def _manifest(stored: StoredCheckpoint) -> bytes:
    content = {
        "v": FORMAT,
        "step": stored.step,
        "key": stored.key,
        "metrics": stored.metrics,
        "result": stored.result,
        "config": stored.config,
        "files": stored.files,
    }
    return json.dumps(content, indent=1, sort_keys=True, allow_nan=False).encode()
