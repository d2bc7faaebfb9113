"""A step as a folder for others: the PEFT adapter as it is, or the base model with the adapter merged in."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from ludus_backend.checkpoints import StoredCheckpoint
from ludus_backend.durable import disk_full, flush_folder, typed_disk_errors
from ludus_backend.errors import LudusError
from ludus_backend.models.base_model import LoadedBase
from ludus_backend.models.learner import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from ludus_backend.protocol import ExportedModel, ExportModel
from ludus_backend.sampling.adapter_file import LowRankDelta, read_adapter

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_TOKENIZER_BYTES = 32 << 20
"""Room for tokenizer and config files next to the weights."""


def export(base: LoadedBase, stored: StoredCheckpoint, request: ExportModel, state: Path) -> ExportedModel:
    """Writes ``request.destination`` whole or not at all.

    Merged: ``W0 + scale * B @ A`` in fp32, then rounded; a folder that ``AutoModelForCausalLM.from_pretrained`` and
    ``AutoTokenizer.from_pretrained`` load, chat template included. The same step gives the same bytes.
    Raises ``LudusError``: ``invalid_request`` (``destination``), ``disk_full``.
    """
    warnings: list[str] = []

    def write(folder: Path) -> None:
        if request.format == "adapter":
            for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
                shutil.copyfile(stored.folder / name, folder / name)
        else:
            warnings.extend(_write_merged(base, stored.folder, folder, _DTYPES[request.dtype]))

    needed = sum(file["bytes"] for file in stored.files.values())
    if request.format == "merged":
        needed = base.parameters * _DTYPES[request.dtype].itemsize + _TOKENIZER_BYTES
    target = _checked(Path(request.destination), state)
    files = _write_folder(target, needed, write)
    return ExportedModel(
        step=stored.step,
        path=str(target),
        files=sorted(files),
        bytes=sum(files.values()),
        warnings=warnings,
    )


def merge(weight: torch.Tensor, delta: LowRankDelta) -> torch.Tensor:
    """``W + scale * B @ A`` (LoRA, 2106.09685, eq. 3) in fp32, as a new tensor ``[out, in]``."""
    return torch.addmm(weight.float(), delta.up, delta.down, alpha=delta.scale)


def lost_in_rounding(weight: torch.Tensor, delta: LowRankDelta, dtype: torch.dtype) -> bool:
    """Whether the largest change is smaller than the rounding step of ``dtype`` at the weights' mean size."""
    change = (delta.scale * (delta.up @ delta.down)).abs().max().item()
    return 0 < change < torch.finfo(dtype).eps * weight.abs().mean().item()


@torch.no_grad()
def _write_merged(base: LoadedBase, adapter: Path, folder: Path, dtype: torch.dtype) -> list[str]:
    deltas = read_adapter(adapter)
    weights = dict(base.model.state_dict())
    embeddings = base.model.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding)
    tied = embeddings.weight.data_ptr()
    lost = []
    for name, delta in deltas.items():
        weight = weights[f"{name}.weight"]
        if weight.data_ptr() == tied:
            raise LudusError(
                "invalid_request",
                "the adapter changes weights that the model shares with its embeddings: they cannot be merged",
                field="format",
                value=name,
                expected="adapter",
                advice="export the adapter, or train without this layer in lora.targetModules",
            )
        if dtype != torch.float32 and lost_in_rounding(weight, delta, dtype):
            lost.append(name)
        weights[f"{name}.weight"] = merge(weight, delta)
    model = _empty_twin(base, dtype)
    # Tied weights stay one tensor: each distinct storage is converted once.
    made: dict[int, torch.Tensor] = {}
    rounded = {name: made.setdefault(tensor.data_ptr(), tensor.to(dtype)) for name, tensor in weights.items()}
    model.load_state_dict(rounded, assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)
    if lost:
        kind = str(dtype).removeprefix("torch.")
        return [
            f"rounding to {kind} erases the adapter's change of {len(lost)} of {len(deltas)} layers, first {lost[0]}: "
            "export fp32, or the adapter"
        ]
    return (
        [] if any(not delta.is_zero for delta in deltas.values()) else ["the adapter is zero: this is the base model"]
    )


def _empty_twin(base: LoadedBase, dtype: torch.dtype) -> PreTrainedModel:
    """A model of the base's class without weights, whose config names no attention of this package."""
    config = copy.deepcopy(base.model.config)
    config.dtype = dtype
    config._attn_implementation = "eager"
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            made = type(base.model)(config)
    finally:
        torch.set_default_dtype(previous)
    if base.model.generation_config is not None:
        made.generation_config = copy.deepcopy(base.model.generation_config)
    return made.eval()


def _checked(target: Path, state: Path) -> Path:
    """The destination, where something may be written."""
    problem = None
    if not target.is_absolute():
        problem = "an absolute path"
    elif target.resolve().is_relative_to(state.resolve()):
        problem = "a folder outside the backend's state folder"
    elif target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        problem = "a folder that does not exist yet, or is empty"
    elif not target.parent.is_dir():
        problem = "a folder whose parent exists"
    if problem is None:
        return target
    raise LudusError(
        "invalid_request",
        "nothing can be exported to this place",
        field="destination",
        value=target,
        expected=problem,
        advice="name another folder on the backend's machine; nothing was written",
    )


def _write_folder(target: Path, needed: int, write: Callable[[Path], None]) -> dict[str, int]:
    """Fills a folder under another name, flushes it and renames it; returns the size of every file."""
    parent = target.parent
    if shutil.disk_usage(parent).free < needed:
        raise disk_full(parent, needed)
    with typed_disk_errors(parent, needed), _working_folder(target) as work:
        write(work)
        files = [path for path in work.iterdir() if path.is_file()]
        for path in files:
            _flush(path)
        sizes = {path.name: path.stat().st_size for path in files}
        work.chmod(0o755)
        flush_folder(work)
        work.rename(target)
        flush_folder(parent)
    return sizes


@contextmanager
def _working_folder(target: Path) -> Iterator[Path]:
    try:
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.tmp-", dir=target.parent))
    except PermissionError as error:
        raise LudusError(
            "invalid_request",
            "the backend may not write here",
            field="destination",
            value=target,
            expected="a folder that the backend's user may write to",
            advice="name another folder; nothing was written",
        ) from error
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
