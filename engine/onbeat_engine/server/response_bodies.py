"""What answers look like."""

from typing import Any, Literal

from pydantic import BaseModel


class PromptTokensDetails(BaseModel):
    """Of the prompt's tokens."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens that a request took; a prompt counts once, whatever n."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


PromptLogprobs = list[dict[int, dict[str, Any]] | None]


class CompletionLogprobs(BaseModel):
    """Log probabilities of a text's tokens; the first token of a prompt has none."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(BaseModel):
    """One completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(BaseModel):
    """The answer to a completion request."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(BaseModel):
    """A token that was likely."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """The token that is there."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log probabilities of an answer's tokens."""

    content: list[TokenLogprob]


class ChatMessage(BaseModel):
    """An answer."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatCompletion(BaseModel):
    """The answer to a chat request."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Model(BaseModel):
    """A name that requests may call the model by."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "onbeat"
    max_model_len: int


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[Model]


class Tokens(BaseModel):
    """The answer of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizedText(BaseModel):
    """The answer of `/detokenize`."""

    prompt: str
