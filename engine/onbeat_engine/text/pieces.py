"""What each token writes, in bytes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from onbeat_engine.wire.errors import ModelError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    Printable Latin-1 characters stand for themselves, the other 68 bytes, in order, for U+0100 and up (GPT-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class Pieces:
    """The bytes of each token of a vocabulary.

    Args:
        decoder: the decoder of a tokenizer.json: ByteLevel, or one with ByteFallback in it (SentencePiece's way: U+2581
            is a space, `<0x0A>` a byte). Bytes that are no UTF-8 may be shown with another number of U+FFFD than the
            `tokenizers` library shows for the latter kind; everything else is the same.
        names: token to id.
        size: one more than the largest id.

    Raises:
        ModelError: another kind of decoder.
    """

    def __init__(self, decoder: Mapping[str, Any] | None, names: Mapping[str, int], size: int) -> None:
        steps: Sequence[Mapping[str, Any]] = (decoder or {}).get("decoders", [decoder] if decoder else [])
        kinds = {step["type"] for step in steps}
        self.strips_first_space = False
        """Whether a decoded text loses one space at its beginning."""
        if kinds == {"ByteLevel"}:
            alphabet = byte_alphabet()
            table = {name: _byte_level(name, alphabet) for name in names}
        elif "ByteFallback" in kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
            self.strips_first_space = any(step["type"] == "Strip" and step.get("start") for step in steps)
            table = {name: _byte_fallback(name) for name in names}
        else:
            found = ", ".join(sorted(kinds)) or "none"
            raise ModelError(f"the tokenizer's decoder is of no kind that is known here: {found}")
        self.all = [b""] * size
        """By id; ids that no token has write nothing."""
        for name, id in names.items():
            self.all[id] = table[name]

    def of(self, id: int) -> bytes:
        """Return the bytes of a token, none for an id beyond the vocabulary."""
        return self.all[id] if 0 <= id < len(self.all) else b""


def _byte_level(name: str, alphabet: Mapping[str, int]) -> bytes:
    """Return the bytes of a token; an added token may have characters outside the alphabet, and is meant literally."""
    if all(character in alphabet for character in name):
        return bytes(alphabet[character] for character in name)
    return name.encode()


def _byte_fallback(name: str) -> bytes:
    byte = _BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace("\u2581", " ").encode()
