"""The tokenizer: text to ids and back, and chat messages to text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from onbeat_engine.text.chat import ChatTemplate
from onbeat_engine.text.pieces import Pieces
from onbeat_engine.wire.errors import BadRequest, ModelError


class Tokenizer:
    """A tokenizer of the `tokenizers` library with what else a model folder says of its tokens. Thread-safe.

    Args:
        backend: a `tokenizers.Tokenizer`; not to be changed afterwards.
        eos_token_ids: tokens that end a text.
        bos_token_id: the token that begins one, if there is such a token.
        chat_template: a Jinja template.

    Raises:
        ModelError: it has no tokens, or its chat template is none.
    """

    def __init__(
        self,
        backend: Any,
        *,
        eos_token_ids: Sequence[int] = (),
        bos_token_id: int | None = None,
        chat_template: str | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        names: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        if not names:
            raise ModelError("the tokenizer has no tokens")
        self.vocab_size = max(names.values()) + 1
        """Every id is below it; the model's may be larger."""
        self.eos_token_ids = frozenset(eos_token_ids)
        self.bos_token_id = bos_token_id
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self._pieces = Pieces(json.loads(backend.to_str())["decoder"], names, self.vocab_size)
        self._longest = max(map(len, self._pieces.all), default=1) or 1
        self._chat: ChatTemplate | None = None
        if chat_template is not None:
            tokens = {"bos_token": bos_token_id, "eos_token": next(iter(eos_token_ids), None)}
            shown = {name: backend.id_to_token(id) or "" for name, id in tokens.items() if id is not None}
            self._chat = ChatTemplate(chat_template, {"bos_token": "", "eos_token": ""} | shown)

    @property
    def pieces(self) -> Sequence[bytes]:
        """What each id writes, [vocab_size]; nothing for special tokens."""
        return [b"" if id in self.special_ids else piece for id, piece in enumerate(self._pieces.all)]

    def piece(self, id: int) -> bytes:
        """Return what one token writes; special tokens write their names, ids beyond the vocabulary nothing."""
        return self._pieces.of(id)

    def token_text(self, id: int) -> str:
        """Return a token as log probabilities show it; part of a character is shown as U+FFFD."""
        return self.piece(id).decode("utf-8", "replace")

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
        """Return the ids of a text. Special tokens in it, written out, count as such.

        Args:
            text: the text.
            add_special_tokens: put the tokens around it that the model was trained with.
            max_tokens: most ids; a text that has more for certain is not looked at any further.

        Raises:
            BadRequest: it has more tokens, or is no Unicode text.
        """
        if max_tokens is not None and len(text) > max_tokens * self._longest:
            raise BadRequest(
                f"the text has {len(text)} characters, which are more than {max_tokens} tokens; shorten it", "prompt"
            )
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, UnicodeError):
            raise BadRequest("the text is no Unicode: it has half of a surrogate pair", "prompt") from None
        if max_tokens is not None and len(ids) > max_tokens:
            raise BadRequest(f"the text has {len(ids)} tokens; at most {max_tokens} are taken", "prompt")
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True, after_text: bool = False) -> str:
        """Return the text of ids. Bytes that are no UTF-8 become U+FFFD, unknown ids nothing.

        Args:
            ids: the ids.
            skip_special_tokens: leave special tokens out.
            after_text: the ids go on after others, so that a space at their beginning is one (SentencePiece puts one
                before every text, and takes it away again).
        """
        skipped = self.special_ids if skip_special_tokens else frozenset()
        text = b"".join(self._pieces.of(id) for id in ids if id not in skipped).decode("utf-8", "replace")
        return text[1:] if self._pieces.strips_first_space and not after_text and text.startswith(" ") else text

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can be used."""
        return self._chat is not None

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a conversation as the model's text. Encode it without adding special tokens: it has them.

        Args:
            messages: each with `role` and `content` (a string, a list of text parts, or None).
            add_generation_prompt: end with what comes before an answer.
            continue_final_message: leave the last message open, so that the answer goes on with it.
            tools: definitions of functions, if the template knows what to do with them.
            template_kwargs: further variables of the template.

        Raises:
            BadRequest: the model has no chat template, or it refuses these messages.
        """
        if self._chat is None:
            raise BadRequest("the model has no chat template; use /v1/completions", "messages")
        return self._chat.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            more=template_kwargs or {},
        )

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, max_tokens: int | None = None, **options: Any
    ) -> list[int]:
        """Return the ids of a conversation; `options` are those of `apply_chat_template`.

        Raises:
            BadRequest: as `apply_chat_template` and `encode`.
        """
        return self.encode(
            self.apply_chat_template(messages, **options), add_special_tokens=False, max_tokens=max_tokens
        )
