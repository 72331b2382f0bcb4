"""Chat templates."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest

from onbeat_engine.text.chat import ChatTemplate
from onbeat_engine.wire.errors import BadRequest, ModelError
from tests.engine.text.tiny import smollm2

USER = {"role": "user", "content": "hi"}


def render(source: str, messages: Sequence[Mapping[str, Any]] = (USER,), **options: Any) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    defaults: dict[str, Any] = {
        "add_generation_prompt": False,
        "continue_final_message": False,
        "tools": None,
        "more": {},
    }
    return template.render(messages, **defaults | options)


def test_what_templates_count_on() -> None:
    assert render("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}") == "<s>hi</s>"
    assert render("{{ messages | tojson }}") == '[{"role": "user", "content": "hi"}]'
    assert render("{{ {'a': '<é>'} | tojson(indent=1) }}") == '{\n "a": "<é>"\n}'
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)
    assert render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "1"
    assert render("a{% generation %}b{% endgeneration %}c") == "abc"
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"
    assert render("{{ enable_thinking }}", more={"enable_thinking": 7}) == "7"
    assert render("{% if add_generation_prompt %}A{% endif %}", add_generation_prompt=True) == "A"
    assert render("{{ tools is none }}") == "True"
    assert render("{{ tools[0].name }}", tools=[{"name": "f"}]) == "f"


def test_content() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "a\nb"
    assert render("[{{ messages[0].content }}]", [{"role": "assistant", "content": None}]) == "[]"
    calls = [{"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}]
    shown = render("{{ messages[0].tool_calls[0].function.arguments.x }}", [{"role": "assistant", "tool_calls": calls}])
    assert shown == "1"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty"),
        ([{"content": "a"}], "a message has no role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "of type 'image_url'; the model reads text only"),
        ([{"role": "user", "content": [3]}], "of type 'int'"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
            "the arguments of a tool call are no JSON",
        ),
    ],
)
def test_bad_messages(messages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        render("", messages)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{{ messages[5].content.x }}", "refuses these messages"),
        ("{{ 1 / 0 }}", "refuses these messages: division by zero"),
        ("{{ messages.append(1) }}", "refuses these messages"),
        ("{{ messages.__class__.__mro__ }}", "refuses these messages"),
    ],
)
def test_refusals(source: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        render(source)


def test_no_template() -> None:
    with pytest.raises(ModelError, match="the chat template cannot be compiled"):
        ChatTemplate("{% if %}", {})


def test_final_message_goes_on() -> None:
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
    messages = [USER, {"role": "assistant", "content": "The answer is"}]
    assert render(source, messages, continue_final_message=True) == "[user]hi[end][assistant]The answer is"
    with pytest.raises(BadRequest, match="exclude each other"):
        render(source, messages, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(BadRequest, match="no content that could be continued"):
        render(source, [{"role": "assistant", "content": " "}], continue_final_message=True)


def test_smollm2() -> None:
    assert smollm2().apply_chat_template([USER]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "messages",
    [
        [1],
        "hi",
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": {"text": "hi"}}],
        [{"role": 5}],
        [{"role": "assistant", "tool_calls": 5}],
        [{"role": "assistant", "tool_calls": [5]}],
        [{"role": "assistant", "tool_calls": [{"function": 5}]}],
    ],
)
def test_messages_that_are_none(messages: Any) -> None:
    with pytest.raises(BadRequest) as error:
        render("{{ messages[0].content }}", messages)
    assert error.value.param == "messages"
