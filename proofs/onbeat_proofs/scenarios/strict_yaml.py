"""YAML, read strictly: no duplicate keys, keys are text, and a plain scalar is what it looks like.

Plain scalars are resolved by YAML 1.2's core rules, as far as they surprise nobody: `on`, `no`, `010`, `0x10`, `1:30`
and dates are text, `1e3` is a float (and so never a whole number).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from onbeat_spec.errors import ScenarioError

MOST_VALUES = 500_000
"""Values in one document, aliases written out; what is larger is a mistake or an attack."""
MOST_DIGITS = 20

KeyPath = tuple[str | int, ...]

_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_CORE = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*(?:e[-+]?[0-9]+)?|[0-9]+e[-+]?[0-9]+)", re.IGNORECASE)
"""More than YAML 1.1 takes for one: 1e3 too."""
_WORDS = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}


class Document:
    """One YAML document: its value, and where every part of it stands.

    Raises:
        ScenarioError: the document cannot be made a value of mappings, lists, texts, numbers, truth values and nulls.
    """

    def __init__(self, where: str, number: int, node: yaml.Node) -> None:
        self.where = where
        self.title = str(number)
        self._node = node
        self._count = 0
        self._open: set[int] = set()
        self.value: Any = self._construct(node)
        if isinstance(self.value, dict) and isinstance(name := self.value.get("name"), str) and name:
            self.title = f"{number} ({name})"

    def error(self, path: KeyPath, problem: str) -> ScenarioError:
        """Return the error that says what is wrong with the value at `path`."""
        keys = key_path(path)
        return self._error(self.line(path), f"{keys}: {problem}" if keys else problem)

    def line(self, path: KeyPath) -> int:
        """Line, from 1, on which the value at `path` begins, or the last part of the path that exists."""
        node = self._node
        for key in path:
            children: dict[str | int, yaml.Node] = {}
            if isinstance(node, yaml.MappingNode):
                children = {k.value: v for k, v in node.value}
            elif isinstance(node, yaml.SequenceNode):
                children = dict(enumerate(node.value))
            if key not in children:
                break
            node = children[key]
        return _line(node)

    def _error(self, line: int, problem: str) -> ScenarioError:
        return ScenarioError(f"{self.where}, document {self.title}, line {line}: {problem}")

    def _construct(self, node: yaml.Node) -> Any:
        self._count += 1
        if self._count > MOST_VALUES:
            raise self._error(_line(node), f"more than {MOST_VALUES:,} values; split it into several scenarios")
        if id(node) in self._open:
            raise self._error(_line(node), "a value contains itself; write it out without the alias")
        if node.tag and not node.tag.startswith(_CORE):
            raise self._error(_line(node), f"the tag {node.tag} is not supported; remove it")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        self._open.add(id(node))
        value: Any
        if isinstance(node, yaml.MappingNode):
            value = self._mapping(node)
        else:
            value = [self._construct(item) for item in node.value]
        self._open.discard(id(node))
        return value

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        lines: dict[str, int] = {}
        value = {}
        for key_node, value_node in node.value:
            key, line = self._construct(key_node), _line(key_node)
            if not isinstance(key, str):
                raise self._error(line, f"the key {key!r} is not text; put it in quotes")
            if key in lines:
                raise self._error(line, f"the key {key!r} stands twice in one mapping (also on line {lines[key]})")
            lines[key] = line
            value[key] = self._construct(value_node)
        return value

    def _scalar(self, node: yaml.ScalarNode) -> str | int | float | bool | None:
        text: str = node.value
        if not node.style:  # plain; a number or word that the loader calls text carries the tag !!str
            if node.tag != f"{_CORE}str" and text in _WORDS:
                return _WORDS[text]
            if node.tag != f"{_CORE}str" and _INTEGER.fullmatch(text) and len(text) <= MOST_DIGITS:
                return int(text)
            if FLOAT.fullmatch(text):
                return float(text)
        if not text.isprintable():
            raise self._error(_line(node), f"{text!r} holds a line break or a character that cannot be printed")
        return text


def documents(text: str, where: str) -> Iterator[Document]:
    """Yield the documents of a YAML text; `where` names it in messages.

    Raises:
        ScenarioError: the text is no YAML, or one of its documents is not as `Document` wants it.
    """
    try:
        for number, node in enumerate(yaml.compose_all(text, Loader=_LOADER), 1):
            yield Document(where, number, node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise ScenarioError(f"{where}{line}: not YAML: {problem}") from None
    except yaml.YAMLError as error:
        raise ScenarioError(f"{where}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ScenarioError(f"{where}: nested too deeply") from None


def read(file: Path) -> str:
    """Return the text of a file.

    Raises:
        ScenarioError: it cannot be read, or is not UTF-8.
    """
    try:
        return file.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise ScenarioError(f"{file}: cannot be read ({reason}); give a scenario file or a folder of them") from None


def key_path(path: KeyPath) -> str:
    """Write a path as `steps[2].schedule`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
