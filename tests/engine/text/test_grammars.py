"""Grammars of structured output: which schemas are taken."""

import sys
from typing import Any

import pytest

from onbeat_engine.text.grammars import MAX_SCHEMA_CHARS, Grammars
from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.errors import BadRequest
from onbeat_engine.wire.params import StructuredOutput
from tests.engine.text.tiny import backend, tiny

V = 270  # the model's, larger than the tokenizer's 264
OBJECT = StructuredOutput(json_object=True)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "n": {"type": "integer"}},
    "required": ["name", "n"],
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    pytest.importorskip("xgrammar")
    return Grammars(tiny, V)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "nonsense"}, "the JSON schema cannot be used"),
        ({"$ref": "#/$defs/none"}, "the JSON schema cannot be used"),
        ({"type": "string", "pattern": "("}, "the JSON schema cannot be used"),
        ({"const": "x" * MAX_SCHEMA_CHARS}, "at most 65536 are taken"),
    ],
)
def test_bad_schemas(grammars: Grammars, schema: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        grammars.check(StructuredOutput(json_schema=schema))
    assert caught.value.param == "response_format"


def test_deep_value(grammars: Grammars) -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(BadRequest, match="cannot be written as JSON"):
        grammars.check(StructuredOutput(json_schema={"const": value}))
    while value:  # taken apart from outside, or freeing it would go as deep
        value = value[0]


def test_reason_has_no_source_line(grammars: Grammars) -> None:
    with pytest.raises(BadRequest, match=r"cannot be used: Circular \$ref"):
        grammars.check(StructuredOutput(json_schema={"$ref": "#"}))


def test_good_schemas(grammars: Grammars) -> None:
    grammars.check(OBJECT)
    grammars.check(StructuredOutput(json_schema=SCHEMA))


def test_no_end_token() -> None:
    pytest.importorskip("xgrammar")
    with pytest.raises(BadRequest, match="needs an end token, and the model has none"):
        Grammars(lambda: Tokenizer(backend()), V).check(OBJECT)


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(BadRequest, match=r"pip install 'onbeat\[structured\]'"):
        Grammars(tiny, V).check(OBJECT)
