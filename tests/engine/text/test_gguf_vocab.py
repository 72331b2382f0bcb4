"""Tokenizers in GGUF files."""

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from onbeat_engine.text.open_tokenizer import open_tokenizer
from onbeat_engine.text.pieces import byte_alphabet
from onbeat_engine.wire.errors import ModelError
from tests.engine.text.tiny import smollm2

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6


def write(path: Path, kind: str, tokens: list[str], types: list[int], **more: Any) -> Path:
    writer = GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for name, value in more.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level(path: Path, pre: str, **more: Any) -> Path:
    """Write a vocabulary of bytes, of digits that merge, and of two more tokens."""
    merges = ["1 2", "12 3", "123 4", "Ġ a", "Ċ Ċ"]
    tokens = [*byte_alphabet(), *(merge.replace(" ", "") for merge in merges), "<|x|>", "<u>"]
    types = [NORMAL] * (len(tokens) - 2) + [CONTROL, USER]
    options: dict[str, Any] = {"tokenizer_pre": pre, "token_merges": merges, "eos_token_id": len(tokens) - 2}
    return write(path, "gpt2", tokens, types, **options | more)


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", " 1234", [" ", "1234"]),
        ("gpt-2", "1234", ["1234"]),
        ("llama-bpe", "1234 a", ["123", "4", " a"]),
        ("llama-bpe", "a\n\nb", ["a", "\n\n", "b"]),
        ("qwen2", "123", ["1", "2", "3"]),
        ("smollm", "123 a", ["1", "2", "3", " a"]),
        ("smollm", "a 12", ["a", " ", "1", "2"]),
    ],
)
def test_where_texts_are_cut(tmp_path: Path, pre: str, text: str, pieces: list[str]) -> None:
    tokenizer = open_tokenizer(byte_level(tmp_path / "m.gguf", pre))
    assert [tokenizer.token_text(id) for id in tokenizer.encode(text)] == pieces


def test_special_tokens_and_template(tmp_path: Path) -> None:
    more = {"bos_token_id": 261, "chat_template": "{{ eos_token }}!"}
    tokenizer = open_tokenizer(byte_level(tmp_path / "m.gguf", "smollm", **more))
    assert tokenizer.bos_token_id == 261
    assert tokenizer.eos_token_ids == tokenizer.special_ids == {261}
    assert tokenizer.encode("<|x|><u>") == [261, 262]
    assert tokenizer.decode([261, 262]) == "<u>"
    assert tokenizer.apply_chat_template([{"role": "user", "content": ""}]) == "<|x|>!"


def test_first_token(tmp_path: Path) -> None:
    """Llama 3 puts its first token before a text unless told otherwise; the others do not."""
    for pre, more, begins in (
        ("llama-bpe", {}, True),
        ("smollm", {}, False),
        ("llama-bpe", {"add_bos_token": False}, False),
    ):
        tokenizer = open_tokenizer(byte_level(tmp_path / "m.gguf", pre, bos_token_id=261, **more))
        assert tokenizer.encode("a") == ([261] if begins else []) + [byte_alphabet_id("a")]
        assert tokenizer.encode("a", add_special_tokens=False) == [byte_alphabet_id("a")]


def byte_alphabet_id(character: str) -> int:
    return list(byte_alphabet()).index(character)


def test_sentencepiece(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁a", "▁ab"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 6]
    scores = [0.0] * 259 + [-9.0, -7.0, -8.0, -1.0, -2.0, -3.0]
    path = write(tmp_path / "m.gguf", "llama", tokens, types, token_scores=scores, bos_token_id=1, eos_token_id=2)
    tokenizer = open_tokenizer(path)
    ids = tokenizer.encode("ab aé")
    assert [tokens[id] for id in ids] == ["<s>", "▁ab", "▁a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "ab aé"
    assert tokenizer.decode(ids, after_text=True) == " ab aé"


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        ("bert", {}, "of kind 'bert'; gpt2 and llama are known"),
        ("gpt2", {"token_merges": ["a b"], "tokenizer_pre": "tekken"}, "tokenizer.ggml.pre is 'tekken'; known are"),
        ("gpt2", {}, "has no tokenizer.ggml.merges"),
    ],
)
def test_unknown_kinds(tmp_path: Path, kind: str, more: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "m.gguf", kind, ["a"], [NORMAL], **more)
    with pytest.raises(ModelError, match=message):
        open_tokenizer(path)


def test_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUX" + bytes(60))
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        open_tokenizer(path)


def test_smollm2_known_ids() -> None:
    """Ids that other engines print for this prompt."""
    system = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182]
    user = [1, 4093, 198, 28120, 905]
    assert smollm2().encode_chat([{"role": "user", "content": "hello world"}]) == [
        *system, 2, 198, *user, 2, 198, 1, 520, 9531, 198,
    ]  # fmt: skip
    assert smollm2().bos_token_id == 1
    assert smollm2().eos_token_ids == {2}
    assert smollm2().special_ids == set(range(17))


LACKING = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}


def as_published() -> Any:
    """Return the pipeline of SmolLM2's tokenizer.json: each digit by itself, then GPT-2's way."""
    ours = json.loads(smollm2()._backend.to_str())["model"]
    merges = [tuple(pair) for pair in ours["merges"]]
    theirs = Backend(models.BPE(vocab=ours["vocab"], merges=merges))
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    theirs.decoder = decoders.ByteLevel()
    return theirs


@pytest.fixture(scope="module")
def published() -> Any:
    return as_published()


@settings(deadline=None)
@given(text=st.text(st.characters(codec="utf-8") | st.sampled_from(" \n\t'0129.abcstE²½Ⅷ٣"), max_size=40))
def test_smollm2_cuts_texts_as_published(published: Any, text: str) -> None:
    """Its vocabulary lacks some bytes, mostly such as no text has; those are lost."""
    ids = smollm2().encode(text)
    if not any(name in text for name in ("<|", "<repo", "<file", "<gh", "<issue", "<jupyter", "<empty")):
        assert ids == published.encode(text).ids
    kept = bytes(byte for byte in text.encode() if byte not in LACKING)
    assert smollm2().decode(ids, skip_special_tokens=False) == kept.decode("utf-8", "replace")


def test_expressions_are_what_the_library_takes() -> None:
    from onbeat_engine.text.gguf_vocab import _SPLITS

    for expressions in _SPLITS.values():
        for expression in expressions:
            assert pre_tokenizers.Split(Regex(expression), "isolated").pre_tokenize_str("a1 b") != []


@pytest.mark.parametrize(
    "more",
    [
        {"bos_token_id": 9999, "add_bos_token": True},
        {"token_merges": ["ab"]},
        {"token_merges": ["a b"]},
        {"token_merges": ["a zz"]},
        {"token_types": [NORMAL]},
    ],
)
def test_a_damaged_vocabulary_is_one_line(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"is damaged|is no token") as caught:
        open_tokenizer(byte_level(tmp_path / "m.gguf", "gpt-2", **more))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 3, 24, 100, 0.5])
def test_a_damaged_file_is_one_line(tmp_path: Path, keep: float) -> None:
    path = byte_level(tmp_path / "m.gguf", "gpt-2")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep if keep >= 1 else keep * len(whole))])
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        open_tokenizer(path)


def test_a_file_need_not_be_called_gguf(tmp_path: Path) -> None:
    assert open_tokenizer(byte_level(tmp_path / "sha256-12ab", "gpt-2")).encode("1234") != []
