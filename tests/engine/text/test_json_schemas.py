"""Schemas that a grammar can keep, and those that it cannot."""

import json
from typing import Any

import pytest

from onbeat_engine.text.grammars import Grammars
from onbeat_engine.text.json_schemas import MAX_DEPTH, check_schema
from onbeat_engine.wire.errors import BadRequest
from onbeat_engine.wire.params import StructuredOutput
from tests.engine.text.tiny import tiny

INTEGER = {"type": "integer"}
BROKEN: list[tuple[dict[str, Any], Any, str]] = [
    ({"type": "number", "multipleOf": 5}, 3, "'multipleOf' is supported for integers only"),
    ({"type": "array", "items": INTEGER, "uniqueItems": True}, [1, 1], "'uniqueItems' is not"),
    ({"not": {"type": "string"}}, "x", "'not' is not supported"),
    ({"if": INTEGER, "then": {"minimum": 5}}, 3, "'if' is not supported"),
    ({"allOf": [{"type": "object"}, {"type": "string"}]}, "x", "'allOf' is supported with one schema only"),
    ({"$ref": "#/$defs/a", "$defs": {"a": INTEGER}, "minimum": 3}, 1, "'minimum' beside '\\$ref'"),
    ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, {"a": 1}, "'required' has 'b'"),
    ({"$ref": "http://a/b"}, 5, "'\\$ref' to 'http://a/b', which is not a part of it"),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}}, {"a": 1}, "'dependent"),
]


@pytest.mark.parametrize(("schema", "value", "message"), BROKEN)
def test_refused(schema: dict[str, Any], value: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside other schemas. Each would be accepted by xgrammar, which would then let a wrong value pass."""
    inside = {"type": "object", "properties": {"x": {"anyOf": [INTEGER, {"type": "array", "items": schema}]}}}
    for each in (schema, inside):
        with pytest.raises(BadRequest, match=message):
            check_schema(each)
    pytest.importorskip("xgrammar")
    monkeypatch.setattr("onbeat_engine.text.grammars.check_schema", lambda schema: None)
    matcher = Grammars(tiny, tiny().vocab_size).matcher(StructuredOutput(json_schema=schema)).inner
    assert matcher.accept_string(json.dumps(value))
    assert matcher.is_completed()


def test_let_pass() -> None:
    names = dict.fromkeys(("not", "if", "uniqueItems", "required"), INTEGER)
    check_schema({"type": "object", "properties": names, "required": ["not"], "additionalProperties": False})
    check_schema({"type": "integer", "multipleOf": 5})
    check_schema({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}], "title": "T", "default": None})
    check_schema({"enum": [{"not": 1}]})
    check_schema(True)


def test_depth() -> None:
    schema: dict[str, Any] = INTEGER
    for _ in range(MAX_DEPTH - 1):
        schema = {"type": "array", "items": schema}
    check_schema(schema)
    with pytest.raises(BadRequest, match="more than 64 schemas deep"):
        check_schema({"type": "array", "items": schema})
