"""What requests may hold. Fields that are not listed are ignored, as vLLM ignores them.

Types are strict ("5" is no number); ranges are those of `SamplingParams`, which refuses what is outside.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from onbeat_engine.wire.errors import BadRequest
from onbeat_engine.wire.params import SamplingParams, StructuredOutput

Prompt = str | list[int] | list[str] | list[list[int]]


class ClientData(BaseModel):
    """Base of what clients send."""

    model_config = ConfigDict(strict=True, extra="ignore")


class StreamOptions(ClientData):
    """What a stream holds beside the text (case B92)."""

    include_usage: bool | None = None


class JsonSchema(ClientData):
    """A schema under OpenAI's name for it."""

    model_config = ConfigDict(strict=True, extra="ignore", populate_by_name=True)

    name: str = "schema"
    json_schema: dict[str, Any] = Field(alias="schema")


class ResponseFormat(ClientData):
    """What the text has to be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def structured(self) -> StructuredOutput | None:
        """Return it in the engine's terms.

        Raises:
            BadRequest: type `json_schema` without one.
        """
        if self.type == "text":
            return None
        if self.type == "json_object":
            return StructuredOutput(json_object=True)
        if self.json_schema is None:
            raise BadRequest("response_format of type json_schema needs the field json_schema", "response_format")
        return StructuredOutput(json_schema=self.json_schema.json_schema)


class Generate(ClientData):
    """What both kinds of requests have in common. Null means the default."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Those that differ from `SamplingParams`'s."""

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[str, float] | None = None
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int = 0
    cache_salt: str | None = None

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a chunk that tells the usage (cases B92, B93)."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def params(self, **given: Any) -> SamplingParams:
        """Return how to sample; GIVEN counts before the fields of the same name, None counts as not given.

        Raises:
            BadRequest: a value is out of range, or two exclude each other.
        """
        if self.stream_options is not None and not self.stream:
            raise BadRequest("stream_options is only for streams", "stream_options")
        if self.stream and self.prompt_logprobs is not None:
            raise BadRequest("prompt_logprobs is not for streams", "prompt_logprobs")
        values: dict[str, Any] = {name: getattr(self, name) for name in SAME}
        if self.stop is not None:
            values["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.stop_token_ids is not None:
            values["stop_token_ids"] = tuple(self.stop_token_ids)
        if self.logit_bias is not None:
            values["logit_bias"] = self._biases(self.logit_bias)
        if self.response_format is not None:
            values["structured"] = self.response_format.structured()
        for name, value in given.items():
            if value is not None:
                values[name] = value
        asked = {name: value for name, value in values.items() if value is not None}
        return SamplingParams(**{**self.defaults, **asked})

    def _biases(self, biases: dict[str, float]) -> dict[int, float]:
        if not all(token.isascii() and token.isdigit() and len(token) < 10 for token in biases):
            raise BadRequest(f"logit_bias has keys that are no token ids: {list(biases)[:5]}", "logit_bias")
        return {int(token): bias for token, bias in biases.items()}


SAME = tuple(name for name in Generate.model_fields if name in SamplingParams.__struct_fields__)
"""Fields that mean the same in a request and in `SamplingParams`; three of them differ in type."""


class CompletionRequest(Generate):
    """`POST /v1/completions`."""

    prompt: Prompt
    logprobs: int | None = None
    echo: bool = False
    suffix: str | None = None
    add_special_tokens: bool = True


class Message(ClientData):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True, extra="allow")  # a chat template may know of more

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatRequest(Generate):
    """`POST /v1/chat/completions`."""

    defaults: ClassVar[Mapping[str, Any]] = {"max_tokens": None}
    """An answer ends by itself."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(ClientData):
    """`POST /tokenize`: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True


class DetokenizeRequest(ClientData):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[int]
