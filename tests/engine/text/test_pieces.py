"""What tokens write."""

import pytest
from tokenizers import decoders

from onbeat_engine.text.pieces import Pieces, byte_alphabet
from onbeat_engine.wire.errors import ModelError


def test_alphabet_is_one_to_one() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["Ġ"], alphabet["Ċ"], alphabet["a"], alphabet["ÿ"]) == (0x20, 0x0A, 0x61, 0xFF)


def test_byte_level() -> None:
    pieces = Pieces({"type": "ByteLevel"}, {"Ġth": 0, "Ã©": 1, "<a b>": 3, "Ġ ": 4}, 6)
    assert pieces.all == [b" th", "é".encode(), b"", b"<a b>", "Ġ ".encode(), b""]
    assert pieces.of(6) == pieces.of(-1) == b""
    assert not pieces.strips_first_space


@pytest.mark.parametrize("name", ["Ġth", "Ã©", "<a b>", "Ġ ", "日"])
def test_byte_level_like_the_library(name: str) -> None:
    text = Pieces({"type": "ByteLevel"}, {name: 0}, 1).of(0).decode("utf-8", "replace")
    assert text == decoders.ByteLevel().decode([name])


def test_sentencepiece() -> None:
    steps = [{"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "start": 1}]
    pieces = Pieces({"type": "Sequence", "decoders": steps}, {"▁a▁b": 0, "<0xF0>": 1, "<0xZZ>": 2}, 3)
    assert pieces.all == [b" a b", b"\xf0", b"<0xZZ>"]
    assert pieces.strips_first_space


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece"}, {"type": "Metaspace"}])
def test_unknown_kinds(decoder: dict[str, str] | None) -> None:
    with pytest.raises(ModelError, match=r"of no kind that is known here: (none|WordPiece|Metaspace)"):
        Pieces(decoder, {"a": 0}, 1)
