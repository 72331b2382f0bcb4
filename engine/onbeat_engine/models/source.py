"""Where a model's files are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one model."""

    kind: Literal["folder", "gguf"]
    """A folder as Hugging Face lays it out, or one GGUF file."""
    path: Path
    name: str
    """What users call it: what was asked for, or the default model's name."""
