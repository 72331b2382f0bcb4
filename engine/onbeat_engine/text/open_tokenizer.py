"""Opens the tokenizer of a model, or of a configuration."""

from pathlib import Path

from onbeat_engine.files.find import find
from onbeat_engine.text.gguf_vocab import load_gguf
from onbeat_engine.text.hf_folder import load_folder
from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.errors import ModelError


def open_tokenizer(path: str | Path) -> Tokenizer:
    """Return the tokenizer of a model.

    Args:
        path: a folder as Hugging Face lays it out, with a tokenizer.json, or a GGUF file, whatever its name.

    Raises:
        ModelError: there is none, or one that cannot be used.
    """
    path = Path(path)
    if path.is_dir():
        return load_folder(path)
    if path.is_file():
        return load_gguf(path)
    raise ModelError(f"no tokenizer at {path}; it must be a folder with a tokenizer.json or a GGUF file")


def configured_tokenizer(config: EngineConfig) -> Tokenizer:
    """Return the tokenizer that the configuration names, or the model's own.

    Raises:
        ModelError: there is none.
    """
    if config.tokenizer is not None and (Path(config.tokenizer).expanduser() / "tokenizer.json").is_file():
        return open_tokenizer(Path(config.tokenizer).expanduser())  # with or without a model beside it
    return open_tokenizer(find(config.tokenizer or config.model).path)
