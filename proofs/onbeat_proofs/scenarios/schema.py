"""The shapes of scenario files: the schema of the spec package, and what is wrong with a document that breaks it."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from onbeat_proofs.scenarios.strict_yaml import Document, KeyPath

GROUP_KEYS = {"rank", "ranks"}
_GROUP = "scenarios of a group of ranks are not supported here; `onbeat protocol` runs them (*.group.yaml)"
SCENARIO = "scenario.schema.json"


@cache
def schema(name: str = SCENARIO) -> Mapping[str, Any]:
    """Return the JSON Schema of one scenario."""
    text = files("onbeat_spec").joinpath(name).read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


@cache
def _validator(name: str) -> Validator:
    # To JSON Schema 2.0 is an integer.
    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    validator: Validator = extend(Draft202012Validator, type_checker=checker)(schema(name))  # type: ignore[no-untyped-call]
    return validator


def validate(document: Document, name: str = SCENARIO) -> None:
    """Hold a document against a schema of the spec package.

    Raises:
        ScenarioError: for the first thing in it that is not as the schema wants it.
    """
    errors = list(_validator(name).iter_errors(document.value))
    if errors:
        first = min(errors, key=lambda error: (document.line(tuple(error.absolute_path)), _RANK[str(error.validator)]))
        raise document.error(*_explain(first))


class _Rank(dict[str, int]):
    """Of several errors in one place, the one that says most about it comes first."""

    def __missing__(self, validator: str) -> int:
        return 1


_RANK = _Rank(additionalProperties=0, oneOf=2)
_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "empty",
}
_PATTERNS = {
    "policy": "a policy's name (onbeat, pr44558, local-work), module:Class or path/to/file.py:Class",
    "invariants": "the id of an invariant",
    "violates": "the id of an invariant",
}


def _explain(error: ValidationError) -> tuple[KeyPath, str]:
    """Return where an error is and what to do about it."""
    path: KeyPath = tuple(error.absolute_path)
    value: Any = error.instance
    limit: Any = error.validator_value
    schema: Any = error.schema
    shown = _show(value)
    match error.validator:
        case "additionalProperties":
            key = next(key for key in value if key not in schema["properties"])
            return (*path, key), _unknown_key(key, list(schema["properties"]))
        case "type" if path and path[-1] == "deliver" and isinstance(value, dict):
            return path, f"messages in flight belong to groups, and {_GROUP}"
        case "type":
            names = [limit] if isinstance(limit, str) else limit
            hint = ", so put it in quotes" if "string" in names and isinstance(value, int | float) else ""
            return path, f"is {shown}; it must be {' or '.join(_TYPES[name] for name in names)}{hint}"
        case "enum":
            return path, f"is {shown}; it must be {' or '.join(_show(choice) for choice in limit)}"
        case "required":
            return path, f"lacks the key {', '.join(key for key in limit if key not in value)}"
        case "oneOf":
            choices = [branch["required"][0] for branch in limit]
            operations = [key for key in value if key in choices]
            if operations:
                names = " and ".join(operations)
                return path, f"has {names}; a step is one operation, so begin each with a dash of its own"
            return path, f"has no operation; it must have one of {', '.join(choices)}"
        case "dependentRequired":
            return path, "expect goes with schedule only; put it into a check"
        case "minimum" | "maximum":
            return path, f"is {shown}; it must be at {'least' if error.validator == 'minimum' else 'most'} {limit}"
        case "pattern":
            name = next((key for key in reversed(path) if isinstance(key, str)), "")
            return path, f"is {shown}; it must be {_PATTERNS.get(name, f'like {limit}')}"
        case "minItems" | "maxItems":
            return path, f"has {len(value)} items; it must have {limit}"
        case "minLength" | "minProperties":
            return path, "is empty; give something or leave it out"
        case "maxLength":
            return path, f"has {len(value)} characters; {limit} is the most"
        case "uniqueItems":
            return path, "names something twice"
    return path, error.message


def _unknown_key(key: str, keys: list[str]) -> str:
    if key in GROUP_KEYS and not GROUP_KEYS & set(keys):
        return _GROUP
    near = get_close_matches(key, keys, 1)
    hint = f"did you mean {near[0]}?" if near else f"it must be one of {', '.join(keys)}"
    return f"there is no such key; {hint}"


def _show(value: object) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:60]}...")
    if isinstance(value, dict):
        return "a mapping" if value else "{}"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "empty"
    return str(value).lower() if isinstance(value, bool) else str(value)
