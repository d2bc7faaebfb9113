"""A registered model: its folder, its lock, its newest step in memory, and how a step becomes durable."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus_backend.checkpoints import OPTIMIZER, CheckpointStore
from ludus_backend.durable import disk_full, write_atomically
from ludus_backend.engine_messages import SftUpdate
from ludus_backend.errors import LudusError
from ludus_backend.models.base_model import LoadedBase
from ludus_backend.models.learner import Learner
from ludus_backend.protocol import ModelInfo, RegisterModel, TrainRequest, TrainResult

KEPT_OPTIMIZERS = 2
"""Steps whose optimiser state stays on disk: the newest, and one to fall back to."""
DECLARATION = "model.json"


class NonFiniteWeightsError(Exception):
    """The optimiser's step led to weights or logits that are not finite; it was taken back, nothing is on disk."""

    reason = "non_finite_weights"


class RegisteredModel:
    """``<state>/models/<name>``: ``model.json`` (what was registered) and the checkpoints.

    Opening makes step 0, or resumes the newest whole checkpoint and says in ``notices`` what was skipped. Raises
    ``LudusError``: ``invalid_request`` where the model was made with another base or LoRA, ``busy`` where another
    process holds it, ``disk_full``.
    """

    def __init__(self, base: LoadedBase, folder: Path, request: RegisterModel) -> None:
        self._base = base
        self._lock = _locked(folder, request.name)
        try:
            self._open(base, folder, request)
        except BaseException:
            self.close()
            raise

    def _open(self, base: LoadedBase, folder: Path, request: RegisterModel) -> None:
        self.notices: list[str] = []
        declaration = folder / DECLARATION
        if declaration.is_file():
            self.request = RegisterModel.model_validate_json(declaration.read_bytes())
            self.refuse_changes(request)
        else:
            self.request = request
            write_atomically(declaration, request.model_dump_json(by_alias=True, indent=1).encode())
        self.store = CheckpointStore(folder / "checkpoints")
        self.store.clean()
        self.learner = Learner(base, self.request.lora, self.request.seed)
        newest, broken = self.store.newest_whole()
        self.notices += broken
        self.resumed = newest is not None
        if newest is None:
            self.store.write(0, {**self.learner.adapter_files(), OPTIMIZER: self.learner.optimizer_file()})
            self.step = 0
        else:
            optimizer = newest.folder / OPTIMIZER
            if OPTIMIZER in newest.files and not optimizer.is_file():
                self.notices.append(
                    f"checkpoint {newest.step} has no optimiser state any more: its moments start again"
                )
            self.learner.load(newest.folder, optimizer if optimizer.is_file() else None)
            self.step = newest.step
        self._results: dict[str, Mapping[str, Any]] = {**self.store.results()}

    def refuse_changes(self, request: RegisterModel) -> None:
        """A name stands for one base and one LoRA; another seed is only worth a notice."""
        for name in ("base", "lora"):
            made, wanted = getattr(self.request, name), getattr(request, name)
            if made != wanted:
                raise LudusError(
                    "invalid_request",
                    f"{request.name} was made with another {name}",
                    field=name,
                    value=wanted.model_dump_json(by_alias=True),
                    expected=made.model_dump_json(by_alias=True),
                    advice="use the same options, or another name",
                )
        if request.seed != self.request.seed:
            notice = f"{request.name} keeps the adapter made with seed {self.request.seed}"
            if notice not in self.notices:
                self.notices.append(notice)

    def refuse_full_disk(self) -> None:
        """Before anything expensive: a checkpoint is the adapter (fp32) and twice that for the optimiser."""
        needed = 3 * sum(4 * parameter.numel() for parameter in self.learner.parameters) + 2**20
        folder = self.store.folder(self.step)
        if shutil.disk_usage(folder).free < needed:
            raise disk_full(folder.parent, needed)

    def refuse_other_step(self, expected: int) -> None:
        """Compare-and-set: a request was made for one step, and no other."""
        if expected != self.step:
            raise LudusError(
                "step_conflict",
                f"{self.request.name} is at step {self.step}, not {expected}",
                field="expectedStep",
                value=expected,
                expected=str(self.step),
                advice="fetch the model's step and send a request that was made for it",
            )

    def committed(self, key: str) -> TrainResult | None:
        """The result of the train request with this key, where it made a step."""
        stored = self._results.get(key)
        return None if stored is None else TrainResult.model_validate({**stored, "repeated": True})

    def commit(
        self, request: TrainRequest | SftUpdate, metrics: dict[str, float], non_finite: list[str]
    ) -> TrainResult:
        """Takes the optimiser's step and makes it durable. Whatever fails, the weights in memory go back.

        Raises ``NonFiniteWeightsError``, ``LudusError(disk_full)``.
        """
        step = self.step + 1
        result = TrainResult(
            step=step, trained=True, policy=f"{self.request.name}@{step}", metrics=metrics, non_finite=non_finite
        )
        before = self.learner.snapshot()
        try:
            self.learner.configure(request.config)
            self.learner.optimizer.step()
            if not self.learner.is_finite():
                raise NonFiniteWeightsError
            stored = self.store.write(
                step,
                {**self.learner.adapter_files(), OPTIMIZER: self.learner.optimizer_file()},
                key=request.key,
                metrics=metrics,
                result=result.model_dump(by_alias=True),
                config=request.config.model_dump(by_alias=True),
            )
        except BaseException:
            self.learner.restore(before)
            raise
        self.step = step
        self._results[request.key] = stored.result or {}
        self.store.drop_old_optimizers(KEPT_OPTIMIZERS)
        return result

    def info(self) -> ModelInfo:
        return ModelInfo(
            name=self.request.name,
            step=self.step,
            steps=self.store.steps(),
            base=self.request.base,
            lora=self.request.lora,
            context_length=self._base.context_length,
            parameters=self._base.parameters,
            resumed=self.resumed,
            checkpoint=str(self.store.folder(self.step)),
            notices=self.notices,
        )

    def close(self) -> None:
        """Lets another process have the model; the end of this process does the same."""
        os.close(self._lock)


def _locked(folder: Path, name: str) -> int:
    """An open file with an exclusive lock, which the kernel drops when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise LudusError(
            "busy",
            f"another process trains {name} in this folder",
            field="state",
            value=folder,
            expected="one backend a state folder",
            advice="stop the other backend, or give this one a state folder of its own",
        ) from error
    return descriptor
