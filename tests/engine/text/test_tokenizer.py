"""The tokenizer: there and back, limits, special tokens."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat_engine.text.open_tokenizer import open_tokenizer
from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.errors import BadRequest, ModelError
from tests.engine.text.tiny import backend, smollm2, tiny

TEXTS = [
    "Hello, world!",
    "  two  spaces\n\n\tand tabs \r\n",
    "2024-01-31 is 1.5e-3",
    "naïve café, 日本語, Ελληνικά, العربية",
    "\N{GRINNING FACE} \N{FAMILY}\N{ZERO WIDTH JOINER}\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}",
    "def f(x: int) -> int:\n    return x ** 2  # square\n",
    "e\N{COMBINING ACUTE ACCENT} \N{NO-BREAK SPACE}\x00\x7f",
    "",
]


@pytest.mark.parametrize("load", [tiny, smollm2])
@pytest.mark.parametrize("text", TEXTS)
def test_there_and_back(load: Callable[[], Tokenizer], text: str) -> None:
    assert load().decode(load().encode(text), skip_special_tokens=False) == text


@given(st.lists(st.integers(-1, 270), max_size=20), st.booleans())
def test_decodes_like_the_library(ids: list[int], skip: bool) -> None:
    known = [id for id in ids if id >= 0]
    assert tiny().decode(ids, skip_special_tokens=skip) == BACKEND.decode(known, skip_special_tokens=skip)


BACKEND = backend()


def test_special_tokens() -> None:
    tokenizer = tiny()
    ids = tokenizer.encode("a<|user|>b")
    assert ids == [97, 258, 98]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|user|>b"
    assert tokenizer.special_ids == {256, 257, 258}
    assert tokenizer.bos_token_id == 256
    assert tokenizer.eos_token_ids == {257}
    assert [tokenizer.pieces[id] for id in (97, 256, 258)] == [b"a", b"", b""]
    assert tokenizer.piece(256) == b"<|begin|>"
    assert tokenizer.token_text(0xF0) == "\ufffd"
    assert tokenizer.vocab_size == len(tokenizer.pieces) == 264


def test_limits() -> None:
    tokenizer = tiny()
    assert len(tokenizer.encode("a b", max_tokens=3)) == 3
    with pytest.raises(BadRequest, match="the text has 4 tokens; at most 3 are taken"):
        tokenizer.encode("a bc", max_tokens=3)
    with pytest.raises(BadRequest, match="the text has 1000000 characters, which are more than 3 tokens"):
        tokenizer.encode("a" * 1_000_000, max_tokens=3)


def test_half_a_surrogate_pair() -> None:
    with pytest.raises(BadRequest, match="half of a surrogate pair"):
        tiny().encode("a\ud800b")


def test_threads() -> None:
    tokenizer = smollm2()
    expected = [tokenizer.encode(text) for text in TEXTS]
    wrong: list[str] = []

    def work() -> None:
        for _ in range(50):
            for text, ids in zip(TEXTS, expected, strict=True):
                if tokenizer.encode(text) != ids or tokenizer.decode(ids, skip_special_tokens=False) != text:
                    wrong.append(text)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_nothing_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ModelError, match="no tokenizer"):
            open_tokenizer(path)


def test_chat_without_a_template() -> None:
    assert not tiny().has_chat_template
    with pytest.raises(BadRequest, match="the model has no chat template"):
        tiny().encode_chat([{"role": "user", "content": "a"}])


def test_chat() -> None:
    template = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"
    tokenizer = Tokenizer(backend(), eos_token_ids=[257], chat_template=template)
    assert tokenizer.encode_chat([{"role": "user", "content": "a"}]) == [258, 97, 257]
    with pytest.raises(BadRequest, match="at most 2"):
        tokenizer.encode_chat([{"role": "user", "content": "a"}], max_tokens=2)
