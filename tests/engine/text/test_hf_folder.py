"""Tokenizers of folders, beside what transformers makes of the same folder."""

from pathlib import Path
from typing import Any

import pytest

from onbeat_engine.text.open_tokenizer import open_tokenizer
from onbeat_engine.wire.errors import ModelError
from tests.engine.text.tiny import backend, write_folder

TEMPLATE = "{{ bos_token }}{% for m in messages %}<|user|>{{ m['content'] }}{{ eos_token }}\n{% endfor %}"
TOKENS = {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>", "__type": "AddedToken"}}


def test_files(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        backend(),
        tokenizer_config=TOKENS | {"chat_template": "from the configuration"},
        generation_config={"eos_token_id": [258, 257]},
        config={"eos_token_id": 1},
    )
    tokenizer = open_tokenizer(folder)
    assert tokenizer.bos_token_id == 256
    assert tokenizer.eos_token_ids == {257, 258}
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}]) == "from the configuration"
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    assert open_tokenizer(folder).apply_chat_template([{"role": "user", "content": "a"}]) == (
        "<|begin|><|user|>a<|end|>\n"
    )


@pytest.mark.parametrize(
    ("files", "bos", "ends"),
    [
        ({}, None, set()),
        ({"config": {"eos_token_id": 257}}, None, {257}),
        ({"special_tokens_map": TOKENS}, 256, {257}),
        ({"tokenizer_config": {"eos_token": "<|nowhere|>", "bos_token": None}}, None, set()),
    ],
)
def test_tokens(tmp_path: Path, files: dict[str, Any], bos: int | None, ends: set[int]) -> None:
    tokenizer = open_tokenizer(write_folder(tmp_path, backend(), **files))
    assert tokenizer.bos_token_id == bos
    assert tokenizer.eos_token_ids == ends


def test_several_templates(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    tokenizer = open_tokenizer(write_folder(tmp_path, backend(), tokenizer_config={"chat_template": templates}))
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}]) == "D"


def test_like_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = TOKENS | {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    folder = write_folder(tmp_path, backend(), tokenizer_config=config)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = open_tokenizer(folder)
    messages = [{"role": "user", "content": "the café"}, {"role": "assistant", "content": "\N{GRINNING FACE}"}]
    text = ours.apply_chat_template(messages)
    assert text == theirs.apply_chat_template(messages, tokenize=False)
    ids = ours.encode_chat(messages)
    assert ids == theirs.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.encode("the the") == theirs("the the")["input_ids"]


@pytest.mark.parametrize(
    ("name", "text"), [("tokenizer.json", "{}"), ("tokenizer_config.json", "{"), ("config.json", "[]")]
)
def test_broken_files(tmp_path: Path, name: str, text: str) -> None:
    folder = write_folder(tmp_path, backend())
    (folder / name).write_text(text)
    with pytest.raises(ModelError, match=f"{name} (cannot be read|holds no JSON object)"):
        open_tokenizer(folder)


def test_strange_values_are_passed_over(tmp_path: Path) -> None:
    files = {
        "tokenizer_config": {"chat_template": [1, {"name": ["default"]}], "eos_token": {"content": 5}},
        "generation_config": {"eos_token_id": [True, "x", 257]},
    }
    tokenizer = open_tokenizer(write_folder(tmp_path, backend(), **files))
    assert tokenizer.eos_token_ids == {257}
    assert not tokenizer.has_chat_template
