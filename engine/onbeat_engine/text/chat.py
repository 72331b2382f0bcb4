"""Chat templates: Jinja in a sandbox, with what templates of models count on."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from onbeat_engine.wire.errors import BadRequest, ModelError


class _Generation(Extension):
    """`{% generation %}` marks the answers, for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it a plain class attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Return JSON as it is: jinja2's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the template.
        tokens: names of special tokens, which templates use: `bos_token`, `eos_token`.

    Raises:
        ModelError: it is no template.
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the chat template cannot be compiled: {error}") from None
        self._tokens = dict(tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        more: Mapping[str, Any],
    ) -> str:
        """Return the text; arguments as `Tokenizer.apply_chat_template`.

        Raises:
            BadRequest: there are no messages, they cannot be shown as text, or the template refuses them.
        """
        if not messages:
            raise BadRequest("messages is empty; at least one is needed", "messages")
        if continue_final_message and add_generation_prompt:
            raise BadRequest(
                "continue_final_message and add_generation_prompt exclude each other", "continue_final_message"
            )
        plain = [_plain(message) for message in messages]
        variables = self._tokens | dict(more)
        try:
            text = self._template.render(
                messages=plain, tools=tools or None, add_generation_prompt=add_generation_prompt, **variables
            )
        except BadRequest:
            raise
        except Exception as error:  # a template may do with its input whatever Python may
            raise BadRequest(f"the chat template refuses these messages: {error}", "messages") from None
        return _opened(text, plain[-1]["content"]) if continue_final_message else text


def _opened(text: str, last: str) -> str:
    """Return the text up to the end of the last message's content."""
    last = last.strip()
    end = text.rfind(last)
    if not last or end < 0:
        raise BadRequest("the final message has no content that could be continued", "continue_final_message")
    return text[: end + len(last)]


def _plain(message: Any) -> dict[str, Any]:
    """Return a message as templates expect it: content a string, arguments of tool calls objects."""
    if not isinstance(message, Mapping):
        raise BadRequest(f"a message is of type {type(message).__name__!r}; it must be an object", "messages")
    plain = {key: value for key, value in message.items() if value is not None}
    content = plain.get("content", "")
    if not isinstance(content, str):
        content = "\n".join(map(_text_of, content if isinstance(content, list | tuple) else [content]))
    plain["content"] = content
    if not isinstance(plain.get("role"), str):
        raise BadRequest("a message has no role", "messages")
    calls = plain.get("tool_calls")
    if calls:
        if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
            raise BadRequest("the tool_calls of a message must be a list of objects", "messages")
        plain["tool_calls"] = [_parsed(call) for call in calls]
    return plain


def _text_of(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise BadRequest(f"a part of a message is of type {kind!r}; the model reads text only", "messages")


def _parsed(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call with its arguments as an object; OpenAI's API has them as JSON text."""
    function = call.get("function") or {}
    if not isinstance(function, Mapping):
        raise BadRequest("the function of a tool call must be an object", "messages")
    function = dict(function)
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"])
        except ValueError:
            raise BadRequest("the arguments of a tool call are no JSON", "messages") from None
    return dict(call) | {"function": function}
