"""Loading the frozen base model that sampler and trainer share."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ludus_backend.errors import LudusError
from ludus_backend.models import attention
from ludus_backend.models.bundled import bundled_folder
from ludus_backend.models.tiny import tiny_model
from ludus_backend.protocol import BaseModelSpec


@dataclass
class LoadedBase:
    """A base model in memory: fp32, eval mode, nothing requires a gradient, never written to."""

    spec: BaseModelSpec
    folder: Path
    """Holds ``tokenizer.json`` and, but for the random model, the weights."""
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    context_length: int
    """Tokens, prompt and reply together."""
    parameters: int
    stop_ids: list[int]
    """Ids that end a reply: the tokenizer's end of turn and those of the generation config."""

    def twin(self) -> PreTrainedModel:
        """A second tree of modules over the *same* weight tensors (no memory): wrap or replace its parts freely."""
        shared = [*self.model.parameters(), *self.model.buffers()]
        return copy.deepcopy(self.model, {id(tensor): tensor for tensor in shared})


def cache_folder() -> Path:
    """``LUDUS_CACHE``, else ``ludus`` in the user's XDG cache."""
    named = os.environ.get("LUDUS_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ludus"


def load_base(spec: BaseModelSpec, cache: Path) -> LoadedBase:
    """Loads ``spec`` with the grouped attention of this package.

    ``cache`` keeps the converted bundled model. Raises ``LudusError``: ``model_missing`` where there are no weights,
    ``invalid_request`` where the wanted context is longer than the model's.
    """
    attention.register()
    logging.disable_progress_bar()
    if spec.source in ("bundled", "random"):
        location, revision = str(bundled_folder(cache)), None
    else:
        location, revision = _location(spec), spec.revision
    try:
        tokenizer = AutoTokenizer.from_pretrained(location, revision=revision)
        if spec.source == "random":
            model: PreTrainedModel = tiny_model(len(tokenizer), tokenizer.eos_token_id)
        else:
            model = AutoModelForCausalLM.from_pretrained(
                location, revision=revision, dtype=torch.float32, attn_implementation=attention.GROUPED_ATTENTION
            )
    except (OSError, ValueError) as error:
        raise LudusError(
            "model_missing",
            f"the base model cannot be loaded: {error}",
            field="base.id",
            value=spec.id or spec.source,
            expected="a folder or hub id with config.json, safetensors weights and a tokenizer",
            advice="check the name and the revision, or use the bundled model",
        ) from error
    model.requires_grad_(False).eval()
    return LoadedBase(
        spec=spec,
        folder=_tokenizer_folder(location, tokenizer, spec, cache),
        model=model,
        tokenizer=tokenizer,
        context_length=_context_length(spec, model),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        stop_ids=_stop_ids(model, tokenizer),
    )


def _location(spec: BaseModelSpec) -> str:
    if not spec.id:
        raise LudusError(
            "invalid_request",
            f"a base model from {spec.source} needs an id",
            field="base.id",
            value=spec.id,
            expected="a hub id" if spec.source == "hub" else "a local folder",
            advice="set base.id, or use the bundled model",
        )
    if spec.source == "path" and not (Path(spec.id) / "config.json").is_file():
        raise LudusError(
            "model_missing",
            "the folder of the base model is not there",
            field="base.id",
            value=spec.id,
            expected="a folder with config.json",
            advice="check the path on the backend's machine",
        )
    return spec.id


def _tokenizer_folder(location: str, tokenizer: PreTrainedTokenizerBase, spec: BaseModelSpec, cache: Path) -> Path:
    """A local folder with ``tokenizer.json``; a hub model's tokenizer is written to the cache once."""
    if Path(location).is_dir():
        return Path(location)
    name = f"{location}@{spec.revision or 'default'}".replace("/", "--")
    folder = cache / "tokenizers" / name
    tokenizer.save_pretrained(folder)
    return folder


def _context_length(spec: BaseModelSpec, model: PreTrainedModel) -> int:
    longest = int(model.config.max_position_embeddings)
    if spec.context_length is not None and spec.context_length > longest:
        raise LudusError(
            "invalid_request",
            "the wanted context is longer than the model was made for",
            field="base.contextLength",
            value=spec.context_length,
            expected=f"at most {longest}",
            advice="leave contextLength out, or choose a model with a longer context",
        )
    return spec.context_length or longest


def _stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ends = getattr(model.generation_config, "eos_token_id", None)
    found = [*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id]
    return sorted({int(end) for end in found if end is not None})
