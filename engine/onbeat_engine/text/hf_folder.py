"""Tokenizers of folders as Hugging Face lays them out."""

import json
from pathlib import Path
from typing import Any

from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.errors import ModelError


def load_folder(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder.

    End tokens are the tokenizer's own and those of generation_config.json (of config.json, where that has none).

    Raises:
        ModelError: no tokenizer.json in it, or a file that cannot be read.
    """
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415 - not needed before a model is loaded

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"no tokenizer.json in {folder}; slow tokenizers have to be converted with transformers first")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises just that
        raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from None
    config = _json(folder / "special_tokens_map.json") | _json(folder / "tokenizer_config.json")
    eos = _id(backend, config.get("eos_token"))
    more = _json(folder / "generation_config.json").get("eos_token_id")
    if more is None:
        more = _json(folder / "config.json").get("eos_token_id")
    ids = [eos] if eos is not None else []
    ids += [id for id in (more if isinstance(more, list) else [more]) if type(id) is int and id not in ids]
    return Tokenizer(
        backend,
        eos_token_ids=ids,
        bos_token_id=_id(backend, config.get("bos_token")),
        chat_template=_template(folder, config.get("chat_template")),
    )


def _template(folder: Path, from_config: Any) -> str | None:
    """Return the chat template: the file's, else the configuration's; of several the one named `default`."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from None
    if isinstance(from_config, list):
        named = [entry for entry in from_config if isinstance(entry, dict) and entry.get("name") == "default"]
        from_config = named[0].get("template") if named else None
    return from_config if isinstance(from_config, str) else None


def _id(backend: Any, token: Any) -> int | None:
    """Return the id of a token as configurations write it: a string, or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    if not isinstance(token, str):
        return None
    id: int | None = backend.token_to_id(token)
    return id


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object")
    return value
