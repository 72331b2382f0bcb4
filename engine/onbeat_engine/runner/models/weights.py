"""Tensors by the names that Hugging Face gives them, wherever they are stored."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from onbeat_engine.wire.errors import ModelError

_INDEX = "model.safetensors.index.json"


class Weights(Protocol):
    """The tensors of one model."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape, by its name."""
        ...

    def read(self, name: str, rows: tuple[int, int] | None = None) -> torch.Tensor:
        """Read a tensor, or of its first dimension lo .. hi - 1, in the dtype that it is stored in.

        Raises:
            ModelError: it cannot be read.
        """
        ...


class SafetensorsFolder:
    """`model.safetensors`, or the shards that `model.safetensors.index.json` lists, or else every file there is."""

    def __init__(self, folder: Path) -> None:
        """Open the files; nothing but their headers is read.

        Raises:
            ModelError: there is none, one is missing or damaged, or the index lists a tensor that is nowhere.
        """
        self._files: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        listed = _listed(folder)
        for path in _paths(folder, listed):
            try:
                file: Any = safe_open(path, framework="pt")
                for name in file.keys():  # noqa: SIM118 -- not a mapping: it has keys() and cannot be iterated
                    self._files[name] = file
                    self.shapes[name] = tuple(file.get_slice(name).get_shape())
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} cannot be read: {error}") from error
        lost = sorted(set(listed) - set(self.shapes))
        if lost:
            raise ModelError(f"{folder / _INDEX} lists {len(lost)} tensors that no file holds, such as {lost[0]}")

    def read(self, name: str, rows: tuple[int, int] | None = None) -> torch.Tensor:
        """See `Weights`."""
        try:
            if rows is None:
                return self._files[name].get_tensor(name)
            return self._files[name].get_slice(name)[rows[0] : rows[1]]
        except (SafetensorError, OSError) as error:
            raise ModelError(f"tensor {name} cannot be read: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelError: there is no such file, or it holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return value


def _listed(folder: Path) -> dict[str, str]:
    """Return which file holds which tensor, as the index says; empty where there is no index."""
    if not (folder / _INDEX).is_file():
        return {}
    listed = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(each, str) for each in listed.values()):
        raise ModelError(f"{folder / _INDEX} has no weight_map from tensor names to files")
    return listed


def _paths(folder: Path, listed: Mapping[str, str]) -> list[Path]:
    names = sorted(set(listed.values()))
    if names:
        # An index that came from elsewhere must not reach out of its folder.
        astray = [name for name in names if Path(name).name != name]
        missing = [name for name in names if not (folder / name).is_file()]
        if astray or missing:
            raise ModelError(f"{folder / _INDEX} lists {(astray or missing)[0]!r}, which is no file of that folder")
        return [folder / name for name in names]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelError(f"{folder} holds no *.safetensors file; other formats of weights are not read")
    return paths
