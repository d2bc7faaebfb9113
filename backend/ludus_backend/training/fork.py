"""A new model from a step of another one: of this backend, or of another embedded run by its path."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ludus_backend.checkpoints import MANIFEST, OPTIMIZER, CheckpointStore, StoredCheckpoint
from ludus_backend.durable import flush_folder, typed_disk_errors, write_atomically
from ludus_backend.errors import LudusError
from ludus_backend.models.learner import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from ludus_backend.protocol import ForkModel, RegisterModel
from ludus_backend.training.registered import DECLARATION

_CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class ForkSource:
    """A whole checkpoint and what its model was registered as."""

    declared: RegisterModel
    stored: StoredCheckpoint


def find_source(models: Path, fork: ForkModel) -> ForkSource:
    """The checkpoint to fork, with every hash checked; it is only read. ``models``: this backend's models.

    Raises ``LudusError(invalid_request)`` naming ``path``, ``model``, ``step`` or ``optimizer``.
    """
    folder, step = _model_folder(models, fork)
    try:
        declared = RegisterModel.model_validate_json((folder / DECLARATION).read_bytes())
    except (OSError, ValidationError) as error:
        raise _invalid("the model cannot be read", "model", folder.name, f"a folder with {DECLARATION}") from error
    store = CheckpointStore(folder / _CHECKPOINTS)
    stored = _newest(store, folder) if step is None else _whole(store, step)
    if fork.optimizer and not (stored.folder / OPTIMIZER).is_file():
        raise _invalid(
            f"step {stored.step} has no optimiser state any more",
            "optimizer",
            True,
            "one of the newest two steps, or optimizer: false",
        )
    return ForkSource(declared, stored)


def write_fork(models: Path, fork: ForkModel, source: ForkSource) -> RegisterModel:
    """Writes the new model's folder and renames it into place; returns what it is registered as.

    A repeat finds the fork and writes nothing. Raises ``LudusError``: ``invalid_request`` where the name is taken by
    something else, ``disk_full``.
    """
    request = RegisterModel(name=fork.name, base=source.declared.base, lora=source.declared.lora)
    origin = {
        "model": source.declared.name,
        "step": source.stored.step,
        "adapter": source.stored.files[ADAPTER_WEIGHTS]["sha256"],
        "optimizer": fork.optimizer,
    }
    target = models / fork.name
    if target.exists():
        if _origin(target) == origin:
            return request
        raise _invalid("a model of this name is there already", "name", fork.name, "a name that is not taken")
    names = [ADAPTER_CONFIG, ADAPTER_WEIGHTS, *([OPTIMIZER] if fork.optimizer else [])]
    files = {name: (source.stored.folder / name).read_bytes() for name in names}
    with typed_disk_errors(models, sum(map(len, files.values()))):
        models.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".tmp-fork-", dir=models))
        try:
            CheckpointStore(work / _CHECKPOINTS).write(0, files, config={"fork": origin})
            write_atomically(work / DECLARATION, request.model_dump_json(by_alias=True, indent=1).encode())
            work.chmod(0o755)
            os.rename(work, target)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        flush_folder(models)
    return request


def remove_unfinished(models: Path) -> None:
    """Removes what an interrupted fork left behind."""
    for left in models.glob(".tmp-fork-*"):
        shutil.rmtree(left)


def _origin(folder: Path) -> dict[str, Any] | None:
    """Where the model of ``folder`` was forked from; None: it was not."""
    first = next((stored for stored in CheckpointStore(folder / _CHECKPOINTS).all() if stored.step == 0), None)
    return None if first is None else first.config.get("fork")


def _model_folder(models: Path, fork: ForkModel) -> tuple[Path, int | None]:
    """The source model's folder, and the step where the request or the path names one."""
    if fork.path is None:
        if fork.model is None:
            raise _invalid("a fork needs something to fork", "model", None, "a model of this backend, or a path")
        return _named(models, fork.model), fork.step
    path = Path(fork.path)
    if not path.is_absolute() or not path.is_dir():
        raise _invalid("there is no such folder", "path", fork.path, "an absolute path on the backend's machine")
    if (path / MANIFEST).is_file():
        if not path.name.isdecimal() or fork.step not in (None, int(path.name)):
            raise _invalid("the path names another step", "step", fork.step, f"{path.name}, or nothing")
        return path.parent.parent, int(path.name)
    if (path / DECLARATION).is_file():
        return path, fork.step
    for state in (path, path / "backend"):
        if (state / "models").is_dir():
            return _named(state / "models", fork.model), fork.step
    raise _invalid("the folder is neither a checkpoint nor a state folder", "path", fork.path, f"{MANIFEST} or models/")


def _named(models: Path, name: str | None) -> Path:
    known = sorted(found.parent.name for found in models.glob(f"[!.]*/{DECLARATION}"))
    if name is None and len(known) == 1:
        return models / known[0]
    if name is None or name not in known:
        raise _invalid("there is no such model to fork", "model", name, f"one of {known}")
    return models / name


def _newest(store: CheckpointStore, folder: Path) -> StoredCheckpoint:
    for step in reversed(store.steps()):
        try:
            return store.read(step)
        except ValueError:
            continue
    raise _invalid("the model has no whole checkpoint", "model", folder.name, "a model with a checkpoint")


def _whole(store: CheckpointStore, step: int) -> StoredCheckpoint:
    if step not in store.steps():
        raise _invalid("the model has no such step", "step", step, f"a step among {store.steps()}")
    try:
        return store.read(step)
    except ValueError as error:
        raise _invalid(f"the checkpoint is broken: {error}", "step", step, "a whole checkpoint") from error


def _invalid(message: str, field: str, value: object, expected: str) -> LudusError:
    return LudusError(
        "invalid_request", message, field=field, value=value, expected=expected, advice="correct it; nothing was made"
    )
