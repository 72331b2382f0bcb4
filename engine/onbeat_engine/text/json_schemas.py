"""JSON schemas that a grammar can keep.

xgrammar leaves out of its grammar what it does not know, so a text could break a schema that was accepted. What it was
seen to leave out (0.2.9) is refused here instead. `format` of an unknown name, and `oneOf` where several branches fit,
are let pass.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from onbeat_engine.wire.errors import BadRequest

MAX_DEPTH = 64
"""Most schemas inside each other: compiling takes time that grows with the square of this."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames")
_UNKNOWN = ("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies")
_COMBINING = ("$ref", "anyOf", "oneOf", "allOf")
_CONSTRAINTS = (
    *("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"),
    *("items", "prefixItems", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("multipleOf", "minLength", "maxLength", "pattern", "enum", "const"),
)


def check_schema(schema: Any) -> None:
    """Refuse a schema that a text could break, or that is too deep.

    Raises:
        BadRequest: with the keyword.
    """
    queue = [(schema, 1)]
    while queue:
        one, depth = queue.pop()
        if depth > MAX_DEPTH:
            raise BadRequest(f"the JSON schema is more than {MAX_DEPTH} schemas deep", "response_format")
        if isinstance(one, Mapping):
            reason = _unsupported(one)
            if reason:
                raise BadRequest(f"the JSON schema cannot be used: {reason}", "response_format")
            queue += [(part, depth + 1) for part in _parts(one)]


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    for name in _MAPS:
        if isinstance(schema.get(name), Mapping):
            yield from schema[name].values()
    for name in _LISTS:
        if isinstance(schema.get(name), list):
            yield from schema[name]
    for name in _SINGLE:
        if name in schema:
            yield schema[name]


def _unsupported(schema: Mapping[str, Any]) -> str | None:
    """Return what of a schema would be left out of the grammar, not looking into its parts."""
    for name in _UNKNOWN:
        if name in schema:
            return f"{name!r} is not supported"
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        return f"'$ref' to {reference[:80]!r}, which is not a part of it, is not supported"
    if schema.get("uniqueItems") is True:
        return "'uniqueItems' is not supported"
    if "multipleOf" in schema and schema.get("type") != "integer":
        return "'multipleOf' is supported for integers only"
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1:
        return "'allOf' is supported with one schema only"
    combining = next((name for name in _COMBINING if name in schema), None)
    beside = next((name for name in _CONSTRAINTS if name in schema), None)
    if combining and beside:
        return f"{beside!r} beside {combining!r} is not supported"
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if isinstance(properties, Mapping) and isinstance(required, list):
        unnamed = [name for name in required if isinstance(name, str) and name not in properties]
        if unnamed:
            return f"'required' has {unnamed[0]!r}, which 'properties' has not"
    return None
